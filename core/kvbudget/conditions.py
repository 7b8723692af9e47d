"""Conditions: a new set takes over from the old one without moving a transition time that did not change."""

from collections.abc import Sequence

from kvbudget.api.status import Condition


def merge(old: Sequence[Condition], new: Sequence[Condition], now: str) -> tuple[Condition, ...]:
    """``new`` with the transition times it deserves: the old one where the status is the same, else ``now`` (RFC 3339).

    ``new`` is complete: a type that it leaves out is gone (an absent condition is Unknown). The order of ``old`` is
    kept, new types follow in their own order, so that an unchanged set is equal to the old one.

    >>> ready = Condition(type="Ready", status="True", reason="Serving", last_transition_time="2026-01-01T00:00:00Z")
    >>> again = ready.model_copy(update={"last_transition_time": "", "message": "2 of 2 workers"})
    >>> merge([ready], [again], "2026-01-02T00:00:00Z")[0].last_transition_time
    '2026-01-01T00:00:00Z'
    """
    before = {condition.type: condition for condition in old}
    after = {condition.type: condition for condition in new}
    order = [kind for kind in before if kind in after] + [kind for kind in after if kind not in before]
    return tuple(_carry(before.get(kind), after[kind], now) for kind in order)


def find(conditions: Sequence[Condition], kind: str) -> Condition | None:
    """The condition of type ``kind``, or None where it is absent (Unknown)."""
    return next((condition for condition in conditions if condition.type == kind), None)


def _carry(before: Condition | None, after: Condition, now: str) -> Condition:
    same = before is not None and before.status == after.status and before.last_transition_time
    return after.model_copy(update={"last_transition_time": before.last_transition_time if before and same else now})
