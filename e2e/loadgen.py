"""A small, bounded load generator for OpenAI routes: it believes Retry-After, and it counts honestly.

An attempt that is answered 200 was *admitted*; from then on anything but a whole stream is a loss, never retried.
An attempt that is answered 429 was *refused*; without the headers of a refusal it counts as an error instead.
Where nobody listens yet, or a worker says 503, the service was *unavailable*: tried again, and counted.

    python e2e/loadgen.py http://127.0.0.1:8000 --model smollm2 --requests 60 --concurrency 60
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Protocol

import httpx

UNAVAILABLE_WAIT_S = 0.5
REFUSAL_HEADERS = (
    "retry-after",
    "retry-after-ms",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
)


class Request(Protocol):
    """What is sent, and how many tokens a whole answer has (None: as many as the model likes)."""

    @property
    def exact_tokens(self) -> int | None: ...

    def call(self) -> tuple[str, dict[str, object]]:
        """Path and body, without the model's name and the options that every request has."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A completion: ``prompt_tokens`` in, exactly ``output_tokens`` out."""

    prompt_tokens: int
    output_tokens: int
    seed: int = 0

    @property
    def exact_tokens(self) -> int:
        return self.output_tokens

    def prompt(self) -> list[int]:
        """Token ids that any vocabulary has. No other seed shares a prefix with them, so that the prefix cache does not
        flatter the numbers."""
        choose = random.Random(self.seed)
        return [choose.randrange(10, 250) for _ in range(self.prompt_tokens)]

    def call(self) -> tuple[str, dict[str, object]]:
        return "/v1/completions", {"prompt": self.prompt(), "max_tokens": self.output_tokens, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Question:
    """A chat that ends when the model has answered, at the latest after ``max_tokens``; all of them are reserved."""

    text: str
    max_tokens: int

    @property
    def exact_tokens(self) -> None:
        return None

    def call(self) -> tuple[str, dict[str, object]]:
        messages = [{"role": "user", "content": self.text}]
        return "/v1/chat/completions", {"messages": messages, "max_tokens": self.max_tokens}


@dataclass(slots=True)
class Outcome:
    """What became of one request. ``refusals`` are its 429 answers, each with the milliseconds it was told to wait."""

    job: Request
    refusals: list[int] = field(default_factory=list)
    unavailable: int = 0
    admitted: bool = False
    complete: bool = False
    error: str = ""
    tokens: int = 0
    ttft_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    outcomes: tuple[Outcome, ...]
    seconds: float

    @property
    def complete(self) -> int:
        """Jobs whose whole stream arrived."""
        return sum(o.complete for o in self.outcomes)

    @property
    def admitted_at_once(self) -> int:
        """Jobs that were never refused."""
        return sum(o.admitted and not o.refusals for o in self.outcomes)

    @property
    def refused(self) -> int:
        """Jobs that were refused at least once."""
        return sum(bool(o.refusals) for o in self.outcomes)

    @property
    def refusals(self) -> list[int]:
        """Every Retry-After that was given, in milliseconds."""
        return [ms for o in self.outcomes for ms in o.refusals]

    @property
    def lost(self) -> tuple[Outcome, ...]:
        """Admitted, and not complete: this must be empty."""
        return tuple(o for o in self.outcomes if o.admitted and not o.complete)

    @property
    def errors(self) -> tuple[Outcome, ...]:
        """Neither complete nor merely refused."""
        return tuple(o for o in self.outcomes if o.error)

    @property
    def unavailable(self) -> int:
        """Attempts that found nobody listening, or a worker that was loading or draining."""
        return sum(o.unavailable for o in self.outcomes)

    @property
    def tokens(self) -> int:
        return sum(o.tokens for o in self.outcomes)

    def lines(self) -> Iterator[str]:
        """The report as text."""
        yield (
            f"{len(self.outcomes)} requests in {self.seconds:.1f} s: {self.complete} complete, "
            f"{self.admitted_at_once} of them admitted at the first try"
        )
        if self.refusals:
            yield (
                f"{self.refused} requests were refused {len(self.refusals)} times with 429; Retry-After from "
                f"{min(self.refusals) / 1000:.1f} to {max(self.refusals) / 1000:.1f} s"
            )
        if first := [o.ttft_ms for o in self.outcomes if o.complete]:
            yield (
                f"{self.tokens} tokens, {self.tokens / self.seconds:.0f} tokens/s; "
                f"time to first token (median) {statistics.median(first):.0f} ms"
            )
        if self.unavailable:
            yield f"{self.unavailable} attempts found no worker that was ready"
        yield f"admitted and lost: {len(self.lost)}; errors: {len(self.errors)}"
        for error in sorted({o.error for o in self.errors}):
            yield f"  {error}"


def mixed_jobs(seed: int = 7) -> Iterator[Job]:
    """Requests of mixed length without end: half short, a third medium, the rest long."""
    kinds = (Job(24, 48), Job(120, 160), Job(24, 48), Job(120, 160), Job(24, 48), Job(600, 512))
    for number in count():
        kind = kinds[number % len(kinds)]
        yield Job(kind.prompt_tokens, kind.output_tokens, seed * 1_000_003 + number)


async def run_load(
    url: str,
    model: str,
    jobs: Iterable[Request],
    *,
    concurrency: int,
    deadline_s: float,
    retry: bool = True,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Report:
    """Sends every job, at most ``concurrency`` at once, each on a connection of its own, so that a Service spreads
    them. Nothing starts after ``deadline_s`` seconds, and nothing waits longer than that for one byte."""
    ends = time.monotonic() + deadline_s
    shared = iter(jobs)
    outcomes: list[Outcome] = []
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=0)
    timeout = httpx.Timeout(deadline_s, connect=10)
    started = time.monotonic()
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=timeout, trust_env=False) as client:

        async def take_jobs() -> None:
            for job in shared:
                if time.monotonic() > ends:
                    return
                outcome = Outcome(job)
                while (wait_s := await _attempt(client, model, outcome)) is not None:
                    if not retry or time.monotonic() + wait_s > ends:
                        break
                    await asyncio.sleep(wait_s)
                outcomes.append(outcome)
                if on_outcome is not None:
                    on_outcome(outcome)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(take_jobs())
    return Report(tuple(outcomes), time.monotonic() - started)


async def _attempt(client: httpx.AsyncClient, model: str, outcome: Outcome) -> float | None:
    """One attempt. Returns the seconds after which to try again, or None where that has no sense."""
    path, body = outcome.job.call()
    body |= {"model": model, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    sent = time.monotonic()
    try:
        async with client.stream("POST", path, json=body) as response:
            if response.status_code == httpx.codes.OK:
                outcome.admitted = True
                await _read(response, outcome, sent)
                return None
            text = (await response.aread()).decode(errors="replace")
            if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
                return _refusal(response, outcome)
            if response.status_code == httpx.codes.SERVICE_UNAVAILABLE and "retry-after" in response.headers:
                outcome.unavailable += 1
                return min(float(response.headers["retry-after"]), 2.0)
            outcome.error = f"HTTP {response.status_code}: {text[:200]}"
    except (httpx.ConnectError, httpx.ConnectTimeout):
        outcome.unavailable += 1
        return UNAVAILABLE_WAIT_S
    except httpx.HTTPError as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return None


def _refusal(response: httpx.Response, outcome: Outcome) -> float | None:
    if missing := [name for name in REFUSAL_HEADERS if name not in response.headers]:
        outcome.error = f"429 without {', '.join(missing)}"
        return None
    wait_ms = int(response.headers["retry-after-ms"])
    outcome.refusals.append(wait_ms)
    return wait_ms / 1000


async def _read(response: httpx.Response, outcome: Outcome, sent: float) -> None:
    """Reads the stream to its end. Complete means: a finish reason, the usage that was asked for, and [DONE]."""
    finished = False
    async for line in response.aiter_lines():
        if line.startswith("event: error"):
            outcome.error = "the stream ended with an error event"
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            is_whole = outcome.tokens == (outcome.job.exact_tokens or outcome.tokens) > 0
            outcome.complete = finished and is_whole and not outcome.error
            break
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            outcome.error = str(chunk["error"].get("message", chunk["error"]))[:200]
            continue
        for choice in chunk.get("choices", []):
            outcome.ttft_ms = outcome.ttft_ms or (time.monotonic() - sent) * 1000
            finished = finished or choice.get("finish_reason") is not None
        if usage := chunk.get("usage"):
            outcome.tokens = usage["completion_tokens"]
    if not outcome.complete and not outcome.error:
        outcome.error = f"the stream ended early: finished={finished}, {outcome.tokens} tokens"


class Load:
    """A load that runs beside the caller, in a thread of its own. ``stop()`` ends it after the requests under way."""

    def __init__(self, url: str, model: str, jobs: Iterable[Request], *, concurrency: int, deadline_s: float) -> None:
        self.done: list[Outcome] = []
        """Outcomes so far."""
        self._stop = threading.Event()
        self._report: Report | None = None
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._limit_s = 2 * deadline_s + 30

        def until_stopped() -> Iterator[Request]:
            for job in jobs:
                if self._stop.is_set():
                    return
                yield job

        async def main() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            self._report = await run_load(
                url, model, until_stopped(), concurrency=concurrency, deadline_s=deadline_s, on_outcome=self.done.append
            )

        def work() -> None:
            try:
                asyncio.run(main())
            except asyncio.CancelledError:
                pass
            except Exception as error:  # noqa: BLE001 - told to the caller in report()
                self._failure = error

        self._thread = threading.Thread(target=work, name="load", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """No more jobs; those that run go on to their end."""
        self._stop.set()

    def cancel(self) -> None:
        """Hangs up at once."""
        self._stop.set()
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop has just ended by itself
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(self._limit_s)

    def report(self) -> Report:
        """Waits for the end and returns the report. Raises what the load raised."""
        self._thread.join(self._limit_s)
        if self._failure is not None:
            raise self._failure
        if self._report is None:
            raise TimeoutError(f"the load did not end within {self._limit_s:.0f} s")
        return self._report


def run_to_end(url: str, model: str, jobs: Iterable[Request], *, concurrency: int, deadline_s: float = 300) -> Report:
    """:func:`run_load` for callers that are not asynchronous."""
    return asyncio.run(run_load(url, model, jobs, concurrency=concurrency, deadline_s=deadline_s))


@contextmanager
def load(url: str, model: str, jobs: Iterable[Request], *, concurrency: int, deadline_s: float = 300) -> Iterator[Load]:
    """A :class:`Load` that is stopped and has ended when the block is left; an exception there hangs up at once."""
    running = Load(url, model, jobs, concurrency=concurrency, deadline_s=deadline_s)
    try:
        yield running
    except BaseException:
        running.cancel()
        raise
    running.stop()
    running.report()


def main() -> int:
    """Exit code 0: every request was completed."""
    parser = argparse.ArgumentParser(description="Load on the OpenAI completions route; believes Retry-After.")
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--concurrency", type=int, default=60)
    parser.add_argument("--deadline", type=float, default=300, help="seconds")
    options = parser.parse_args()
    report = asyncio.run(
        run_load(
            options.url,
            options.model,
            islice(mixed_jobs(), options.requests),
            concurrency=options.concurrency,
            deadline_s=options.deadline,
        )
    )
    print("\n".join(report.lines()))
    return 0 if report.complete == options.requests else 1


if __name__ == "__main__":
    sys.exit(main())
