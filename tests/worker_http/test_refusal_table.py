"""Each row of the table of refusals: status, type, code and headers, over HTTP."""

import asyncio
from typing import Any

import httpx
import pytest

from kvbudget_worker.refusals import CODES, Room, budget_full, queue_timeout, seconds
from support.inprocess import InProcess, in_process
from support.scripted import make_plan

RETRY_HEADERS = {"retry-after", "retry-after-ms"}
TOKEN_HEADERS = {"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"}
ALL = RETRY_HEADERS | TOKEN_HEADERS | {"x-should-retry", "x-llm-d-request-dropped-reason", "connection"}


def check(
    response: httpx.Response, status: int, type_: str, code: str | None, headers: set[str], reason: str | None = None
) -> None:
    """Compares everything that a refusal tells, headers that must be absent included."""
    error = response.json()["error"]
    assert response.status_code == status, response.text
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (type_, code)
    assert {name for name in ALL if name in response.headers} == headers
    assert response.headers.get("x-llm-d-request-dropped-reason") == reason
    if "retry-after" in headers:
        ms = int(response.headers["retry-after-ms"])
        assert 1 <= ms <= 120_000
        assert int(response.headers["retry-after"]) == -(-ms // 1000)


async def occupy(worker: InProcess, **fields: Any) -> "asyncio.Task[httpx.Response]":
    """A request that holds its pages until the runner goes on."""
    worker.runner.hold.clear()
    before = worker.engine.ledger.charged_pages
    task = asyncio.create_task(worker.complete(**fields))
    await worker.until(lambda: worker.engine.ledger.charged_pages > before)
    return task


async def test_bad_json_or_field() -> None:
    async with in_process() as worker:
        check(await worker.complete(n="x"), 400, "invalid_request_error", None, set())


async def test_context_exceeded() -> None:
    async with in_process() as worker:
        response = await worker.complete(prompt="x" * 500, max_tokens=100)
        check(response, 400, "invalid_request_error", "context_length_exceeded", {"x-should-retry"})
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["param"] == "max_tokens"


async def test_declared_input_limit() -> None:
    async with in_process(make_plan(max_input_tokens=10)) as worker:
        response = await worker.complete(prompt="x" * 11)
        check(response, 400, "invalid_request_error", "context_length_exceeded", {"x-should-retry"})
    assert response.json()["error"]["param"] == "prompt"


async def test_never_fits_the_budget() -> None:
    """Fits the model's context of 512, but the pool holds 4 pages of 16."""
    async with in_process(make_plan(pages=4)) as worker:
        response = await worker.complete(prompt="x" * 100, max_tokens=10)
        check(response, 400, "invalid_request_error", "request_exceeds_kv_budget", {"x-should-retry"})
        assert worker.engine.ledger.charged_pages == 0
    message = response.json()["error"]["message"]
    assert "112 tokens" in message
    assert "64 in all" in message


async def test_prompts_that_never_fit_together() -> None:
    async with in_process(make_plan(pages=4)) as worker:
        one = await worker.complete(prompt=["x" * 30], max_tokens=10)
        two = await worker.complete(prompt=["x" * 30, "y" * 30], max_tokens=10)
        check(two, 400, "invalid_request_error", "request_exceeds_kv_budget", {"x-should-retry"})
    assert one.status_code == 200


async def test_budget_full_now() -> None:
    async with in_process(make_plan(pages=8)) as worker:
        holder = await occupy(worker, max_tokens=80)
        response = await worker.complete(prompt="x" * 40, max_tokens=10)
        check(
            response,
            429,
            "rate_limit_error",
            "kv_budget_exhausted",
            RETRY_HEADERS | TOKEN_HEADERS | {"x-llm-d-request-dropped-reason"},
            "rejected-saturated",
        )
        worker.runner.hold.set()
        assert (await holder).status_code == 200
        assert (await worker.complete(prompt="x" * 40, max_tokens=10)).status_code == 200
        await worker.until_idle()
    headers = response.headers
    assert headers["x-ratelimit-limit-tokens"] == str(8 * 16)
    assert headers["x-ratelimit-remaining-tokens"] == str(2 * 16)
    assert headers["x-ratelimit-reset-tokens"] == seconds(int(headers["retry-after-ms"]))


async def test_overload_status_503_keeps_the_type() -> None:
    async with in_process(make_plan(pages=8, overload_status=503)) as worker:
        holder = await occupy(worker, max_tokens=80)
        response = await worker.complete(prompt="x" * 40, max_tokens=10)
        check(
            response,
            503,
            "rate_limit_error",
            "kv_budget_exhausted",
            RETRY_HEADERS | TOKEN_HEADERS | {"x-llm-d-request-dropped-reason"},
            "rejected-saturated",
        )
        worker.runner.hold.set()
        await holder


async def test_queued_past_its_deadline() -> None:
    async with in_process(make_plan(pages=8, queue_tokens=1000, queue_max_wait_seconds=0)) as worker:
        holder = await occupy(worker, max_tokens=80)
        response = await worker.complete(prompt="x" * 40, max_tokens=10)
        check(
            response,
            429,
            "rate_limit_error",
            "queue_timeout",
            RETRY_HEADERS | TOKEN_HEADERS | {"x-llm-d-request-dropped-reason"},
            "rejected-ttl-expired",
        )
        assert worker.engine.gate.queued_tokens == 0
        worker.runner.hold.set()
        await holder
        await worker.until_idle()


async def test_loading() -> None:
    async with in_process(loaded=False) as worker:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            response = await worker.client.post(path, json={"prompt": "x"})
            check(response, 503, "service_unavailable", "loading", RETRY_HEADERS)
        assert (await worker.client.get("/ready")).status_code == 503
        assert (await worker.client.get("/health")).status_code == 503
        assert (await worker.client.get("/live")).status_code == 200
        assert (await worker.client.get("/metrics")).status_code == 200
        assert (await worker.client.get("/v1/models")).status_code == 200


async def test_draining() -> None:
    async with in_process() as worker:
        holder = await occupy(worker, max_tokens=5)
        drained = asyncio.create_task(worker.lifecycle.drain(60, worker.service.observer))
        await worker.until(lambda: worker.lifecycle.phase.value == "draining")
        response = await worker.complete()
        check(
            response,
            503,
            "service_unavailable",
            "draining",
            RETRY_HEADERS | {"connection", "x-llm-d-request-dropped-reason"},
            "rejected-shutting-down",
        )
        assert response.headers["connection"] == "close"
        assert (await worker.client.get("/ready")).status_code == 503
        assert (await worker.client.get("/health")).status_code == 200
        assert (await worker.client.get("/live")).status_code == 200
        worker.runner.hold.set()
        assert (await holder).json()["choices"][0]["text"] == "abcde"
        assert await drained == 0


async def test_engine_dead() -> None:
    async with in_process(fail_at=0) as worker:
        first = await worker.complete()
        second = await worker.complete()
        for response in (first, second):
            check(response, 503, "service_unavailable", "engine_dead", RETRY_HEADERS)
        for path in ("/ready", "/health", "/live"):
            check(await worker.client.get(path), 503, "service_unavailable", "engine_dead", RETRY_HEADERS)


async def test_unknown_model() -> None:
    async with in_process() as worker:
        for response in (
            await worker.complete(model="other"),
            await worker.client.get("/v1/models/other"),
            await worker.client.post("/tokenize", json={"model": "other", "prompt": "x"}),
        ):
            check(response, 404, "invalid_request_error", "model_not_found", set())
        assert (await worker.complete(model=None, max_tokens=1)).status_code == 200


async def test_every_refusal_is_counted_by_its_reason() -> None:
    async with in_process(make_plan(pages=8)) as worker:
        await worker.complete(n="x")
        await worker.complete(model="other")
        await worker.complete(prompt="x" * 600)
        await worker.complete(prompt="x" * 200)
        text = (await worker.client.get("/metrics")).text
    counted = {
        line.split('reason="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("vllm:admission_rejections_total{")
    }
    assert set(counted) == set(CODES)
    assert {reason for reason, count in counted.items() if count} == {
        "invalid_request",
        "model_not_found",
        "context_length_exceeded",
        "request_exceeds_kv_budget",
    }


@pytest.mark.parametrize(("ms", "text"), [(1, "0.001s"), (1500, "1.5s"), (2000, "2s"), (120_000, "120s")])
def test_durations(ms: int, text: str) -> None:
    assert seconds(ms) == text


@pytest.mark.parametrize(("ms", "whole"), [(1, "1"), (1000, "1"), (1001, "2"), (500_000, "120")])
def test_retry_after_is_rounded_up_and_never_above_two_minutes(ms: int, whole: str) -> None:
    for refusal in (budget_full(429, 10, Room(10, 0, ms)), queue_timeout(429, 5, 10, Room(10, 0, ms))):
        assert dict(refusal.headers)["retry-after"] == whole
