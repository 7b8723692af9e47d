"""docs/cli.md shows what the commands print, and tells every cause and every command that there is."""

import re
from pathlib import Path

import click

from cli_docs import PAGE, output_of, renewed
from kvbudget import cli
from support.commands import Run

README = Path(__file__).parents[2] / "README.md"


def test_every_output_on_the_page_is_what_is_printed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text, output_of) == text


def test_the_check_sees_an_output_that_rots() -> None:
    page = "```\n$ kvbudget gpus l4\nold\n```\n"
    assert renewed(page, lambda arguments: f"{arguments}!\n") == "```\n$ kvbudget gpus l4\ngpus l4!\n```\n"


def test_every_command_and_cause_is_told(schema: dict[str, object]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    context = click.Context(cli.app())
    assert [name for name in cli.app().list_commands(context) if f"`kvbudget {name}" not in text] == []
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(
        re.findall(
            r"'([A-Z]\w+[a-z]\w*)'",
            str(
                schema["$defs"]["plan"]["properties"]["cause"]  # type: ignore[index]
            ),
        )
    )


def test_the_readme_shows_what_is_printed(run: Run) -> None:
    """Lines between two … of the README's example are lines of the output."""
    block = re.search(r"^\$ kvbudget (plan Qwen.*)\n((?:.+\n)+?)```", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert block is not None
    printed = run(*block[1].split()).stdout.splitlines()
    assert [line for line in block[2].splitlines() if line.strip() != "…" and line not in printed] == []


def test_every_help_says_what_the_codes_mean_or_what_is_listed(run: Run) -> None:
    for name in cli.app().list_commands(click.Context(cli.app())):
        text = run(name, "--help").stdout
        assert len(text.splitlines()) > 4
