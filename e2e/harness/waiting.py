"""Waiting for a condition. Nothing here sleeps for a fixed time and hopes."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.25


def eventually(check: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Calls ``check`` until it gives something true, and returns that.

    ``check`` may raise ``AssertionError`` to say why it is not so far yet; the last such text is in the
    ``TimeoutError`` that is raised after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    why = "it was never true"
    while True:
        try:
            value = check()
        except AssertionError as error:
            value, why = None, str(error) or "an assertion failed"
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}: {why}")
        time.sleep(POLL_SECONDS)
