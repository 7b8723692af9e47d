"""``kvbudget explain``: a model group by group."""

from typing import Any

import click

from kvbudget.cli.inputs import model_named
from kvbudget.cli.options import Counts, KVNames, one
from kvbudget.cli.output import errors_told, output_option, print_data, print_text, width
from kvbudget.engines.pages import resolved_format
from kvbudget.planner.describe import Explained, explain_json
from kvbudget.planner.layerview import layer_rows
from kvbudget.planner.text import explain_lines

LENGTHS = (1024, 8192, 32768, 131072)


@click.command()
@click.argument("model")
@click.option("--kv-precision", type=KVNames(), help="Of the KV cache.  [default: the model's own]")
@click.option("--tp", type=Counts(1024), help="GPUs that share every layer: bytes are of one of them.")
@click.option("--context", type=Counts(), help="Lengths for which the KV of one sequence is told, like 8192,32768.")
@output_option
def explain(model: str, **given: Any) -> None:
    """What do this model's layers keep? Kind, heads, bytes per token, state, assumptions.

    Bytes are those that vLLM's layouts have before rounding to pages, on one GPU. MODEL is what `kvbudget plan` takes.

    \b
    Examples:
      kvbudget explain google/gemma-3-27b-it
      kvbudget explain ./config.json --kv-precision fp8 --context 131072
    """
    with errors_told():
        found = model_named(model)
        kv_format = resolved_format(found.shape, one("--kv-precision", given["kv_precision"]))
        ranks = one("--tp", given["tp"]) or 1
        rows = layer_rows(found.shape, kv_format, tensor_parallel=ranks)
        limit = found.shape.max_position_embeddings
        lengths = given["context"] or tuple(n for n in LENGTHS if limit is None or n <= limit) or LENGTHS[:1]
        seen = Explained(found.name, found.shape, kv_format, ranks, rows, lengths)
    if given["output"] == "table":
        print_text("\n".join(explain_lines(seen, width())) + "\n")
    else:
        print_data(explain_json(seen), given["output"])
