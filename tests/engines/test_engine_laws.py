"""Laws of every engine's budget, over random shapes, cards and options."""

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvbudget.engines import Card, EngineBudget, Settings, budget
from kvbudget.engines.result import gib
from kvbudget.layers import Architecture, AttentionCache
from support.architectures import attention_decoders, decoder, decoders

ENGINES = ("vllm", "sglang", "tensorrt_llm")
VERSIONS = ("0.10", "0.15.2", "0.19", "0.21", "0.33")

OPTIONS = st.builds(
    Settings,
    max_model_len=st.integers(1, 200_000),
    memory_fraction=st.sampled_from((0.5, 0.85, 0.9, 0.95)),
    tensor_parallel=st.sampled_from((1, 2, 4, 8)),
    pipeline_parallel=st.just(1),
    kv_format=st.sampled_from((None, "FP8E4M3", "INT8", "NVFP4")),
    max_batched_tokens=st.integers(1, 16384),
    max_sequences=st.integers(1, 1024),
    prefix_caching=st.booleans(),
    draft_tokens=st.integers(0, 3),
)
MEMORY = st.integers(1, 300 * 2**30)


def plan(engine: str, version: str, shape: Architecture, memory: int, told: Settings) -> EngineBudget:
    name = version if engine == "vllm" else None
    return budget(shape, Card(name="any", memory_bytes=memory), engine, name, told)


ANY = given(st.sampled_from(ENGINES), st.sampled_from(VERSIONS), decoders(), MEMORY, OPTIONS)


@ANY
def test_every_term_adds_up_to_the_usable_memory_exactly(
    engine: str, version: str, shape: Architecture, memory: int, told: Settings
) -> None:
    for stage in plan(engine, version, shape, memory, told).stages:
        assert sum(term.bytes.expected for term in stage.terms) + stage.kv.expected == stage.usable_bytes
        pages = stage.pages.expected
        assert pages * stage.pool.page_bytes + stage.remainder_bytes == stage.kv.expected
        assert stage.remainder_bytes < stage.pool.page_bytes
        assert pages == 0 or stage.remainder_bytes >= 0


@ANY
def test_low_expected_and_high_are_in_order(
    engine: str, version: str, shape: Architecture, memory: int, told: Settings
) -> None:
    made = plan(engine, version, shape, memory, told)
    terms = [term.bytes for stage in made.stages for term in (*stage.terms, *stage.outside)]
    for band in (made.pages, made.grantable_pages, *(stage.kv for stage in made.stages), *terms):
        assert band.low <= band.expected <= band.high


@given(st.sampled_from(ENGINES), st.sampled_from(VERSIONS), decoders(), MEMORY, OPTIONS, st.integers(0, 2**34))
def test_more_memory_never_gives_fewer_tokens(
    engine: str, version: str, shape: Architecture, memory: int, told: Settings, more: int
) -> None:
    small, large = (plan(engine, version, shape, size, told) for size in (memory, memory + more))
    assert large.pages.expected >= small.pages.expected
    assert large.longest_len() >= small.longest_len()


@ANY
def test_planning_twice_and_planning_with_the_settings_filled_in_change_nothing(
    engine: str, version: str, shape: Architecture, memory: int, told: Settings
) -> None:
    made = plan(engine, version, shape, memory, told)
    assert plan(engine, version, shape, memory, told) == made
    assert plan(engine, version, shape, memory, cast(Settings, made.settings)) == made


@ANY
def test_the_longest_length_is_held_and_one_token_more_is_not(
    engine: str, version: str, shape: Architecture, memory: int, told: Settings
) -> None:
    made = plan(engine, version, shape, memory, told)
    longest = made.longest_len(400_000)
    assert longest == 0 or made.holds(longest)
    assert longest == 400_000 or not made.holds(longest + 1)


@ANY
def test_a_plan_that_fits_holds_its_request_at_the_low_end(
    engine: str, version: str, shape: Architecture, memory: int, told: Settings
) -> None:
    made = plan(engine, version, shape, memory, told)
    need = made.worst.pool.pages_for(made.max_model_len)
    assert made.reason
    if made.verdict == "fits":
        assert need <= made.grantable_pages.low
    if made.verdict == "KV too small":
        assert need > made.grantable_pages.expected


@given(attention_decoders(), st.integers(2**20, 2**38), st.sampled_from(VERSIONS))
def test_halving_the_bytes_of_a_page_gives_twice_the_pages_and_one_or_two(
    shape: Architecture, kv_bytes: int, version: str
) -> None:
    told = Settings(kv_cache_bytes=kv_bytes, kv_format="BF16")
    whole = plan("vllm", version, shape, gib(300), told)
    half = plan("vllm", version, shape, gib(300), replace(told, kv_format="FP8E4M3"))
    assume(whole.pages.expected >= 1)
    assert half.worst.pool.page_bytes * 2 == whole.worst.pool.page_bytes
    assert half.grantable_pages.expected - 2 * whole.grantable_pages.expected in (1, 2)


@pytest.mark.parametrize("engine", ENGINES)
@given(kv_heads=st.sampled_from((1, 2, 4)), more=st.sampled_from((2, 4, 8)), layers=st.integers(1, 16))
def test_ranks_beyond_the_kv_heads_leave_the_bytes_of_a_token_unchanged(
    engine: str, kv_heads: int, more: int, layers: int
) -> None:
    shape = decoder([AttentionCache(kv_heads=kv_heads, head_dim=128, v_head_dim=128)] * layers)
    rates = {
        plan(engine, "0.19", shape, gib(80), Settings(tensor_parallel=ranks)).kv_bytes_per_token
        for ranks in (kv_heads, kv_heads * more)
    }
    assert rates == {layers * 2 * 128 * 2}


@given(decoders(), st.integers(1, 200_000), st.integers(1, 200_000))
def test_a_longer_request_never_needs_fewer_pages(shape: Architecture, tokens: int, other: int) -> None:
    pool = plan("vllm", "0.19", shape, gib(80), Settings()).worst.pool
    short, long = sorted((tokens, other))
    assert pool.pages_for(short) <= pool.pages_for(long)


@given(st.sampled_from(("vllm", "sglang", "tensorrt_llm")), decoders(), st.integers(2, 4), MEMORY)
def test_the_stage_with_the_fewest_pages_decides(engine: str, shape: Architecture, stages: int, memory: int) -> None:
    assume(shape.layers >= stages)
    told = Settings(pipeline_parallel=stages, max_batched_tokens=2048, max_sequences=8, memory_fraction=0.9)
    made = plan(engine, "0.19", shape, memory, told)
    assert made.pages.expected == min(s.pages.expected for s in made.stages)
    assert sum(s.layers for s in made.stages) == shape.layers
