"""The worker's whole HTTP surface inside the test's event loop, over ASGI."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from kvbudget.plan import Plan
from kvbudget_worker.device_thread import DeviceThread
from kvbudget_worker.engine import Engine
from kvbudget_worker.http.app import build_app
from kvbudget_worker.http.service import Service
from kvbudget_worker.lifecycle import Lifecycle
from kvbudget_worker.metrics import Exposition
from support.scripted import ALPHABET, EOS, ScriptedRunner, byte_tokenizer, make_plan, measured


@dataclass
class InProcess:
    """A worker, and a client of it."""

    plan: Plan
    runner: ScriptedRunner
    lifecycle: Lifecycle
    service: Service
    client: httpx.AsyncClient
    engine: Engine
    running: asyncio.Task[None]

    async def complete(self, **fields: Any) -> httpx.Response:
        body = {"model": self.plan.model.name, "prompt": "hello", **fields}
        return await self.client.post("/v1/completions", json=body)

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": self.plan.model.name, "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def until(self, condition: Any) -> None:
        """Waits for a condition of the worker's state; TimeoutError if it does not come true."""
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 (any condition, not one event)
                await asyncio.sleep(0.001)

    async def until_idle(self) -> None:
        """Waits until nothing is live, then checks that every page is back."""
        await self.until(lambda: self.engine.idle and not self.lifecycle.requests)
        assert self.engine.ledger.charged_pages == 0


@asynccontextmanager
async def in_process(
    plan: Plan | None = None, script: Sequence[int] | str = ALPHABET, *, loaded: bool = True, **runner_options: Any
) -> AsyncIterator[InProcess]:
    """A worker that serves ``script``; ``loaded=False``: its model is still being loaded."""
    plan = plan or make_plan()
    lifecycle = Lifecycle()
    service = Service(plan, lifecycle)
    # Every scrape shows what is true now.
    service.exposition = Exposition(service.metrics, service.refresh, max_age=0, histogram_max_age=0)
    thread = DeviceThread()
    runner = ScriptedRunner(script, pages=plan.kv.pages, **runner_options)
    tokenizer = byte_tokenizer()
    engine = Engine(plan, runner, tokenizer, thread, service.observer)
    if loaded:
        service.measured(measured(plan))
        service.ready(engine, tokenizer, (EOS,))
    running = asyncio.create_task(engine.run())
    transport = httpx.ASGITransport(build_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=60) as client:
        try:
            yield InProcess(plan, runner, lifecycle, service, client, engine, running)
        finally:
            runner.hold.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert thread.close(10)
