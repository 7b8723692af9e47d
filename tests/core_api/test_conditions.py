from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget import conditions
from kvbudget.api import Condition

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
sets = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from(["Ready", "Accepted", "Available", "Degraded"]),
        status=st.sampled_from(["True", "False", "Unknown"]),
        reason=st.sampled_from(["A", "B"]),
        message=st.text(max_size=3),
    ),
    max_size=4,
    unique_by=lambda condition: condition.type,
)


def condition(kind: str, status: str, reason: str = "Because", time: str = "") -> Condition:
    return Condition.model_validate({"type": kind, "status": status, "reason": reason, "lastTransitionTime": time})


@pytest.mark.parametrize(
    ("before", "after", "time"),
    [
        (condition("Ready", "True", time=THEN), condition("Ready", "True"), THEN),
        (condition("Ready", "True", time=THEN), condition("Ready", "True", "Another"), THEN),
        (condition("Ready", "True", time=THEN), condition("Ready", "False"), NOW),
        (condition("Ready", "True", time=THEN), condition("Ready", "True", time="2030-01-01T00:00:00Z"), THEN),
        (condition("Ready", "True"), condition("Ready", "True"), NOW),
        (condition("Accepted", "True", time=THEN), condition("Ready", "True"), NOW),
    ],
    ids=["same", "other reason", "other status", "a time of its own", "no time before", "other type"],
)
def test_the_time_moves_with_the_status_only(before: Condition, after: Condition, time: str) -> None:
    (merged,) = conditions.merge([before], [after], NOW)
    assert merged == after.model_copy(update={"last_transition_time": time})


def test_order_is_kept_and_what_is_left_out_goes() -> None:
    old = [condition("Ready", "True"), condition("Accepted", "True"), condition("Degraded", "True")]
    new = [condition("Available", "True"), condition("Accepted", "True"), condition("Ready", "True")]
    assert [c.type for c in conditions.merge(old, new, NOW)] == ["Ready", "Accepted", "Available"]


@given(sets, sets)
def test_merging_twice_changes_nothing(old: Sequence[Condition], new: Sequence[Condition]) -> None:
    once = conditions.merge(old, new, THEN)
    assert conditions.merge(once, new, NOW) == once


@given(sets, sets)
def test_all_that_is_new_is_there_but_for_its_time(old: Sequence[Condition], new: Sequence[Condition]) -> None:
    merged = {c.type: c.model_copy(update={"last_transition_time": ""}) for c in conditions.merge(old, new, NOW)}
    assert merged == {c.type: c for c in new}


def test_a_condition_is_found_by_its_type() -> None:
    ready = condition("Ready", "True")
    assert conditions.find([condition("Accepted", "True"), ready], "Ready") is ready
    assert conditions.find([ready], "Degraded") is None
