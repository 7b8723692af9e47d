"""What the worker leaves in its container's termination log; the operator reads it in the pod's status."""

import logging
import os

from kvbudget.contract import ENV_TERMINATION_LOG

log = logging.getLogger(__name__)

_MAX_CHARACTERS = 1000
"""In UTF-8 at most 4000 bytes: the kubelet cuts after 4096."""


def leave(text: str) -> None:
    """Writes ``text`` over what was left before, in one line; where no log is named, nothing. Never raises OSError."""
    path = os.environ.get(ENV_TERMINATION_LOG)
    if not path:
        return
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(" ".join(text.split())[:_MAX_CHARACTERS])
    except OSError as error:
        log.warning("the last words of this worker are lost (%s): %s", error, text)
