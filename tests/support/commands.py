"""Types of the command line's fixtures (tests/cli/conftest.py)."""

from collections.abc import Callable
from typing import Any

from click.testing import Result

Run = Callable[..., Result]
Data = Callable[..., dict[str, Any]]
