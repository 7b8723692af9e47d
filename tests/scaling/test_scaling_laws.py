"""What holds for any samples, any policy and any history."""

from hypothesis import assume, given
from hypothesis import strategies as st

from kvbudget.scaling import Decision, ScalingPolicy, ScalingState, WorkerSample, decide

TOKENS = st.integers(0, 5000)
CAPACITY = 1000


POLICIES = st.builds(
    lambda low, above, target, delay, stale: ScalingPolicy(low, low + above, target, delay, stale),
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(1, 100),
    st.integers(0, 60),
    st.integers(5, 30),
)
WORKERS = st.tuples(
    st.sampled_from(["fresh", "fresh", "fresh", "stale", "starting", "draining"]),
    st.integers(0, CAPACITY),
    st.sampled_from([0, 0, 500, 3000]),
)
LOOKS = st.tuples(st.sampled_from([5000, 5000, 1000, 0, 40_000]), st.lists(WORKERS, max_size=4))


def history(looks: list[tuple[int, list[tuple[str, int, int]]]]) -> list[tuple[int, list[WorkerSample]]]:
    """Looks at growing times."""
    now_ms, seen = 0, []
    for passed_ms, workers in looks:
        now_ms += passed_ms
        samples = [
            WorkerSample(
                f"w{index}",
                ready=kind in ("fresh", "stale"),
                starting=kind == "starting",
                reserved_tokens=held,
                refused_tokens=refused,
                capacity_tokens=CAPACITY,
                sampled_at_ms=now_ms - (60_000 if kind == "stale" else 0),
            )
            for index, (kind, held, refused) in enumerate(workers)
        ]
        seen.append((now_ms, samples))
    return seen


HISTORIES = st.lists(LOOKS, min_size=1, max_size=15).map(history)


def run(looks: list[tuple[int, list[WorkerSample]]], policy: ScalingPolicy) -> list[tuple[int, Decision]]:
    state, decisions = ScalingState(), []
    for now_ms, samples in looks:
        state, decision = decide(samples, policy, state, now_ms)
        decisions.append((now_ms, decision))
    return decisions


def within(replicas: int, policy: ScalingPolicy) -> int:
    return min(max(replicas, policy.min_replicas), policy.max_replicas)


@given(HISTORIES, POLICIES)
def test_missing_data_never_scales(looks: list[tuple[int, list[WorkerSample]]], policy: ScalingPolicy) -> None:
    for _, decision in run(looks, policy):
        if not decision.metrics_available:
            assert decision.desired == within(decision.current, policy)


@given(HISTORIES, POLICIES)
def test_the_bounds_hold(looks: list[tuple[int, list[WorkerSample]]], policy: ScalingPolicy) -> None:
    for _, decision in run(looks, policy):
        assert policy.min_replicas <= decision.desired <= policy.max_replicas


@given(HISTORIES, POLICIES)
def test_no_replica_is_removed_that_the_load_needed_at_any_look_of_the_delay(
    looks: list[tuple[int, list[WorkerSample]]], policy: ScalingPolicy
) -> None:
    decisions = run(looks, policy)
    for index, (now_ms, decision) in enumerate(decisions):
        if decision.desired >= within(decision.current, policy):
            continue
        since_ms = now_ms - policy.scale_down_delay_seconds * 1000
        assert decision.reason == "ScaleDown"
        assert decisions[0][0] <= since_ms
        for seen_ms, seen in decisions[: index + 1]:
            if seen_ms >= since_ms and seen.metrics_available:
                fits = decision.desired * CAPACITY * policy.target_percent * 9 // 1000
                assert seen.demand_tokens <= fits or decision.desired == policy.max_replicas


@given(HISTORIES, POLICIES)
def test_the_same_look_twice_decides_the_same(
    looks: list[tuple[int, list[WorkerSample]]], policy: ScalingPolicy
) -> None:
    state = ScalingState()
    for now_ms, samples in looks:
        state, decision = decide(samples, policy, state, now_ms)
        assert decide(samples, policy, state, now_ms) == (state, decision)


@given(HISTORIES, POLICIES, st.integers(0, 14))
def test_a_lost_state_only_delays_a_scale_down(
    looks: list[tuple[int, list[WorkerSample]]], policy: ScalingPolicy, lost_at: int
) -> None:
    kept = lost = ScalingState()
    for index, (now_ms, samples) in enumerate(looks):
        if index == lost_at:
            lost = ScalingState()
        kept, with_memory = decide(samples, policy, kept, now_ms)
        lost, without = decide(samples, policy, lost, now_ms)
        assert without.desired >= with_memory.desired
        if without.desired > with_memory.desired:
            assert without.desired == within(without.current, policy)


@given(TOKENS, TOKENS, POLICIES, st.integers(1, 8))
def test_more_demand_never_asks_for_fewer(less: int, more: int, policy: ScalingPolicy, current: int) -> None:
    assume(less <= more)
    desired = [
        decide(
            [WorkerSample("w", ready=True, queued_tokens=tokens, capacity_tokens=CAPACITY, sampled_at_ms=0)],
            policy,
            ScalingState(),
            0,
            current=current,
        )[1].desired
        for tokens in (less, more)
    ]
    assert desired[0] <= desired[1]


@given(HISTORIES, POLICIES)
def test_the_memory_is_bounded(looks: list[tuple[int, list[WorkerSample]]], policy: ScalingPolicy) -> None:
    state = ScalingState()
    for now_ms, samples in looks:
        state, _ = decide(samples, policy, state, now_ms)
        replicas = [peak[1] for peak in state.peaks]
        assert replicas == sorted(set(replicas), reverse=True)
