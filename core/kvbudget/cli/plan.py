"""``kvbudget plan``: one plan in full, or a table of them."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from kvbudget.api import GPUClass
from kvbudget.cli import plot as plots
from kvbudget.cli.codes import EXIT_DOES_NOT_FIT, EXIT_FITS
from kvbudget.cli.inputs import Model, all_devices, device_named, model_named, read_prices, service_model
from kvbudget.cli.options import engine_options, question_of
from kvbudget.cli.output import errors_told, output_option, print_data, print_text, width
from kvbudget.cli.reading import read_documents
from kvbudget.cli.services import judge_services, print_services, read_services, the_only_service
from kvbudget.errors import InputError
from kvbudget.planner.describe import plan_json, what_if_json
from kvbudget.planner.gains import Remedy, remedies
from kvbudget.planner.grid import MAX_CELLS, Axes, default_lengths, what_if
from kvbudget.planner.question import Answer, ask, length_limit
from kvbudget.planner.text import plan_lines, what_if_lines

_FOR_SERVICES = ("paths", "config", "output", "plot", "model", "table")
_BARS_SHOWN = 8


@click.command()
@click.argument("model", required=False)
@engine_options
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10**6),
    metavar="N",
    help="Requests of that length wanted at once.  [default: 1]",
)
@click.option(
    "--input-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Longest prompt: tells by how much to cap output instead.",
)
@click.option("--what-if", "table", is_flag=True, help="A table over --gpu, --tp, --kv-precision and --max-model-len.")
@click.option("--price", metavar="FILE", help="With --what-if: YAML or JSON, GPU type: price per GPU-hour.")
@click.option(
    "--limit", type=click.IntRange(0), metavar="N", help="With --what-if: rows to print, 0 for all.  [default: 20]"
)
@click.option("--plot", metavar="FILE.png", help="Also draw memory bars, and KV against context and concurrency.")
@click.option("--config", help="With -f: a Hugging Face config.json that gives services without a shape theirs.")
@output_option
@click.pass_context
def plan(ctx: click.Context, /, model: str | None, **given: Any) -> None:
    """Does it fit? Every term of the KV budget, and what each remedy gains.

    MODEL is a name (`kvbudget models` lists them), a model's folder, its config.json, params.json or .gguf file, or a
    YAML file with one LLMService. Nothing is downloaded.

    Without MODEL, -f gives LLMService manifests; they are judged by the checks of `kubectl apply`, under the bundled
    worker's rules, and a GPUClass in the files wins over the built-in catalogue.

    "fits" is judged on the low end of every figure; "at risk" means that only the expected figures hold.

    \b
    Examples:
      kvbudget plan Qwen/Qwen3-8B --gpu l4-24gb --max-model-len 16384
      kvbudget plan ./my-model --gpu h100-80gb --tp 2 --engine sglang --concurrency 64
      kvbudget plan openai/gpt-oss-120b --what-if --price prices.yaml
      kvbudget plan -f service.yaml -o json

    Exit code: 0 it fits (of a table: something fits), 1 it does not, 2 bad usage or unreadable input.
    """
    with errors_told():
        _check(ctx, model)
        if model is None and not given["table"]:
            _services(given)
        if model is None:
            documents = read_services(given["paths"], given["config"])
            path, manifest = the_only_service(documents, "--what-if")
            found, classes = service_model(manifest, path), documents.gpu_classes
        else:
            found, classes = model_named(model), read_classes(given["paths"])
        if given["table"]:
            _what_if(found, given, classes)
        _one_plan(found, given, classes)


def read_classes(paths: tuple[str, ...]) -> dict[str, GPUClass]:
    """The GPUClasses of the files that come with a MODEL. Raises InputError where the files hold a service."""
    documents = read_documents(paths)
    if documents.services:
        path = documents.services[0][0]
        raise InputError(path, "has an LLMService; leave out MODEL to plan it, or give only GPUClasses with -f")
    return documents.gpu_classes


def _check(ctx: click.Context, model: str | None) -> None:
    """That the options go together, and that a picture can be drawn, before anything is computed."""
    given = ctx.params
    if model is None and not given["paths"]:
        raise InputError("MODEL", "is missing; give a model, or manifests with -f (kvbudget plan --help)")
    if model is not None and given["config"] is not None:
        raise InputError("--config", "is for -f without MODEL; give the config.json itself as MODEL")
    if not given["table"]:
        for option in ("price", "limit"):
            if given[option] is not None:
                raise InputError(f"--{option}", "is for --what-if")
        for name, value in given.items() if model is None else ():
            if name not in _FOR_SERVICES and value not in (None, False):
                option = f"--{name.replace('_', '-')}"
                reason = "needs MODEL or --what-if; to plan a manifest so, give its file as MODEL instead of -f"
                raise InputError(option, reason)
    if given["plot"] is not None:
        plots.check(given["plot"])


def _services(given: dict[str, Any]) -> NoReturn:
    """``-f`` without MODEL: the verdict of the operator; the picture is of the same budget."""
    documents = read_services(given["paths"], given["config"])
    results = judge_services(documents)
    drawn = None
    if given["plot"] is not None:
        path, manifest = the_only_service(documents, "--plot")
        drawn = ask(question_of(service_model(manifest, path), given, documents.gpu_classes))
    print_services(results, given["output"])
    if drawn is not None:
        _draw(given["plot"], drawn, remedies(drawn, all_devices(documents.gpu_classes)))
    sys.exit(EXIT_DOES_NOT_FIT if any(verdict.errors for verdict, _, _ in results) else EXIT_FITS)


def _one_plan(model: Model, given: dict[str, Any], classes: dict[str, GPUClass]) -> NoReturn:
    question = question_of(model, given, classes, requests=given["concurrency"] or 1, prompt=given["input_tokens"])
    answer = ask(question)
    found = remedies(answer, all_devices(classes))
    if given["output"] == "table":
        print_text("\n".join(plan_lines(answer, found, width())) + "\n")
    else:
        print_data(plan_json(answer, found), given["output"])
    if given["plot"] is not None:
        _draw(given["plot"], answer, found)
    sys.exit(EXIT_FITS if answer.verdict == "fits" else EXIT_DOES_NOT_FIT)


def _draw(path: str, answer: Answer, found: Sequence[Remedy]) -> None:
    """The plan beside its remedies, but for those that leave the memory as it is."""
    others = [r for r in found if r.fits and r.answer.budget.stages != answer.budget.stages]
    bars = [("as asked", answer), *((r.text.replace(" (", "\n("), r.answer) for r in others)]
    plots.draw(path, bars[:_BARS_SHOWN], answer)


def _what_if(model: Model, given: dict[str, Any], classes: dict[str, GPUClass]) -> NoReturn:
    devices = all_devices(classes)
    prices = {} if given["price"] is None else read_prices(given["price"], devices)
    if given["gpu"]:
        devices = tuple(device_named(name.strip(), classes) for name in given["gpu"].split(","))
    single = {**given, "gpu": devices[0].name, "tp": None, "kv_precision": None, "max_model_len": None}
    question = question_of(model, single, classes, requests=given["concurrency"] or 1, prompt=given["input_tokens"])
    axes = Axes(
        devices=devices,
        tensor_parallel=given["tp"] or (1, 2, 4, 8),
        kv_formats=given["kv_precision"] or (None, "FP8E4M3"),
        lengths=given["max_model_len"] or _lengths(model),
    )
    if axes.cells > MAX_CELLS:
        raise InputError("--what-if", f"{axes.cells} combinations are more than {MAX_CELLS}; name fewer")
    cells = what_if(question, axes, prices)
    fit = any(cell.answer.verdict == "fits" for cell in cells)
    if given["output"] == "table":
        shown = 20 if given["limit"] is None else given["limit"] or len(cells)
        print_text("\n".join(what_if_lines(model.name, cells, shown, priced=bool(prices))) + "\n")
    else:
        print_data(what_if_json(model.name, cells), given["output"])
    if given["plot"] is not None:
        bars = [(_label(c.answer.question.device.name, c.answer.gpus), c.answer) for c in cells[:_BARS_SHOWN]]
        plots.draw(given["plot"], bars, cells[0].answer)
    sys.exit(EXIT_FITS if fit else EXIT_DOES_NOT_FIT)


def _lengths(model: Model) -> tuple[int, ...]:
    """A service says how long its requests are."""
    wanted = None if model.service is None else model.service.spec.max_model_len
    return default_lengths(length_limit(model.shape)) if wanted is None else (wanted,)


def _label(name: str, gpus: int) -> str:
    return name if gpus == 1 else f"{gpus} × {name}"
