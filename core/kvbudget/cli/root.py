"""The command group."""

import click

from kvbudget.cli.explain import explain
from kvbudget.cli.gpus import gpus
from kvbudget.cli.lint import lint
from kvbudget.cli.models import models
from kvbudget.cli.plan import plan
from kvbudget.cli.size import size
from kvbudget.crd import crds, to_yaml


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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
