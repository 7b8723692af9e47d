"""Random traffic on a real worker process: the pool never overflows, every page comes back, and nothing grows.

$KVBUDGET_SOAK_SECONDS is how long (default 10); `make soak` runs it for minutes.
"""

import asyncio
import os
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.process import Served, wait_for
from support.realworker import real_worker
from support.tinymodel import VOCAB_SIZE, make_tiny_model, tiny_plan

SECONDS = float(os.environ.get("KVBUDGET_SOAK_SECONDS", "10"))
WARM_UP_SECONDS = 4.0
CLIENTS = 12
PAGES = 40
GROWTH_BYTES = 24 << 20
"""Allocators settle late; a leak of one page of K and V for each request would be above this within a minute."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 400)]


def resident_bytes(worker: Served) -> int:
    pages = int(Path(f"/proc/{worker.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files(worker: Served) -> int:
    return len(os.listdir(f"/proc/{worker.process.pid}/fd"))


def threads(worker: Served) -> int:
    return len(os.listdir(f"/proc/{worker.process.pid}/task"))


def body(chance: random.Random) -> dict[str, Any]:
    """Any request that the service could serve: short and long, shared prefixes and none, one choice or several."""
    prefix = [7] * chance.choice([0, 16, 64])
    return {
        "model": "tiny",
        "prompt": prefix + [chance.randrange(256) for _ in range(chance.randint(1, 150))],
        "max_tokens": chance.randint(1, 80),
        "n": chance.choice([1, 1, 1, 2, 3]),
        "temperature": chance.choice([0, 1.0, 1.5]),
        "top_p": chance.choice([1.0, 0.9]),
        "logprobs": chance.choice([None, 3]),
        "seed": chance.choice([None, 5]),
        "ignore_eos": chance.random() < 0.5,
        "stop": chance.choice([None, None, ["e", "zz"]]),
        "logit_bias": chance.choice([None, {str(chance.randrange(VOCAB_SIZE)): 3}]),
    }


async def one_client(url: str, chance: random.Random, until: float, seen: Counter[str]) -> None:
    """Asks, reads, and often goes away before the end."""
    clock = asyncio.get_running_loop().time
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while clock() < until:
            fields, streams = body(chance), chance.random() < 0.7
            leaves_after = chance.choice([None, None, 0, 1, 5])
            if streams:
                async with client.stream("POST", "/v1/completions", json={**fields, "stream": True}) as answer:
                    lines = 0
                    async for _ in answer.aiter_lines():
                        lines += 1
                        if answer.status_code == 200 and leaves_after is not None and lines > leaves_after:
                            seen["left"] += 1
                            break
                    status = answer.status_code
            else:
                try:
                    patience = httpx.Timeout(60, read=60 if leaves_after is None else 0.05)
                    status = (await client.post("/v1/completions", json=fields, timeout=patience)).status_code
                except httpx.ReadTimeout:
                    seen["left"] += 1
                    continue
            seen[str(status)] += 1
            if status == 429:
                await asyncio.sleep(0.05)  # else most of the traffic would be refusals


async def watch(worker: Served, sizes: list[int]) -> None:
    """The account at every look, and the resident memory."""
    async with httpx.AsyncClient(base_url=worker.url, timeout=60) as client:
        while True:
            load = (await client.get("/load")).json()
            assert 0 <= load["kv_tokens_reserved"] <= load["kv_tokens"] == PAGES * 16
            assert load["kv_tokens_reserved"] + load["kv_tokens_free"] == load["kv_tokens"]
            assert load["queued_tokens"] <= 600
            sizes.append(resident_bytes(worker))
            await asyncio.sleep(0.1)


async def traffic(worker: Served, seconds: float, seed: int) -> tuple[Counter[str], list[int]]:
    """Clients for so long; what they saw, and the resident memory over that time."""
    seen: Counter[str] = Counter()
    sizes: list[int] = []
    until = asyncio.get_running_loop().time() + seconds
    watcher = asyncio.ensure_future(watch(worker, sizes))
    clients = [one_client(worker.url, random.Random(seed * 1000 + i), until, seen) for i in range(CLIENTS)]
    await asyncio.gather(*clients)
    if watcher.done():
        watcher.result()
    watcher.cancel()
    return seen, sizes


def at_rest(worker: Served) -> tuple[int, int]:
    """Open files and threads once nobody asks for anything."""
    worker.until_pages_are_back()
    assert worker.client.get("/load").json()["queued_tokens"] == 0
    assert worker.metric("vllm:num_requests_running") == worker.metric("vllm:num_requests_waiting") == 0
    return open_files(worker), threads(worker)


def test_random_traffic_leaves_nothing_behind(tmp_path: Path) -> None:
    plan = tiny_plan(make_tiny_model(tmp_path / "tiny"), pages=PAGES, queue_tokens=600)
    seed = random.randrange(1 << 30) if os.environ.get("KVBUDGET_LAWS") == "soak" else 1
    with real_worker(tmp_path, plan) as worker:
        asyncio.run(traffic(worker, min(WARM_UP_SECONDS, SECONDS), seed))
        files, tasks = at_rest(worker)
        before = resident_bytes(worker)
        seen, sizes = asyncio.run(traffic(worker, SECONDS, seed + 1))
        print(f"seed {seed}: {dict(seen)}, resident {before >> 20} MiB, then {sizes[-1] >> 20} MiB")  # noqa: T201
        assert min(seen["200"], seen["429"], seen["left"]) > 0
        assert set(seen) <= {"200", "429", "left"}
        wait_for(lambda: at_rest(worker)[0] <= files, f"the end of all but {files} open files")
        assert at_rest(worker)[1] <= tasks
        quarter = len(sizes) // 4
        assert statistics.median(sizes[-quarter:]) - statistics.median(sizes[:quarter]) < GROWTH_BYTES
        assert resident_bytes(worker) - before < 2 * GROWTH_BYTES
