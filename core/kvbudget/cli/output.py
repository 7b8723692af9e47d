"""What every command prints: lines for people, JSON or YAML for programs, errors on stderr."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
import yaml

from kvbudget.cli.codes import EXIT_BAD_INPUT
from kvbudget.errors import InputError

PLAIN_WIDTH: Final = 100
"""Columns of what goes to a file or a pipe."""
_STYLES: Final = {
    "FITS": "bold green",
    "DOES NOT FIT": "bold red",
    "AT RISK": "bold yellow",
    "REFUSED": "bold red",
    "  error:": "red",
    "  warning:": "yellow",
    "  note:": "dim",
}
_BAR_COLOURS: Final = ("cyan", "magenta", "yellow", "blue", "red", "white")
_KV_COLOUR: Final = "green"


if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # generic only since click 8.2


class _Format(_Choice):
    """``text`` is the name that ``table`` had before there were tables."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert("table" if value == "text" else value, param, ctx)


output_option = click.option(
    "-o",
    "--output",
    type=_Format(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="For people, or for programs: docs/cli.schema.json describes the data.",
)


def width() -> int:
    """Columns of the terminal; a fixed number where there is none."""
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if sys.stdout.isatty() else PLAIN_WIDTH


def print_data(data: object, output: str) -> None:
    """``data`` as JSON or YAML."""
    if output == "yaml":
        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def print_text(text: str) -> None:
    """Plain text; on a terminal the outcome in colour."""
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    for line in text.splitlines():
        style = next((style for start, style in _STYLES.items() if line.startswith(start)), "")
        console.print(_coloured_bar(line) if line.startswith("  [") else Text(line, style=style))


def _coloured_bar(line: str) -> Any:
    """The bar's letters, each on its own colour."""
    from rich.text import Text

    text, colours = Text("  "), {"K": _KV_COLOUR, ".": "bright_black"}
    for letter in line[2:]:
        if letter in "[]":
            text.append(letter)
            continue
        colour = colours.setdefault(letter, _BAR_COLOURS[len(colours) % len(_BAR_COLOURS)])
        text.append(letter, style=f"black on {colour}")
    return text


@contextmanager
def errors_told() -> Iterator[None]:
    """An InputError ends the program with its lines on stderr, and code 2."""
    try:
        yield
    except InputError as error:
        fail(error)


def fail(error: InputError) -> NoReturn:
    """Says what is wrong with the input, and ends; programs that asked for data get it as data too."""
    problems = str(error).splitlines()
    context = click.get_current_context(silent=True)
    tell_errors(problems, "table" if context is None else context.params.get("output", "table"))
    sys.exit(EXIT_BAD_INPUT)


def tell_errors(problems: Sequence[str], output: str) -> None:
    """Each on a line of stderr, and as data where that is asked for."""
    for line in problems:
        # A name in a file must not steer the terminal.
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        click.echo(f"error: {shown}", err=True)
    print_errors(problems, output)


def print_errors(problems: Sequence[str], output: str) -> None:
    """As data; nothing for people, who read stderr."""
    if output != "table":
        print_data({"schema": "kvbudget/error/v1", "errors": list(problems)}, output)
