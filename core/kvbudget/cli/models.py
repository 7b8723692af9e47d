"""``kvbudget models``: the built-in table."""

import click

from kvbudget.cli.output import errors_told, output_option, print_data, print_text
from kvbudget.engines.pages import resolved_format
from kvbudget.planner.describe import Json, model_json
from kvbudget.planner.layerview import layer_rows
from kvbudget.planner.text import table
from kvbudget.shapes.config import from_config
from kvbudget.shapes.table import facts, known_names

_GIB, _KIB = 1024**3, 1024


@click.command()
@click.argument("word", required=False)
@click.option("--kind", help="Only kinds with this word in them: full, sliding, mla, gdn, mamba2, compressed, …")
@output_option
def models(word: str | None, kind: str | None, output: str) -> None:
    """List the models that are known by name; WORD is a part of the name.

    KV per token is of all layers that keep tokens, in the model's own precision, on one GPU; layers with a window keep
    only its tokens (`kvbudget explain`).
    """
    with errors_told():
        rows = [_row(name) for name in known_names() if word is None or word.lower() in name.lower()]
    chosen = [row for row in rows if kind is None or kind.lower() in str(row["kind"])]
    if output != "table":
        print_data({"schema": "kvbudget/models/v1", "models": chosen}, output)
        return
    head = ("model", "kind", "layers", "params B", "weights", "GiB", "max tokens", "KV KiB/token")
    print_text("\n".join((*table(head, [_cells(row) for row in chosen], right=(2, 3, 5, 6, 7)), "")))
    if not chosen:
        click.echo("no model has that in its name or kind; without WORD all are listed", err=True)


def _row(name: str) -> Json:
    shape = from_config(facts(name) or {}, name, name=name)
    kept = layer_rows(shape, resolved_format(shape, None), tensor_parallel=1)
    return {
        **model_json(name, shape),
        "kvBytesPerToken": sum(row.token_bytes for row in kept),
        "stateBytes": sum(row.state_bytes for row in kept),
    }


def _cells(row: Json) -> tuple[str, ...]:
    figures = {key: value for key, value in row.items() if isinstance(value, int)}
    longest = figures.get("maxPositionEmbeddings")
    return (
        str(row["name"]),
        str(row["kind"]),
        str(row["layers"]),
        f"{figures['parameters'] / 1e9:.2f}",
        str(row["weightFormat"]),
        f"{figures['weightBytes'] / _GIB:.1f}",
        "-" if longest is None else str(longest),
        f"{figures['kvBytesPerToken'] / _KIB:.1f}",
    )
