"""Every error that kvbudget raises on purpose, and the one shape in which a problem is told to a user.

::

    KvbudgetError
    ├── InputError            what a user gave cannot be used: field path, reason and fix
    │   ├── QuantityError     not a Kubernetes quantity
    │   ├── ShapeError        a config or header from which no model shape follows
    │   ├── WeightsError      a weights file that is missing, truncated or of a kind we do not read
    │   ├── ObjectError       a manifest that its schema refuses; carries every Problem
    │   └── UnsupportedError  known, but not supported by this release
    └── LedgerError           a caller broke the ledger's contract (a bug of ours, never of a user)

A check does not raise: it returns :class:`Problem` values, so that one answer carries all of them.
"""

from dataclasses import dataclass


class KvbudgetError(Exception):
    """Root of the tree."""


class InputError(KvbudgetError):
    """Input that cannot be used. ``str()`` reads ``path: reason``; the reason names the fix."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


class QuantityError(InputError):
    """Not a Kubernetes quantity, or one that is not a whole number."""


class ShapeError(InputError):
    """No model shape follows from the input."""


class WeightsError(InputError):
    """A weights file that is missing, truncated or of an unknown kind."""


class UnsupportedError(InputError):
    """Understood, but this release does not support it."""


class LedgerError(KvbudgetError):
    """The ledger's contract was broken by its caller."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal or warning: ``path`` as in the manifest (``spec.maxModelLen``), ``check`` the stable id of the check
    that found it (CamelCase, usable as a condition reason), ``message`` the arithmetic and what would fit."""

    path: str
    message: str
    check: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ObjectError(InputError):
    """A manifest that its schema refuses. ``problems`` has them all; ``str()`` is one a line."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("", "\n".join(str(problem) for problem in problems))
        self.problems = problems
