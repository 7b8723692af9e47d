"""Write the outputs in docs/cli.md again: every ``$ kvbudget …`` line of a fenced block is run in the root folder.

``--check`` writes nothing and exits with 1 where an output is not what the page shows.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from click.testing import CliRunner

from kvbudget import cli

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli.md"
_BLOCK = re.compile(r"(?<=^```\n)\$ kvbudget .*?(?=^```$)", re.MULTILINE | re.DOTALL)
_PROMPT = "$ kvbudget "


def renewed(text: str, output: Callable[[str], str]) -> str:
    """The page with the output of every command as ``output`` gives it."""
    return _BLOCK.sub(lambda block: "\n".join(_lines(block[0], output)) + "\n", text)


def output_of(arguments: str) -> str:
    """What ``kvbudget ARGUMENTS`` prints, stdout and then stderr."""
    result = CliRunner().invoke(cli.app(), shlex.split(arguments))
    return result.stdout + result.stderr


def _lines(block: str, output: Callable[[str], str]) -> Iterator[str]:
    commands = [line for line in block.replace("\\\n", "\\\0").split("\n") if line.startswith(_PROMPT)]
    for command in commands:
        shown = command.replace("\0", "\n")
        yield shown
        yield output(shown.removeprefix(_PROMPT).replace("\\\n", " ")).rstrip("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    wanted = renewed(text, output_of)
    if wanted == text:
        return
    if check:
        sys.exit("docs/cli.md is stale; run: python scripts/cli_docs.py")
    PAGE.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
