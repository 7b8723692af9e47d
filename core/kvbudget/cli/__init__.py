"""The command line: the one shell around the pure core. One module a command; ``root`` puts them together.

click, rich, yaml come with the extra ``[cli]`` and matplotlib with ``[plot]``. Nothing of them, and nothing of the
commands, is imported before :func:`app` is called, so that importing the core needs none of them.
"""

import io
import sys
from typing import TYPE_CHECKING

from kvbudget.cli.codes import EXIT_BAD_INPUT, EXIT_DOES_NOT_FIT, EXIT_FITS, MAX_INPUT_BYTES

if TYPE_CHECKING:
    import click

__all__ = ["EXIT_BAD_INPUT", "EXIT_DOES_NOT_FIT", "EXIT_FITS", "MAX_INPUT_BYTES", "app", "main"]


def main() -> None:
    """Entry point. Never shows a traceback for what a user gave."""
    # Python has no stream at all where the caller has closed its descriptor.
    sys.stdin = sys.stdin or io.StringIO()
    sys.stderr = sys.stderr or io.StringIO()
    if sys.stdout is None:
        sys.stderr.write("error: the output cannot be written: standard output is closed\n")
        sys.exit(EXIT_BAD_INPUT)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show ≤ still shows the rest
    try:
        command = app()
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"error: {error.name} is missing; install the command line with: pip install 'kvbudget[cli]'\n"
        )
        sys.exit(EXIT_BAD_INPUT)
    try:
        try:
            command()
        finally:
            sys.stdout.flush()
    except OSError as error:  # input is read elsewhere, so this is the output: a full disk, a pipe that was closed
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"error: the output cannot be written: {error.strerror or error}\n")
        sys.stdout = io.StringIO()  # what is left cannot be written at exit either
        sys.exit(EXIT_BAD_INPUT)


def app() -> "click.Group":
    """The click command group."""
    import yaml  # noqa: F401  (reading files needs it: say at once that it is missing)

    from kvbudget.cli.root import group

    return group
