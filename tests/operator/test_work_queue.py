"""The work queue in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import looptime
import pytest

from kvbudget_operator.client import ApiError
from kvbudget_operator.queue import Backoff, WorkQueue


class Seen:
    """Observer, and what the reconcile function saw."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str]] = []
        self.errors = 0
        self.active = 0
        self.most_active: dict[str, int] = {}

    def depth(self, keys: int) -> None:
        assert keys >= 0

    def done(self, seconds: float, error: bool) -> None:
        self.errors += error

    def wrap(self, work: Callable[[str], Awaitable[float | None]]) -> Callable[[str], Awaitable[float | None]]:
        running: dict[str, int] = {}

        async def reconcile(key: str) -> float | None:
            self.calls.append((asyncio.get_running_loop().time(), key))
            running[key] = running.get(key, 0) + 1
            self.most_active[key] = max(self.most_active.get(key, 0), running[key])
            try:
                return await work(key)
            finally:
                running[key] -= 1

        return reconcile


async def nothing(_: str) -> float | None:
    return None


async def slow(_: str) -> float | None:
    await asyncio.sleep(10)
    return None


async def fails(_: str) -> float | None:
    raise ValueError("broken")


def run(
    work: Callable[[str], Awaitable[float | None]],
    script: Callable[[WorkQueue[str], Seen], Coroutine[Any, Any, None]],
    *,
    workers: int = 2,
) -> Seen:
    """Runs ``script`` beside the queue in virtual time that starts at 0."""
    seen = Seen()

    async def main() -> None:
        queue = WorkQueue(seen.wrap(work), workers=workers, observer=seen, backoff=Backoff(1.0, 8.0))
        running = asyncio.create_task(queue.run())
        await script(queue, seen)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    loop = looptime.new_event_loop(start=0)
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    return seen


def test_a_key_added_often_is_reconciled_once() -> None:
    async def script(queue: WorkQueue[str], _: Seen) -> None:
        for _unused in range(5):
            queue.add("a")
        queue.add("b")
        await asyncio.sleep(1)

    assert [key for _, key in run(nothing, script).calls] == ["a", "b"]


def test_a_key_added_while_it_is_reconciled_is_reconciled_again_afterwards_never_beside() -> None:
    async def script(queue: WorkQueue[str], _: Seen) -> None:
        queue.add("a")
        await asyncio.sleep(3)
        queue.add("a")
        queue.add("a")
        await asyncio.sleep(50)

    seen = run(slow, script)
    assert seen.calls == [(0, "a"), (10, "a")]
    assert seen.most_active == {"a": 1}


def test_workers_take_different_keys_at_the_same_time() -> None:
    async def script(queue: WorkQueue[str], _: Seen) -> None:
        for key in "abc":
            queue.add(key)
        await asyncio.sleep(50)

    assert run(slow, script).calls == [(0, "a"), (0, "b"), (10, "c")]


def test_a_failing_key_backs_off_exponentially_up_to_the_longest_delay() -> None:
    async def script(queue: WorkQueue[str], _: Seen) -> None:
        queue.add("a")
        await asyncio.sleep(30)

    seen = run(fails, script)
    assert [time for time, _ in seen.calls] == [0, 1, 3, 7, 15, 23]
    assert seen.errors == 6


def test_an_error_of_the_cluster_is_one_line_and_a_bug_of_ours_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = iter([ApiError(403, "Forbidden", "not allowed", "apply it"), ValueError("broken")])

    async def work(_: str) -> float | None:
        raise next(outcomes)

    async def script(queue: WorkQueue[str], _: Seen) -> None:
        queue.add("a")
        await asyncio.sleep(1.5)

    run(work, script)
    refused, bug = caplog.records
    assert "apply it: 403 Forbidden: not allowed" in refused.getMessage()
    assert not refused.exc_info
    assert bug.exc_info


def test_success_forgets_earlier_failures() -> None:
    outcomes = iter([ValueError("one"), ValueError("two"), None, ValueError("three"), None])

    async def work(_: str) -> float | None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome
        return None

    async def script(queue: WorkQueue[str], _: Seen) -> None:
        queue.add("a")
        await asyncio.sleep(10)
        queue.add("a")
        await asyncio.sleep(10)

    assert [time for time, _ in run(work, script).calls] == [0, 1, 3, 10, 11]


def test_an_event_cuts_a_backoff_short_and_drops_the_later_try() -> None:
    outcomes = iter([ValueError("one"), ValueError("two"), ValueError("three")])

    async def work(_: str) -> float | None:
        raise next(outcomes, ValueError("more"))

    async def script(queue: WorkQueue[str], _: Seen) -> None:
        queue.add("a")
        await asyncio.sleep(1.5)  # failed at 0 and 1, the next try is due at 3
        queue.add("a")
        await asyncio.sleep(2)

    assert [time for time, _ in run(work, script).calls] == [0, 1, 1.5]


def test_a_returned_delay_repeats_the_key() -> None:
    async def again(_: str) -> float | None:
        return 4.0

    async def script(queue: WorkQueue[str], _: Seen) -> None:
        queue.add("a")
        await asyncio.sleep(9)

    assert [time for time, _ in run(again, script).calls] == [0, 4, 8]


def test_the_earlier_of_two_delays_holds() -> None:
    async def script(queue: WorkQueue[str], _: Seen) -> None:
        queue.add_after("a", 5)
        queue.add_after("a", 2)
        queue.add_after("a", 9)
        await asyncio.sleep(20)

    assert run(nothing, script).calls == [(2, "a")]


def test_resync_adds_every_key_again_and_again() -> None:
    async def script(queue: WorkQueue[str], _: Seen) -> None:
        task = asyncio.create_task(queue.resync(lambda: ["a", "b"], 100))
        await asyncio.sleep(250)
        task.cancel()

    assert run(nothing, script).calls == [(100, "a"), (100, "b"), (200, "a"), (200, "b")]


@pytest.mark.parametrize("workers", [1, 3])
def test_nothing_is_kept_of_keys_that_are_done(workers: int) -> None:
    async def script(queue: WorkQueue[str], _: Seen) -> None:
        for number in range(5000):
            queue.add(str(number))
        await asyncio.sleep(1)
        kept = (queue._waiting, queue._active, queue._dirty, queue._timers, queue._failures)
        assert not any(kept)

    assert len(run(nothing, script, workers=workers).calls) == 5000
