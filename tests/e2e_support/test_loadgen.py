"""The load generator tells a whole answer from a lost one: else a passing end-to-end test proves nothing."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from loadgen import Job, Load, Report, load, mixed_jobs, run_load

JOB = Job(prompt_tokens=4, output_tokens=2)
REFUSAL = {
    "Retry-After": "1",
    "retry-after-ms": "10",
    "x-ratelimit-limit-tokens": "100",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-tokens": "0.01s",
}
TOKENS = [{"choices": [{"text": "a", "finish_reason": None}]}, {"choices": [{"text": "b", "finish_reason": "length"}]}]
USAGE = {"choices": [], "usage": {"completion_tokens": 2}}

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def events(*chunks: object) -> bytes:
    return b"".join(b"data: " + (c if isinstance(c, bytes) else json.dumps(c).encode()) + b"\n\n" for c in chunks)


WHOLE = events(*TOKENS, USAGE, b"[DONE]")


def text(body: bytes) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="text/event-stream")

    return answer


def status(code: int, headers: dict[str, str] | None = None) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, headers=headers)

    return answer


async def cut(request: web.Request) -> web.StreamResponse:
    """Breaks off in the middle, as a killed worker does."""
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(events(TOKENS[0]))
    assert request.transport is not None
    request.transport.close()
    return response


@asynccontextmanager
async def served(*answers: Answer) -> AsyncIterator[str]:
    """The URL of a server that gives these answers in turn, the last one for ever."""
    left = list(answers)

    async def handle(request: web.Request) -> web.StreamResponse:
        return await (left.pop(0) if len(left) > 1 else left[0])(request)

    app = web.Application()
    app.add_routes([web.post("/v1/completions", handle)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def one(*answers: Answer) -> Report:
    async with served(*answers) as url:
        return await run_load(url, "m", [JOB], concurrency=1, deadline_s=20)


async def test_a_whole_stream_is_complete() -> None:
    report = await one(text(WHOLE))
    assert (report.complete, report.admitted_at_once, report.lost, report.errors, report.tokens) == (1, 1, (), (), 2)


async def test_a_refused_request_comes_back_after_retry_after() -> None:
    report = await one(status(429, REFUSAL), status(429, REFUSAL), text(WHOLE))
    assert (report.complete, report.admitted_at_once, report.refused, report.refusals) == (1, 0, 1, [10, 10])
    assert report.errors == ()


async def test_a_refusal_without_its_headers_is_an_error() -> None:
    report = await one(status(429, {"Retry-After": "1"}))
    assert report.refused == 0
    assert "429 without retry-after-ms" in report.errors[0].error


async def test_a_draining_worker_is_tried_again_and_counted() -> None:
    report = await one(status(503, {"Retry-After": "0"}), text(WHOLE))
    assert (report.complete, report.unavailable, report.errors) == (1, 1, ())


async def test_a_stream_that_breaks_off_is_lost_and_never_tried_again() -> None:
    report = await one(cut, text(WHOLE))
    assert (report.complete, len(report.lost), len(report.errors)) == (0, 1, 1)


async def test_streams_that_only_look_whole_are_lost() -> None:
    too_short = {"choices": [], "usage": {"completion_tokens": 1}}
    for body in (
        events(*TOKENS, USAGE),
        events(TOKENS[0], USAGE, b"[DONE]"),
        events(*TOKENS, b"[DONE]"),
        events(*TOKENS, too_short, b"[DONE]"),
        b"event: error\n" + events({"error": {"message": "drained"}}) + WHOLE,
    ):
        report = await one(text(body))
        assert len(report.lost) == 1, body
        assert report.errors, body


async def test_another_status_is_an_error_and_not_a_loss() -> None:
    report = await one(status(500))
    assert (len(report.errors), report.lost) == (1, ())


async def test_a_port_on_which_nobody_listens_is_unavailable_until_the_deadline() -> None:
    report = await run_load("http://127.0.0.1:9", "m", [JOB], concurrency=1, deadline_s=1)
    assert report.unavailable >= 1
    assert (report.complete, report.errors, report.lost) == (0, (), ())


def test_mixed_jobs_are_half_short_and_never_the_same() -> None:
    jobs = [job for job, _ in zip(mixed_jobs(), range(60), strict=False)]
    assert sum(job.output_tokens < 100 for job in jobs) == 30
    assert len({tuple(job.prompt()) for job in jobs}) == 60


def test_leaving_the_block_with_an_error_hangs_up_at_once() -> None:
    seen: list[Load] = []
    try:
        with load("http://127.0.0.1:9", "m", mixed_jobs(), concurrency=2, deadline_s=600) as running:
            seen.append(running)
            raise KeyError
    except KeyError:
        pass
    assert not seen[0].running
