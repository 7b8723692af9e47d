import json
from dataclasses import asdict, replace

import pytest

from kvbudget.scaling import ScalingPolicy, ScalingState, WorkerSample, decide

POLICY = ScalingPolicy(min_replicas=1, max_replicas=4, target_percent=75, scale_down_delay_seconds=20)


def worker(pod: str = "a", held: int = 0, queued: int = 0, refused: int = 0, *, at: int = 0) -> WorkerSample:
    return WorkerSample(pod, True, False, held, queued, refused, capacity_tokens=1000, sampled_at_ms=at)


STARTING = WorkerSample("new", starting=True)
DRAINING = replace(worker("old", held=900), ready=False)


def idle_state(since_ms: int, now_ms: int, replicas: int = 1) -> ScalingState:
    return ScalingState(since_ms, now_ms - 5000, ((now_ms - 5000, replicas),))


@pytest.mark.parametrize(
    ("samples", "current", "desired", "reason"),
    [
        ([worker(held=750)], 1, 1, "Steady"),
        ([worker(held=751)], 1, 2, "ScaleUp"),
        ([worker(held=700, queued=51)], 1, 2, "ScaleUp"),
        ([worker(held=700, refused=51)], 1, 2, "ScaleUp"),
        ([worker(held=1000, queued=500, refused=1000)], 1, 4, "ScaleUp"),
        ([worker(held=1000, queued=9000)], 1, 4, "ScaleUp"),
        ([worker(f"w{i}", held=1000) for i in range(4)], 4, 4, "AtMaximum"),
        ([worker(held=0)], 1, 1, "AtMinimum"),
        # pending replicas: starting pods, and those asked for that have no pod yet
        ([worker(held=1000, queued=600), STARTING], 2, 2, "ReplicasPending"),
        ([worker(held=1000, queued=600)], 2, 2, "ReplicasPending"),
        ([worker(held=1000, queued=1001), STARTING], 2, 3, "ScaleUp"),
        # a draining pod's tokens end with it
        ([worker(held=700), DRAINING], 1, 1, "Steady"),
        # out of bounds
        ([worker(held=100)], 9, 4, "AtMaximum"),
        ([worker(held=100)], 0, 1, "AtMinimum"),
    ],
)
def test_replicas_for_a_demand(samples: list[WorkerSample], current: int, desired: int, reason: str) -> None:
    _, decision = decide(samples, POLICY, ScalingState(), now_ms=0, current=current)
    assert (decision.desired, decision.reason, decision.metrics_available) == (desired, reason, True)
    assert decision.current == current


def test_the_limits_of_the_policy_hold_when_they_change() -> None:
    policy = replace(POLICY, min_replicas=2, max_replicas=3)
    _, up = decide([worker(held=10)], policy, ScalingState(), 0, current=1)
    _, down = decide([worker(f"w{i}", held=999) for i in range(4)], policy, ScalingState(), 0, current=4)
    _, blind = decide([STARTING], policy, ScalingState(), 0, current=4)
    assert (up.desired, down.desired, blind.desired) == (2, 3, 3)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [STARTING],
        [DRAINING],
        [worker("a", held=1), replace(worker("b"), sampled_at_ms=None)],
        [worker("a", held=4000), worker("b", at=84_999)],
        [worker("a", at=100_000), replace(worker("b", at=100_000), capacity_tokens=0)],
    ],
    ids=["no pod", "only starting", "only draining", "never sampled", "stale", "no pool yet"],
)
def test_missing_data_holds(samples: list[WorkerSample]) -> None:
    state = idle_state(0, 100_000)
    fresh = [replace(s, sampled_at_ms=100_000) if s.reserved_tokens else s for s in samples]
    after, decision = decide(fresh, POLICY, state, now_ms=100_000, current=2)
    assert (decision.desired, decision.reason, decision.metrics_available) == (2, "NoMetrics", False)
    assert "held" in decision.message
    assert after == state


def test_the_pods_without_data_are_named() -> None:
    samples = [replace(worker(f"chat-{i}"), sampled_at_ms=None) for i in range(5)]
    message = decide(samples, POLICY, ScalingState(), 0)[1].message
    assert message == (
        "no sample younger than 15 s from chat-0, chat-1, chat-2 and 2 more; the number of replicas is held"
    )


def test_down_only_after_the_delay() -> None:
    state = ScalingState()
    seen = []
    for now_ms in range(0, 30_000, 5000):
        samples = [worker("a", held=300, at=now_ms), worker("b", held=300, at=now_ms)]
        state, decision = decide(samples, POLICY, state, now_ms)
        seen.append((decision.desired, decision.reason))
    assert seen == [(2, "ScaleDownDelayed")] * 4 + [(1, "ScaleDown")] * 2


@pytest.mark.parametrize(("held", "desired"), [(674, 1), (675, 1), (676, 2)])
def test_a_removal_must_leave_a_tenth_of_the_target_free(held: int, desired: int) -> None:
    # 675 = 1000 × 75 % × 90 %
    samples = [worker("a", held=held, at=100_000), worker("b", at=100_000)]
    _, decision = decide(samples, POLICY, idle_state(0, 100_000), 100_000)
    assert decision.desired == desired


def test_one_look_above_begins_the_delay_anew() -> None:
    state, downs = ScalingState(), []
    for now_ms in range(0, 60_000, 5000):
        held = 800 if now_ms == 15_000 else 0
        samples = [worker("a", held=held, at=now_ms), worker("b", at=now_ms)]
        state, decision = decide(samples, POLICY, state, now_ms)
        if decision.desired < 2:
            downs.append(now_ms)
    assert downs[0] == 40_000  # the look at 15 s has left the last 20 s


@pytest.mark.parametrize(("gap_ms", "desired"), [(15_000, 1), (15_001, 2)])
def test_a_long_gap_begins_the_delay_anew(gap_ms: int, desired: int) -> None:
    now_ms = 100_000
    state = ScalingState(0, now_ms - gap_ms, ((now_ms - gap_ms, 1),))
    _, decision = decide([worker("a", at=now_ms), worker("b", at=now_ms)], POLICY, state, now_ms)
    assert decision.desired == desired


def test_a_clock_that_went_back_begins_the_delay_anew() -> None:
    state = ScalingState(0, 200_000, ((200_000, 1),))
    _, decision = decide([worker("a", at=100_000), worker("b", at=100_000)], POLICY, state, 100_000)
    assert decision.desired == 2


def test_down_goes_to_what_was_needed_during_the_whole_delay() -> None:
    state = ScalingState()
    for now_ms in range(0, 25_000, 5000):
        held = 300 if now_ms == 10_000 else 30
        samples = [worker(f"w{i}", held=held, at=now_ms) for i in range(4)]
        state, decision = decide(samples, POLICY, state, now_ms)
    assert (decision.desired, decision.reason) == (2, "ScaleDown")
    assert decision.message == (
        "120 tokens demanded (120 held, 0 queued, 0 refused) ÷ (1000 per replica × 75%) = 1 replica; "
        "2 would have held it for 20 s"
    )


def test_the_smallest_worker_counts() -> None:
    small = replace(worker("b", held=700), capacity_tokens=500)
    _, decision = decide([worker("a", held=800), small], POLICY, ScalingState(), 0)
    assert decision.desired == 4
    assert decision.tokens_per_replica == 500


def test_the_decision_carries_its_inputs() -> None:
    _, decision = decide([worker("a", 600, 50, 25), worker("b", 500), STARTING], POLICY, ScalingState(), 0)
    assert (decision.ready, decision.starting) == (2, 1)
    assert (decision.held_tokens, decision.queued_tokens, decision.refused_tokens) == (1100, 50, 25)
    assert (decision.demand_tokens, decision.demand_percent) == (1175, 40)


def test_the_state_survives_json() -> None:
    state, _ = decide([worker("a", held=900), worker("b")], POLICY, ScalingState(), 0)
    copy = ScalingState(**json.loads(json.dumps(asdict(state))))
    samples = [worker("a", held=10, at=5000), worker("b", at=5000)]
    assert decide(samples, POLICY, copy, 5000)[1] == decide(samples, POLICY, state, 5000)[1]
