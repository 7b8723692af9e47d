"""Reading workers: the text, and a real server on loopback that misbehaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from kvbudget_operator.scrape import MAX_BYTES, Reading, Scraper, parse, target

TEXT = """# HELP kvbudget_kv_tokens x
# TYPE kvbudget_kv_tokens gauge
kvbudget_kv_tokens{model_name="a} 7"} 20480
kvbudget_kv_tokens_reserved{model_name="m"} 1.2e+03
kvbudget_queued_tokens{model_name="m"} 5.0
kvbudget_refused_demand_tokens{model_name="m"} 6 1700000000000
kvbudget_measured_pages{model_name="m"} 320
kvbudget_drain_aborted_total{model_name="m"} 2
kvbudget_plan_info{model_name="m",plan="0123456789"} 1
vllm:num_requests_running{model_name="m",engine="0"} 3
"""


def test_only_what_is_needed_is_read() -> None:
    assert parse(TEXT, 9) == Reading(
        9,
        plan="0123456789",
        capacity_tokens=20480,
        reserved_tokens=1200,
        queued_tokens=5,
        refused_tokens=6,
        pages=320,
    )


@pytest.mark.parametrize("text", ["", "<html>", "kvbudget_kv_tokens NaN\n", "kvbudget_kv_tokens +Inf\n", "x 1\n"])
def test_what_is_no_workers_exposition_is_no_reading(text: str) -> None:
    assert parse(text, 0) is None


def pod(port: int, **status: Any) -> dict[str, Any]:
    uid = str(port)
    status = {"phase": "Running", "podIP": "127.0.0.1", **status}
    return {"metadata": {"name": f"p{port}", "uid": uid}, "status": status, "port": port}


def test_pods_without_an_address_or_that_ended_are_no_target() -> None:
    assert target(pod(1, podIP="")) is None
    assert target(pod(1, phase="Pending")) is None
    assert target(pod(1, phase="Succeeded")) is None
    found = target(pod(1, podIP="fd00::1"))
    assert found is not None
    assert found.url == "http://[fd00::1]:1/metrics"


@asynccontextmanager
async def server(answer: Any) -> AsyncIterator[int]:
    app = web.Application()
    app.add_routes([web.get("/metrics", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def scrape(pods: list[dict[str, Any]], scraper: Scraper | None = None) -> Scraper:
    """One round."""
    made = scraper or Scraper(lambda: pods, every_seconds=60)
    done = asyncio.Event()

    async def after_round() -> None:
        done.set()

    task = asyncio.create_task(made.run(after_round))
    await done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return made


async def test_one_bad_worker_does_not_hide_the_others() -> None:
    async def good(_: web.Request) -> web.Response:
        return web.Response(text=TEXT)

    async def huge(_: web.Request) -> web.Response:
        return web.Response(text=TEXT + "#" * MAX_BYTES)

    async def failing(_: web.Request) -> web.Response:
        return web.Response(status=500)

    async def binary(_: web.Request) -> web.Response:
        return web.Response(body=b"\xff\xfe" * 10)

    async with server(good) as a, server(huge) as b, server(failing) as c, server(binary) as d:
        scraper = await scrape([pod(port) for port in (a, b, c, d, 1)])
    assert list(scraper.readings) == [str(a)]
    assert scraper.readings[str(a)].capacity_tokens == 20480


async def test_readings_of_pods_that_are_gone_are_forgotten() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=TEXT)

    async with server(answer) as port:
        pods = [pod(port)]
        scraper = await scrape(pods)
        assert list(scraper.readings) == [str(port)]
        pods.clear()
        await scrape(pods, scraper)
        assert scraper.readings == {}
