"""Gemma 3n, MiniMax's lightning attention, LFM2 and Zamba2: what their layers keep, and their published parameters."""

from typing import Any

import pytest

from kvbudget.cachebytes import conv_bytes, recurrent_bytes, state_bytes, token_bytes
from kvbudget.engines.cachegroups import PoolOptions, pool_of
from kvbudget.errors import ShapeError
from kvbudget.layers import Architecture, AttentionCache, SharedCache, StateCache
from kvbudget.shapes.config import from_config
from kvbudget.shapes.ggufkeys import config_of
from kvbudget.shapes.table import facts
from kvbudget.weights import total_parameters


def known(name: str, **changes: object) -> Architecture:
    return from_config({**(facts(name) or {}), **changes})


def kinds(shape: Architecture) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in shape.groups:
        cache = group.cache
        name = cache.kind if isinstance(cache, StateCache) else type(cache).__name__
        if isinstance(cache, AttentionCache):
            name = "sliding" if cache.window else "full"
        found[name] = found.get(name, 0) + group.count
    return found


def growth(shape: Architecture, ranks: int = 1) -> int:
    return sum(g.count * token_bytes(g.cache, "BF16", tensor_parallel=ranks) for g in shape.groups)


def states(shape: Architecture, ranks: int = 1) -> int:
    return sum(
        g.count * state_bytes(g.cache, tensor_parallel=ranks) for g in shape.groups if isinstance(g.cache, StateCache)
    )


@pytest.mark.parametrize(
    ("name", "layers", "token", "state"),
    [
        ("google/gemma-3n-E2B-it", {"sliding": 16, "full": 4, "SharedCache": 10}, 20 * 2048, 0),
        ("google/gemma-3n-E4B-it", {"sliding": 16, "full": 4, "SharedCache": 15}, 20 * 2048, 0),
        ("MiniMaxAI/MiniMax-Text-01", {"lightning": 70, "full": 10}, 10 * 4096, 70 * 64 * 128 * 128 * 2),
        ("MiniMaxAI/MiniMax-M1-80k", {"lightning": 70, "full": 10}, 10 * 4096, 70 * 64 * 128 * 128 * 2),
        ("LiquidAI/LFM2-350M", {"conv": 10, "full": 6}, 6 * 2048, 10 * 2 * 1024 * 2),
        ("LiquidAI/LFM2-8B-A1B", {"conv": 18, "full": 6}, 6 * 2048, 18 * 2 * 2048 * 2),
        ("Zyphra/Zamba2-1.2B", {"mamba2": 38, "full": 6}, 6 * 16384, 38 * (3 * 4352 * 2 + 64 * 64 * 128 * 2)),
    ],
)
def test_every_layer_keeps_what_the_engines_keep(name: str, layers: dict[str, int], token: int, state: int) -> None:
    shape = known(name)
    assert (kinds(shape), growth(shape), states(shape)) == (layers, token, state)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("google/gemma-3n-E2B-it", 5_439_438_272),
        ("google/gemma-3n-E4B-it", 7_849_978_192),
        ("MiniMaxAI/MiniMax-Text-01", 456_089_655_296),
        ("LiquidAI/LFM2-350M", 354_483_968),
        ("LiquidAI/LFM2-700M", 742_489_344),
        ("LiquidAI/LFM2-1.2B", 1_170_340_608),
        ("LiquidAI/LFM2-8B-A1B", 8_339_929_856 + 22 * 32),  # with the experts' biases, which are no parameters there
        ("Zyphra/Zamba2-1.2B", 1_215_064_704),
    ],
)
def test_parameters_are_those_of_the_published_checkpoint(name: str, parameters: int) -> None:
    assert total_parameters(known(name)) == parameters


def test_ranks_divide_states_and_heads() -> None:
    assert [states(known("MiniMaxAI/MiniMax-Text-01"), n) for n in (1, 8)] == [146_800_640, 18_350_080]
    assert [states(known("LiquidAI/LFM2-1.2B"), n) for n in (1, 2)] == [81_920, 40_960]
    assert [growth(known("Zyphra/Zamba2-1.2B"), n) for n in (1, 4)] == [98_304, 24_576]
    assert [growth(known("google/gemma-3n-E4B-it"), n) for n in (1, 2, 4)] == [40_960, 20_480, 20_480]


def test_lightning_attention_has_no_convolution_and_a_short_convolution_no_recurrence() -> None:
    caches = {
        cache.kind: (conv_bytes(cache, draft_tokens=3), recurrent_bytes(cache))
        for name in ("MiniMaxAI/MiniMax-Text-01", "LiquidAI/LFM2-1.2B")
        for cache in (g.cache for g in known(name).groups)
        if isinstance(cache, StateCache)
    }
    assert caches == {"lightning": (0, 64 * 128 * 128 * 2), "conv": (5 * 2048 * 2, 0)}


@pytest.mark.parametrize(
    ("written", "same"),
    [
        pytest.param(
            {"layer_types": None, "attn_type_list": ([0] * 7 + [1]) * 10}, "MiniMaxAI/MiniMax-M1-80k",
            id="attn_type_list",
        ),
        pytest.param(
            {"layer_types": None, "decoder_attention_types": ([0] * 7 + [1]) * 10}, "MiniMaxAI/MiniMax-M1-80k",
            id="decoder_attention_types",
        ),
        pytest.param(
            {"layer_types": None, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "tie_embedding": True, "num_heads": 32,
             "block_dim": 2048, "conv_dim": 2048, "conv_dim_out": 2048},
            "LiquidAI/LFM2-1.2B", id="LFM2 as first published",
        ),
        pytest.param(
            {"block_ff_dim": None, "intermediate_size": 8192, "block_auto_adjust_ff_dim": False}, "LiquidAI/LFM2-1.2B",
            id="LFM2 with the width itself",
        ),
        pytest.param(
            {"layer_types": None,
             "layers_block_type": ["hybrid" if i in (5, 11, 17, 23, 29, 35) else "mamba" for i in range(38)],
             "hybrid_layer_ids": [5, 11, 17, 23, 29, 35], "attention_head_dim": 128, "attention_hidden_size": 4096,
             "kv_channels": 64, "num_query_groups": 32, "mamba_headdim": 64},
            "Zyphra/Zamba2-1.2B", id="Zamba2 as published",
        ),
        pytest.param(
            {"intermediate_size": [16384] * 35, "layer_types": None}, "google/gemma-3n-E4B-it", id="Gemma 3n's list"
        ),
    ],
)  # fmt: skip
def test_other_spellings_say_the_same(written: dict[str, Any], same: str) -> None:
    assert known(same, **written) == known(same)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("MiniMaxAI/MiniMax-M1-80k", {"layer_types": None}, "no list says what each layer is"),
        ("MiniMaxAI/MiniMax-M1-80k", {"layer_types": None, "attn_type_list": [2] * 80}, "attn_type_list is 2"),
        ("LiquidAI/LFM2-1.2B", {"layer_types": None}, "no list says what each layer is"),
        ("LiquidAI/LFM2-1.2B", {"conv_L_cache": None}, "key conv_L_cache is missing"),
        ("LiquidAI/LFM2-1.2B", {"conv_dim_out": 1}, "conv_dim_out is 1 where the other keys give 2048"),
        ("Zyphra/Zamba2-1.2B", {"layer_types": None}, "no list says what each layer is"),
        ("Zyphra/Zamba2-1.2B", {"attention_head_dim": 64}, "attention_head_dim is 64 where the other keys give 128"),
        ("Zyphra/Zamba2-1.2B", {"model_type": "bamba"}, 'layer_types has "hybrid", of which it is not known'),
        ("Zyphra/Zamba2-1.2B", {"model_type": "zamba"}, "model_type zamba is not supported"),
        ("google/gemma-3n-E4B-it", {"intermediate_size": [1, 2]}, "intermediate_size has 2 entries for 35 layers"),
        (
            "google/gemma-3n-E4B-it",
            {"num_kv_shared_layers": 34},
            "shares K and V, but no layer before it keeps the same",
        ),
    ],
)
def test_what_their_files_do_not_tell_is_refused(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ShapeError) as raised:
        known(name, **changes)
    assert said in str(raised.value)


def test_widths_may_differ_from_layer_to_layer() -> None:
    widths = [8192] * 10 + [16384] * 25
    shape = known("google/gemma-3n-E4B-it", intermediate_size=widths)
    assert {f.intermediate: len(f.layers) for f in shape.feed_forward} == {8192: 10, 16384: 25}


def test_shared_blocks_are_counted_once_and_take_turns() -> None:
    one, two = (known("Zyphra/Zamba2-1.2B", num_mem_blocks=n) for n in (1, 2))
    block = 4096 * 4096 * 3 + 4096 * 2048 + 3 * 2048 + 3 * 2048 * 8192
    assert total_parameters(two) - total_parameters(one) == block
    assert [growth(shape) for shape in (one, two)] == [98_304, 98_304]


def test_shared_layers_of_gemma_3n_have_projections_that_keep_nothing() -> None:
    own, shared = (
        next(g for g in known("google/gemma-3n-E4B-it").groups if isinstance(g.cache, kind))
        for kind in (AttentionCache, SharedCache)
    )
    assert own.elements == shared.elements
    assert token_bytes(shared.cache, "BF16") == 0


def test_a_gguf_header_of_lfm2_gives_the_same_layers() -> None:
    values: dict[str, object] = {
        "general.architecture": "lfm2", "lfm2.block_count": 16, "lfm2.embedding_length": 2048,
        "lfm2.feed_forward_length": 8192, "lfm2.attention.head_count": 32, "lfm2.shortconv.l_cache": 3,
        "lfm2.attention.head_count_kv": [8 if i in (2, 5, 8, 10, 12, 14) else 0 for i in range(16)],
        "lfm2.context_length": 128000, "lfm2.vocab_size": 65536,
    }  # fmt: skip
    found, expected = from_config(config_of(values, "m.gguf")), known("LiquidAI/LFM2-1.2B")
    assert (kinds(found), growth(found), states(found)) == (kinds(expected), growth(expected), states(expected))
    assert total_parameters(found) == total_parameters(expected)


def test_vllm_pages_of_lfm2_and_minimax() -> None:
    """By hand: groups of 6 of LFM2's layers (6 full, 10 convolutions in two groups); a page of 16 tokens is wider than
    a state. MiniMax: 10 full and 70 lightning layers in groups of 10; the block grows until it holds a state."""

    def need(name: str) -> tuple[int, int]:
        caches = [g.cache for g in known(name).groups for _ in g.layers]
        options = PoolOptions(kv_format="BF16", block_tokens=16, in_flight_tokens=8192)
        pool = pool_of(caches, options=options)
        return pool.page_bytes, pool.pages_for(32768)

    assert need("LiquidAI/LFM2-1.2B") == (6 * 16 * 2048, 2048 + 2 * 1)
    block = 64 * 128 * 128 * 2 // 4096
    assert need("MiniMaxAI/MiniMax-Text-01") == (10 * block * 4096, 32768 // block + 7)
