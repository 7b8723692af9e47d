"""Laws of layer groups: ranks, stages, and the dense decoder told in both ways."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget import layout, parameters
from kvbudget.cachebytes import conv_bytes, recurrent_bytes, state_bytes, token_bytes
from kvbudget.layers import Architecture, AttentionCache, CompressedCache, LatentCache, StateCache
from kvbudget.layout import KV_PRECISIONS
from kvbudget.served import named, served_names
from kvbudget.shape import ModelShape, from_config
from kvbudget.shapes import config
from kvbudget.shapes.dense import architecture_of, dense_of
from kvbudget.shapes.table import facts, known_names
from kvbudget.weights import count, rank_bytes, stored_bytes

MODELS: dict[str, Architecture] = {name: config.from_config(facts(name), name) for name in known_names()}
ANY_MODEL = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)
RANKS = st.sampled_from([1, 2, 3, 4, 8, 16, 32])
CACHES = st.builds(
    AttentionCache, kv_heads=st.integers(1, 64), head_dim=st.integers(1, 512), v_head_dim=st.integers(1, 512)
)


@st.composite
def dense_shapes(draw: st.DrawFn) -> ModelShape:
    kv_heads = draw(st.integers(1, 16))
    return ModelShape(
        layers=draw(st.integers(1, 100)),
        hidden_size=draw(st.integers(1, 8192)),
        intermediate_size=draw(st.integers(1, 32768)),
        attention_heads=kv_heads * draw(st.integers(1, 8)),
        kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 256)),
        vocab_size=draw(st.integers(1, 200_000)),
        max_position_embeddings=draw(st.integers(1, 10**6)),
        tied_embeddings=draw(st.booleans()),
    )


@given(dense_shapes(), RANKS, st.sampled_from(KV_PRECISIONS))
def test_a_dense_model_costs_the_same_told_in_both_ways(shape: ModelShape, ranks: int, precision: str) -> None:
    model = architecture_of(shape)
    cache = model.groups[0].cache
    per_layer = token_bytes(cache, precision, tensor_parallel=ranks)
    assert shape.layers * per_layer == layout.kv_bytes_per_token(shape, precision, tensor_parallel=ranks)
    assert count(model).total == parameters.count(shape).total
    assert dense_of(model) == shape


@pytest.mark.parametrize("name", served_names())
def test_both_readers_agree_on_a_dense_configuration(name: str) -> None:
    shape = named(name)
    keys = {
        "model_type": "llama", "num_hidden_layers": shape.layers, "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size, "num_attention_heads": shape.attention_heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings, "tie_word_embeddings": shape.tied_embeddings,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    assert dense_of(config.from_config(keys)) == from_config(keys)


@pytest.mark.parametrize("name", served_names())
def test_a_rank_of_a_dense_model_holds_the_same_told_in_both_ways(name: str) -> None:
    """Also where there are more ranks than KV heads, and K and V projections are repeated."""
    shape = named(name)
    for ranks in (1, 2, 4, 8, 16, 32):
        if not any(size % ranks for size in (shape.attention_heads, shape.intermediate_size, shape.vocab_size)):
            expected = parameters.count(shape, tensor_parallel=ranks).total
            assert count(architecture_of(shape), tensor_parallel=ranks).total == expected


@given(CACHES, RANKS, st.sampled_from(KV_PRECISIONS))
def test_ranks_hold_all_heads_and_beyond_the_heads_they_hold_one_each(
    cache: AttentionCache, ranks: int, precision: str
) -> None:
    one = token_bytes(cache, precision, tensor_parallel=ranks)
    assert one * ranks >= token_bytes(cache, precision)
    if ranks >= cache.kv_heads:
        assert one == token_bytes(cache, precision, tensor_parallel=2 * ranks)


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_latents_are_never_divided(ranks: int) -> None:
    latent = LatentCache(latent_dim=512, rope_dim=64, index_dim=128)
    compressed = CompressedCache(latent_dim=448, rope_dim=64, window=128, ratio=4)
    assert token_bytes(latent, "BF16", tensor_parallel=ranks) == 1152 + 132
    assert token_bytes(compressed, "BF16", tensor_parallel=ranks) == 1024


@given(ANY_MODEL, RANKS)
def test_states_are_divided_and_nothing_is_lost(model: Architecture, ranks: int) -> None:
    for group in model.groups:
        if isinstance(group.cache, StateCache):
            parts = conv_bytes(group.cache, tensor_parallel=ranks) + recurrent_bytes(group.cache, tensor_parallel=ranks)
            assert parts == state_bytes(group.cache, tensor_parallel=ranks)
            assert parts * ranks >= state_bytes(group.cache)
            convolved = group.cache.conv_channels > 0
            assert (state_bytes(group.cache, draft_tokens=2) > state_bytes(group.cache)) == convolved


@given(ANY_MODEL, RANKS)
def test_more_ranks_never_hold_more_weights_each_and_never_less_together(model: Architecture, ranks: int) -> None:
    one, whole = rank_bytes(model, tensor_parallel=ranks), rank_bytes(model)
    assert one <= whole
    assert one * ranks >= whole
    assert rank_bytes(model, tensor_parallel=2 * ranks) <= one


@given(ANY_MODEL, st.integers(1, 8))
def test_stages_hold_every_layer_once(model: Architecture, stages: int) -> None:
    sizes = layout.stage_layers(model.layers, stages)
    bounds = [sum(sizes[:i]) for i in range(stages + 1)]
    parts = [model.stage(first, last) for first, last in pairwise(bounds)]
    held = sorted(i for part in parts for group in part.groups for i in group.layers)
    assert held == sorted(i for group in model.groups for i in group.layers)
    routed = sum(count(model, first=a, last=b).experts for a, b in pairwise(bounds) if a < b)
    assert routed == count(model).experts


@given(ANY_MODEL)
def test_a_checkpoint_of_known_size_is_handed_out_whole(model: Architecture) -> None:
    known = replace(model, weight_bytes=10**9, drafts=None)
    assert rank_bytes(known) == 10**9
    assert stored_bytes(model, count(model)) <= stored_bytes(model, count(model, drafts=True))
