"""``/metrics`` equals the contract: names, types, labels, buckets; and its figures are those of the traffic."""

import asyncio
import threading

import pytest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from kvbudget import contract
from kvbudget.contract import WORKER_METRICS, Metric
from kvbudget_worker.metrics import Page
from support.inprocess import InProcess, in_process
from support.scripted import make_plan


async def scrape(worker: InProcess) -> dict[str, Family]:
    response = await worker.client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {family.name: family for family in text_string_to_metric_families(response.text)}


def family(families: dict[str, Family], metric: Metric) -> Family:
    return families[metric.name.removesuffix("_total") if metric.type == "counter" else metric.name]


def values(of: Family, suffix: str = "") -> list[tuple[dict[str, str], float]]:
    return [(s.labels, s.value) for s in of.samples if s.name.endswith(suffix)]


async def test_names_types_labels_and_buckets_equal_the_contract() -> None:
    async with in_process() as worker:
        await worker.complete(max_tokens=3)
        families = await scrape(worker)
    assert len(families) == len(WORKER_METRICS)
    for metric in WORKER_METRICS:
        found = family(families, metric)
        assert found.type == metric.type, metric.name
        assert found.documentation == metric.help
        assert found.samples, metric.name
        for sample in found.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), metric.name
            assert sample.labels["model_name"] == "test/scripted"
            assert sample.labels.get("engine", "0") == "0"
        names = {sample.name for sample in found.samples}
        if metric.type == "histogram":
            assert names == {f"{metric.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")}
            bounds = [float(labels["le"]) for labels, _ in values(found, "_bucket")]
            assert bounds == [*metric.buckets, float("inf")]
        else:
            assert names == {metric.name}
    assert not [name for name in families if "_created" in name]


async def test_figures_follow_the_traffic() -> None:
    """One request of 5 + 3 tokens, one of 40 + 5 tokens twice (its first two pages cached), and one with n = 2."""
    async with in_process(make_plan(pages=64)) as worker:
        await worker.complete(max_tokens=3)
        for _ in range(2):
            await worker.complete(prompt="p" * 40, max_tokens=5)
        await worker.complete(prompt="q", max_tokens=4, n=2)
        await worker.until_idle()
        families = await scrape(worker)

    def total(metric: Metric, suffix: str = "") -> float:
        return sum(value for _, value in values(family(families, metric), suffix))

    assert total(contract.PROMPT_TOKENS) == 5 + 40 + 40 + 1
    assert total(contract.GENERATION_TOKENS) == 3 + 5 + 5 + 8
    assert total(contract.PREFIX_QUERIES) == 86
    assert total(contract.PREFIX_HITS) == 32
    assert {ls["finished_reason"]: v for ls, v in values(family(families, contract.REQUEST_SUCCESS))} == {
        "stop": 0,
        "length": 5,
        "abort": 0,
    }
    assert total(contract.TTFT, "_count") == 4
    assert total(contract.ITL, "_count") == total(contract.ITL_OLD, "_count") == 2 + 4 + 4 + 6
    for metric in (contract.E2E_LATENCY, contract.QUEUE_TIME, contract.PREFILL_TIME, contract.DECODE_TIME):
        assert total(metric, "_count") == 4
        assert total(metric, "_sum") >= 0
    assert total(contract.INFERENCE_TIME, "_count") == 4
    assert total(contract.REQ_PROMPT, "_sum") == 86
    assert total(contract.REQ_GENERATION, "_sum") == 21
    assert total(contract.REQ_MAX_TOKENS, "_sum") == 3 + 5 + 5 + 4
    assert total(contract.REQ_N, "_sum") == 5
    assert total(contract.ITERATION_TOKENS, "_sum") == worker.runner.tokens
    assert total(contract.ITERATION_TOKENS, "_count") == worker.runner.steps
    assert total(contract.PREEMPTIONS) == 0
    assert total(contract.NUM_RUNNING) == total(contract.NUM_WAITING) == 0
    assert total(contract.KV_USAGE) == total(contract.KV_USAGE_OLD) == 0
    assert total(contract.HOLDING_SECONDS) > 0
    (labels, one) = values(family(families, contract.CACHE_CONFIG))[0]
    assert one == 1
    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("16", "64")
    (labels, one) = values(family(families, contract.PLAN_INFO))[0]
    assert (labels["plan"], one) == (worker.plan.hash(), 1)
    assert total(contract.MEASURED_PAGES) == 64
    assert total(contract.MEASURED_WEIGHT_BYTES) == 1000
    assert total(contract.MEASURED_PAGE_BYTES) == worker.plan.kv.page_bytes
    assert total(contract.MEASURED_FREE_BYTES) == 1 << 30


async def test_gauges_show_what_is_live_queued_and_refused() -> None:
    """8 pages: one request holds 6 (1 in use), one of 3 waits, one of 4 finds the queue full."""
    async with in_process(make_plan(pages=8, queue_tokens=48)) as worker:
        worker.runner.hold.clear()
        holder = asyncio.create_task(worker.complete(prompt="h" * 10, max_tokens=80))
        await worker.until(worker.runner.in_step.is_set)
        waiter = asyncio.create_task(worker.complete(prompt="w" * 10, max_tokens=30))
        await worker.until(lambda: worker.engine.gate.waiting)
        for _ in range(2):
            refused = await worker.client.post(
                "/v1/completions", json={"prompt": "r", "max_tokens": 60}, headers={"x-request-id": "again"}
            )
            assert refused.status_code == 429
        families = await scrape(worker)
        figures = {
            metric.name: values(family(families, metric))[0][1]
            for metric in WORKER_METRICS
            if metric.type == "gauge" or metric is contract.REFUSED_TOKENS
        }
        worker.runner.hold.set()
        assert {r.status_code for r in await asyncio.gather(holder, waiter)} == {200}
        await worker.until_idle()
    assert figures[contract.NUM_RUNNING.name] == 1
    assert figures[contract.NUM_WAITING.name] == 1
    assert figures[contract.KV_USAGE.name] == figures[contract.KV_USAGE_OLD.name] == 6 / 8
    assert figures[contract.KV_TOKENS.name] == 128
    assert figures[contract.KV_TOKENS_RESERVED.name] == 96
    assert figures[contract.KV_TOKENS_USED.name] == 16
    assert figures[contract.QUEUED_TOKENS.name] == 48
    assert figures[contract.REFUSED_TOKENS.name] == 64, "the same id counts once"
    assert figures[contract.REFUSED_DEMAND.name] >= 0
    assert figures[contract.DRAINING.name] == 0


async def test_drain_shows_and_what_it_cuts_off_is_counted() -> None:
    async with in_process() as worker:
        worker.runner.hold.clear()
        holder = asyncio.create_task(worker.complete(max_tokens=5))
        await worker.until(worker.runner.in_step.is_set)
        assert await worker.lifecycle.drain(0, worker.service.observer, flush_seconds=60) == 1
        response = await holder
        families = await scrape(worker)
        worker.runner.hold.set()
        await worker.until_idle()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
    for metric in (contract.DRAINING, contract.DRAIN_ABORTED):
        assert values(family(families, metric))[0][1] == 1


async def test_a_page_is_rendered_once_for_all_who_ask_within_its_age() -> None:
    rendered = 0

    def render() -> bytes:
        nonlocal rendered
        rendered += 1
        return str(rendered).encode()

    page = Page(render, max_age=3600)
    assert await asyncio.gather(*(page.body() for _ in range(20))) == [b"1"] * 20
    assert await page.body() == b"1"
    always = Page(render, max_age=0)
    assert [await always.body(), await always.body()] == [b"2", b"3"]


async def test_a_scraper_that_goes_away_does_not_cancel_the_page() -> None:
    go = threading.Event()

    def render() -> bytes:
        go.wait()
        return b"page"

    page = Page(render, max_age=3600)
    first, second = asyncio.ensure_future(page.body()), asyncio.ensure_future(page.body())
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert await second == b"page"
    with pytest.raises(asyncio.CancelledError):
        await first
