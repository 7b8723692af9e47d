"""A service under a load trace, simulated: workers take time to start, and what does not fit is refused."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from math import pi, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.scaling import ScalingPolicy, ScalingState, WorkerSample, decide
from support.laws import share

CAPACITY = 20_000
TICK_MS = 5_000


@dataclass
class Service:
    """``load(second)`` tokens are wanted at once; the ready workers share them as far as they have room."""

    load: Callable[[float], float]
    policy: ScalingPolicy
    start_seconds: int = 40
    ready_ms: list[int] = field(default_factory=lambda: [0])
    """When each wanted replica becomes ready."""

    def run(self, seconds: int) -> list[tuple[int, int]]:
        """(second, replicas) of each change."""
        state, changes = ScalingState(), []
        for now_ms in range(0, seconds * 1000, TICK_MS):
            state, decision = decide(self.samples(now_ms), self.policy, state, now_ms, current=len(self.ready_ms))
            if decision.desired != len(self.ready_ms):
                changes.append((now_ms // 1000, decision.desired))
            while len(self.ready_ms) < decision.desired:
                self.ready_ms.append(now_ms + self.start_seconds * 1000)
            del self.ready_ms[decision.desired :]
        return changes

    def samples(self, now_ms: int) -> list[WorkerSample]:
        ready = [index for index, at in enumerate(self.ready_ms) if at <= now_ms]
        wanted = int(self.load(now_ms / 1000))
        samples = []
        for index in range(len(self.ready_ms)):
            if index not in ready:
                samples.append(WorkerSample(f"w{index}", starting=True))
                continue
            share = wanted // len(ready)
            held = min(share, CAPACITY)
            samples.append(
                WorkerSample(
                    f"w{index}",
                    ready=True,
                    reserved_tokens=held,
                    refused_tokens=share - held,
                    capacity_tokens=CAPACITY,
                    sampled_at_ms=now_ms,
                )
            )
        return samples


def policy(delay_seconds: int, max_replicas: int = 8) -> ScalingPolicy:
    return ScalingPolicy(1, max_replicas, target_percent=75, scale_down_delay_seconds=delay_seconds)


def test_the_demo_goes_from_one_to_two_and_back() -> None:
    def load(second: float) -> float:
        return 24_000 if 20 <= second < 100 else 0

    assert Service(load, policy(20, max_replicas=2)).run(300) == [(20, 2), (120, 1)]


def test_a_burst_shorter_than_the_start_of_a_worker_changes_twice() -> None:
    assert Service(lambda second: 30_000 if 60 <= second < 75 else 5000, policy(60)).run(600) == [(60, 2), (135, 1)]


@pytest.mark.parametrize("period_seconds", [20, 60, 240])
def test_a_load_that_swings_faster_than_the_delay_keeps_its_peak(period_seconds: int) -> None:
    def load(second: float) -> float:
        return 40_000 + 30_000 * sin(2 * pi * second / period_seconds)

    replicas = [changed for _, changed in Service(load, policy(300)).run(3600)]
    assert replicas == sorted(replicas)
    assert replicas[-1] == 5  # 70000 ÷ 15000


def test_a_slow_swing_is_followed_once_up_and_once_down() -> None:
    def load(second: float) -> float:
        return 40_000 - 35_000 * (1 if second < 600 or second > 4200 else sin(2 * pi * (second - 600) / 3600 + pi / 2))

    service = Service(load, policy(120))
    replicas = [1, *(changed for _, changed in service.run(6000))]
    turns = sum(
        1
        for before, here, after in zip(replicas, replicas[1:], replicas[2:], strict=False)
        if (here - before) * (after - here) < 0
    )
    assert max(replicas) == 5
    assert replicas[-1] == 1
    assert turns == 1


@pytest.mark.parametrize(("load", "changes"), [(30_000, [(0, 2)]), (38_000, [(0, 3)]), (61_000, [(0, 5)])])
def test_while_workers_start_the_same_demand_asks_for_no_more(load: int, changes: list[tuple[int, int]]) -> None:
    assert Service(lambda second: load, policy(300), start_seconds=240).run(1200) == changes


def test_while_workers_start_a_demand_above_all_of_them_asks_for_more() -> None:
    def load(second: float) -> float:
        return 30_000 if second < 60 else (39_000 if second < 120 else 41_000)

    assert Service(load, policy(300), start_seconds=240).run(900) == [(0, 2), (120, 3)]


@share(0.6)
@given(
    base=st.integers(0, 140_000),
    noise=st.lists(st.integers(0, 100), min_size=1, max_size=50),
    delay_seconds=st.integers(0, 120),
    start_seconds=st.integers(0, 200),
    replicas=st.integers(1, 8),
)
def test_a_load_that_wavers_by_a_tenth_never_flaps(
    base: int, noise: list[int], delay_seconds: int, start_seconds: int, replicas: int
) -> None:
    """Whatever the noise, the delay and the start: no scale-down is ever followed by a scale-up."""

    def load(second: float) -> float:
        return base * (1000 + noise[int(second) // 5 % len(noise)]) / 1000

    service = Service(load, policy(delay_seconds), start_seconds, ready_ms=[0] * replicas)
    sizes = [replicas, *(changed for _, changed in service.run(1200))]
    went_down = False
    for before, after in pairwise(sizes):
        assert not (went_down and after > before)
        went_down = went_down or after < before
