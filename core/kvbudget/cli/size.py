"""``kvbudget size``: traffic → replicas."""

import sys
from fractions import Fraction
from typing import Any

import click

from kvbudget.cli.codes import EXIT_DOES_NOT_FIT
from kvbudget.cli.inputs import all_devices, model_named
from kvbudget.cli.options import Positive, engine_options, question_of
from kvbudget.cli.output import errors_told, output_option, print_data, print_text, width
from kvbudget.cli.plan import read_classes
from kvbudget.errors import InputError
from kvbudget.planner.describe import plan_json, size_json
from kvbudget.planner.gains import remedies
from kvbudget.planner.question import ask
from kvbudget.planner.text import plan_lines, size_lines
from kvbudget.planner.traffic import Traffic
from kvbudget.planner.traffic import size as size_of

_TOKENS = click.IntRange(1, 10**7)


@click.command()
@click.argument("model")
@click.option("--requests-per-second", type=Positive(), required=True, help="Arrivals over all replicas.")
@click.option("--input-tokens", type=_TOKENS, metavar="N", required=True, help="Tokens of one prompt.")
@click.option("--output-tokens", type=_TOKENS, metavar="N", required=True, help="Tokens of one answer.")
@click.option("--ms-per-output-token", type=Positive(), help="Time per output token of one request under load.")
@click.option("--tokens-per-second", type=Positive(), help="The same as a speed of one request.")
@click.option("--ms-to-first-token", type=Positive(), help="Waiting and prefill.  [default: 0]")
@click.option(
    "--target-percent", type=click.IntRange(1, 100), metavar="N", default=75, show_default=True, help="Fill to aim at."
)
@engine_options
@output_option
def size(model: str, **given: Any) -> None:
    """How many replicas does a traffic need? By Little's law, with the formula.

    Requests at once = requests per second × seconds per request; each holds the KV of its whole prompt and answer, and
    a replica is filled to --target-percent of its KV, judged on the low end. MODEL and the options of the engine are
    those of `kvbudget plan`; --max-model-len is one request's prompt and answer where it is left out.

    \b
    Example:
      kvbudget size Qwen/Qwen3-8B --gpu l4-24gb --requests-per-second 4 \\
        --input-tokens 1200 --output-tokens 400 --ms-per-output-token 30

    Exit code: 0 a number of replicas follows, 1 one replica does not even fit, 2 bad usage or unreadable input.
    """
    with errors_told():
        traffic = _traffic(given)
        classes = read_classes(given["paths"])
        found = model_named(model)
        if given["max_model_len"] is None:
            given["max_model_len"] = (traffic.tokens,)
        answer = ask(question_of(found, given, classes))
        as_table = given["output"] == "table"
        if answer.verdict != "fits":
            better = remedies(answer, all_devices(classes))
            if as_table:
                print_text("\n".join(plan_lines(answer, better, width())) + "\n")
            else:
                print_data(plan_json(answer, better), given["output"])
            sys.exit(EXIT_DOES_NOT_FIT)
        sized = size_of(answer, traffic, given["target_percent"])
    if as_table:
        print_text("\n".join(size_lines(answer, sized)) + "\n")
    else:
        print_data(size_json(answer, traffic, sized, given["target_percent"]), given["output"])


def _traffic(given: dict[str, Any]) -> Traffic:
    slow, fast = given["ms_per_output_token"], given["tokens_per_second"]
    if (slow is None) == (fast is None):
        raise InputError("--ms-per-output-token", "or --tokens-per-second: give one of the two")
    return Traffic(
        requests_per_second=given["requests_per_second"],
        input_tokens=given["input_tokens"],
        output_tokens=given["output_tokens"],
        seconds_per_output_token=1 / fast if slow is None else slow / 1000,
        first_token_seconds=(given["ms_to_first_token"] or Fraction(0)) / 1000,
    )
