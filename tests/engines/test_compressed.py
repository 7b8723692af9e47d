"""vLLM's blocks for DeepSeek-V4, against what the engine itself logged of each way of packing them."""

import pytest

from kvbudget.engines import Card, Settings, budget
from kvbudget.engines.cachegroups import PoolOptions
from kvbudget.engines.compressed import Packing, compressed_pool
from kvbudget.engines.result import GIB, Pool, gib, longest
from kvbudget.engines.stages import kept_caches
from kvbudget.shapes.config import from_config
from kvbudget.shapes.table import facts

FLASH = from_config(facts("deepseek-ai/DeepSeek-V4-Flash"))
PRO = from_config(facts("deepseek-ai/DeepSeek-V4-Pro"))
GH200 = Card(name="GH200", memory_bytes=gib(94.5), compute_capability=(9, 0))


def pool_of(name: str, packing: Packing, in_flight: int = 16384, first: int = 0, last: int | None = None) -> Pool:
    told = PoolOptions(kv_format="FP8E4M3", block_tokens=256, in_flight_tokens=in_flight)
    layers = kept_caches(FLASH if name == "Flash" else PRO)
    return compressed_pool(layers, told, packing=packing, first=first, last=last)


@pytest.mark.parametrize(
    ("name", "packing", "block_bytes"),
    [
        ("Flash", "tuples", 22 * (37440 + 8640 + 1728)),
        ("Flash", "sizes", 22 * 37440 + 21 * 8640 + 20 * 1728),
        ("Flash", "groups", 1_002_240),  # vllm#54703 prints it
        ("Pro", "sizes", 1_473_408),  # vllm#48993, before
        ("Pro", "groups", 30 * 37440 + 30 * 8640 + 31 * 1728),
    ],
)
def test_the_width_of_a_block_by_packing(name: str, packing: Packing, block_bytes: int) -> None:
    assert pool_of(name, packing).page_bytes == block_bytes


def test_the_groups_are_those_that_the_engine_lists() -> None:
    """vllm#54703: 62 latents and indexers, windows of 22 and 21, states of 42 and 20."""
    groups = pool_of("Flash", "groups").groups
    assert [(g.layers, g.block_tokens) for g in groups] == [(62, 256), (22, 64), (21, 64), (42, 4), (20, 8)]


def test_a_start_that_fails_prints_what_a_request_needs_and_the_longest_that_fits() -> None:
    """vLLM 0.22 on two GH200, class LLM: 30000 tokens need 6.66 GiB, 5.44 GiB are there, 13528 tokens would fit."""
    pool = pool_of("Flash", "tuples")
    assert pool.pages_for(30000) == 118 + 2 * 259 + 4099 + 2065
    assert round(pool.pages_for(30000) * pool.page_bytes / GIB, 2) == 6.66
    blocks = {gib(size) // pool.page_bytes for size in (5.436, 5.44, 5.445)}
    assert 13528 in {longest(pool, count, 30000) for count in range(min(blocks), max(blocks) + 1)}


def test_requests_at_once_of_a_log_of_the_newest_packing() -> None:
    """77.53 GiB on an H200 hold 11.55 requests of 131072 tokens, with two batches of 8192 in flight."""
    made = budget(FLASH, Card(name="H200", memory_bytes=gib(139.8)), "vllm", "0.33",
                  Settings(kv_cache_bytes=gib(77.53), max_model_len=131072))  # fmt: skip
    assert round(made.max_concurrency(), 2) == 11.55


@pytest.mark.parametrize(
    ("version", "block_bytes", "pages"),
    [("0.22", 1_051_776, 3472), ("0.24", 1_039_680, 3472), ("0.26", 1_039_680, 6800), ("0.27", 1_002_240, 6800)],
)
def test_versions_differ_in_packing_and_in_batches_in_flight(version: str, block_bytes: int, pages: int) -> None:
    pool = budget(FLASH, GH200, "vllm", version, Settings(max_model_len=30000)).worst.pool
    assert (pool.page_bytes, pool.pages_for(30000)) == (block_bytes, pages)


def test_a_stage_needs_the_bytes_of_its_own_layers() -> None:
    whole = pool_of("Flash", "groups")
    halves = [pool_of("Flash", "groups", first=a, last=b) for a, b in ((0, 22), (22, 43))]
    assert all(half.groups == whole.groups for half in halves)
    assert all(half.page_bytes < whole.page_bytes for half in halves)
    assert sum(half.page_bytes for half in halves) >= whole.page_bytes


def test_a_draft_layer_keeps_a_window_more() -> None:
    plain, drafted = (budget(FLASH, GH200, "vllm", "0.33", Settings(draft_tokens=n)).worst.pool.groups for n in (0, 1))
    assert [g.layers for g in plain][1:3] == [22, 21]
    assert [g.layers for g in drafted][1:3] == [22, 22]


def test_the_layout_that_is_taken_is_said() -> None:
    assert any("FlashMLA" in note for note in budget(FLASH, GH200, "vllm", "0.33", Settings()).assumptions)
