"""Random concurrent traffic: the pool never overflows, everybody is answered, and every page comes back."""

import asyncio
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from support.inprocess import InProcess, in_process
from support.laws import share
from support.scripted import make_plan

REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.one_of(
                st.sampled_from(["a" * 40, "a" * 60 + "b", "c" * 20]),
                st.lists(st.sampled_from(["d" * 17, "a" * 40]), min_size=1, max_size=3),
                st.lists(st.integers(0, 255), min_size=1, max_size=70),
            ),
            "max_tokens": st.integers(1, 60),
            "n": st.integers(1, 3),
            "stop": st.sampled_from([None, "cd", ["xyz", "ef"]]),
            "stream": st.booleans(),
            "leaves_after_ms": st.sampled_from([None, None, 0, 1, 5, 20]),
            "comes_after_ms": st.integers(0, 10),
        }
    ),
    min_size=1,
    max_size=14,
)


async def client(worker: InProcess, fields: dict[str, Any]) -> int | None:
    """One client; returns the status it saw, None if it went away first."""
    leaves, comes = fields.pop("leaves_after_ms"), fields.pop("comes_after_ms")
    await asyncio.sleep(comes / 1000)
    request = asyncio.ensure_future(worker.complete(**fields))
    done, _ = await asyncio.wait({request}, timeout=None if leaves is None else leaves / 1000)
    if not done:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        return None
    response: httpx.Response = request.result()
    return response.status_code


async def play(requests: list[dict[str, Any]], queue_tokens: int, fail_at: int | None) -> None:
    plan = make_plan(pages=12, queue_tokens=queue_tokens, queue_max_wait_seconds=1, max_sequences=6)
    async with in_process(plan, step_ms=0.2, fail_at=fail_at) as worker:
        engine = worker.engine

        async def watch() -> None:
            while True:
                snapshot = engine.ledger.snapshot()
                assert 0 <= snapshot.charged_pages <= snapshot.capacity_pages
                assert snapshot.bound_pages <= snapshot.charged_pages
                await asyncio.sleep(0)

        watcher = asyncio.ensure_future(watch())
        statuses = await asyncio.gather(*(client(worker, dict(fields)) for fields in requests))
        await worker.until(lambda: engine.death is not None or engine.idle)
        assert not watcher.done()
        watcher.cancel()
        assert set(statuses) <= {None, 200, 400, 429, 503}
        if engine.death is None:
            assert 503 not in statuses
        await worker.until(lambda: not worker.lifecycle.requests)
        assert engine.ledger.snapshot().requests == 0
        assert engine.ledger.charged_pages == 0
        assert engine.gate.queued_tokens == 0
        assert not engine._live
        assert not engine._holding


@share(0.6)
@given(requests=REQUESTS, queue_tokens=st.sampled_from([0, 100, 2000]))
def test_pool_never_overflows_and_returns_to_zero(requests: list[dict[str, Any]], queue_tokens: int) -> None:
    asyncio.run(play(requests, queue_tokens, None))


@share(0.25)
@given(requests=REQUESTS, fail_at=st.integers(0, 30))
def test_an_engine_that_dies_still_gives_everything_back(requests: list[dict[str, Any]], fail_at: int) -> None:
    asyncio.run(play(requests, 2000, fail_at))
