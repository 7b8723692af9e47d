"""The engine without HTTP: who is admitted when, and that each end of a request gives its pages back once."""

import asyncio
from typing import Any

import pytest

from kvbudget_worker.device_thread import DeviceThread
from kvbudget_worker.engine import Engine, monotonic_ms, page_pool
from kvbudget_worker.gate import Ask
from kvbudget_worker.generation import TextRules
from kvbudget_worker.http.service import Service
from kvbudget_worker.lifecycle import Lifecycle
from kvbudget_worker.refusals import Refused
from kvbudget_worker.requests import Request
from support.inprocess import in_process
from support.scripted import ALPHABET, ScriptedRunner, byte_tokenizer, make_plan


def make_engine(**limits: Any) -> Engine:
    """An engine that computes nothing: nobody runs its loop."""
    plan = make_plan(pages=8, **limits)
    service = Service(plan, Lifecycle())
    return Engine(plan, ScriptedRunner(ALPHABET, pages=8), byte_tokenizer(), DeviceThread(), service.observer)


def ask(name: str, output: int = 90) -> Ask:
    return Ask(name, (Request(f"{name}-0", (1, 2, 3), output),), monotonic_ms())


def test_the_prefix_cache_of_another_model_or_precision_has_other_roots() -> None:
    """Bug family 34: pages of one precision must never be found as those of another."""
    plan = make_plan(pages=8)
    others = [
        plan.model_copy(update={"kv": plan.kv.model_copy(update={"precision": "INT8"})}),
        plan.model_copy(update={"model": plan.model.model_copy(update={"name": "other"})}),
        plan.model_copy(update={"model": plan.model.model_copy(update={"weight_precision": "FP16"})}),
    ]
    assert len({page_pool(each).root() for each in (plan, *others)}) == 4


async def test_a_release_admits_who_waits_even_if_nothing_is_computed() -> None:
    """The first request is cancelled before its first step, so no step will ever end to look at the queue."""
    engine = make_engine(queue_tokens=1000)
    entered = asyncio.Event()

    async def second() -> None:
        async with engine.generate(ask("second"), TextRules()):
            entered.set()

    async with engine.generate(ask("first"), TextRules()):
        waiter = asyncio.create_task(second())
        await asyncio.sleep(0)
        assert engine.gate.waiting == 1
    await asyncio.wait_for(entered.wait(), 10)
    await waiter
    assert engine.idle
    assert engine.ledger.charged_pages == 0


async def test_a_cancellation_at_the_moment_of_admission_releases() -> None:
    engine = make_engine(queue_tokens=1000)

    async def second() -> None:
        async with engine.generate(ask("second"), TextRules()):
            await asyncio.Event().wait()

    async with engine.generate(ask("first"), TextRules()):
        waiter = asyncio.create_task(second())
        await asyncio.sleep(0)
    # Admitted by the release above, and not yet awake.
    assert engine.ledger.charged_pages
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert engine.idle
    assert engine.ledger.charged_pages == 0


async def test_an_error_in_the_handler_releases() -> None:
    engine = make_engine()
    with pytest.raises(ZeroDivisionError):
        async with engine.generate(ask("first"), TextRules()):
            raise ZeroDivisionError
    assert engine.ledger.charged_pages == 0


async def test_two_live_requests_may_carry_the_same_id_of_a_client() -> None:
    async with in_process() as worker:
        headers = {"x-request-id": "same"}
        body = {"prompt": "x", "max_tokens": 20}
        both = [worker.client.post("/v1/completions", json=body, headers=headers) for _ in range(3)]
        assert [r.status_code for r in await asyncio.gather(*both)] == [200] * 3
        await worker.until_idle()


async def test_a_request_whose_text_cannot_be_made_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process(step_ms=1) as worker:
        good = asyncio.create_task(worker.complete(max_tokens=26))
        bad = asyncio.create_task(worker.complete(max_tokens=26))
        await worker.until(lambda: len(worker.engine._live) == 2)
        generation = list(worker.engine._live.values())[1]

        def broken(*_: object) -> bool:
            raise ValueError("no such character")

        monkeypatch.setattr(generation, "feed", broken)
        responses = await asyncio.gather(good, bad)
        await worker.until_idle()
        assert worker.engine.death is None
    assert sorted(r.status_code for r in responses) == [200, 500]
    assert [r.json()["error"]["code"] for r in responses if r.status_code == 500] == ["internal_error"]


async def test_a_dead_engine_takes_nobody() -> None:
    engine = make_engine()
    engine.death = "it broke"
    with pytest.raises(Refused, match="it broke"):
        async with engine.generate(ask("late"), TextRules()):
            pass


async def test_the_device_thread_hands_errors_over_and_survives_them() -> None:
    thread = DeviceThread()

    def fail() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError):
        await thread.run(fail)
    assert await thread.run(lambda: 3) == 3
    assert thread.close(10)
