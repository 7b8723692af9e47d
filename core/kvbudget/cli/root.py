"""The command group."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from kvbudget.cli.codes import EXIT_BAD_INPUT, EXIT_FITS
from kvbudget.cli.explain import explain
from kvbudget.cli.gpus import gpus
from kvbudget.cli.lint import lint
from kvbudget.cli.models import models
from kvbudget.cli.output import print_errors
from kvbudget.cli.plan import plan
from kvbudget.cli.size import size
from kvbudget.crd import crds, to_yaml


class _Group(click.Group):
    """Tells bad usage as data too where ``-o json`` or ``-o yaml`` asks for data."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would end with 1, which means that something does not fit
            sys.exit(EXIT_BAD_INPUT)

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        given = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(given, **{**extra, "standalone_mode": False})
        except click.UsageError as error:
            error.show()
            print_errors([error.format_message()], _output(given))
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("aborted", err=True)
            sys.exit(EXIT_BAD_INPUT)
        sys.exit(code if isinstance(code, int) else EXIT_FITS)


def _output(arguments: Sequence[str]) -> str:
    """The format that the arguments ask for, as far as it can be seen before they are understood.

    >>> _output(["plan", "-o", "json", "--tp"]), _output(["gpus", "--output=yaml"]), _output(["gpus", "-o"])
    ('json', 'yaml', 'table')
    """
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    values = [after for one, after in pairs if one in ("-o", "--output")]
    values += [one.partition("=")[2] for one in arguments if one.startswith("--output=")]
    values += [one[2:] for one in arguments if one.startswith("-o") and len(one) > 2]
    return next((value for value in values if value in ("json", "yaml")), "table")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvbudget")
def group() -> None:
    """KV memory as a budget: plan LLM serving in tokens.

    All of it works offline. Exit codes: 0 it fits, 1 it does not, 2 bad usage or unreadable input.
    """


@click.command()
def crd() -> None:
    """Print the CustomResourceDefinitions as YAML."""
    click.echo("".join(to_yaml(definition) for definition in crds()), nl=False)


for command in (plan, size, explain, models, gpus, lint, crd):
    group.add_command(command)
