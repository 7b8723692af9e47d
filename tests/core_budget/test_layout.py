"""Bytes of a page: worked out by hand, as real engines log them, and the laws of replication and stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget import layout
from kvbudget.served import named
from kvbudget.shape import ModelShape

LLAMA = named("meta-llama/Llama-3.1-8B")


def shape(layers: int, heads: int, kv_heads: int, head_dim: int) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden_size=heads * head_dim,
        intermediate_size=64,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=1000,
        max_position_embeddings=4096,
    )


SHAPES = st.builds(
    lambda layers, kv, group, dim: shape(layers, kv * group, kv, dim),
    st.integers(1, 100),
    st.integers(1, 64),
    st.integers(1, 16),
    st.sampled_from([16, 64, 80, 96, 128, 192, 256]),
)
PRECISIONS = st.sampled_from(layout.KV_PRECISIONS)


@pytest.mark.parametrize(
    ("precision", "expected"),
    # 2 (K and V) × 64 tokens × 8 heads × 128 numbers; INT8 and INT4 add their scales.
    [("BF16", 262144), ("FP16", 262144), ("FP32", 524288), ("FP8E4M3", 131072), ("INT8", 133120), ("INT4", 81920)],
)
def test_one_layer_of_8_heads_of_128_and_64_tokens_has_the_bytes_of_its_numbers_and_scales(
    precision: str, expected: int
) -> None:
    assert layout.page_bytes(LLAMA, precision, 64, layers=1) == expected


@pytest.mark.parametrize(
    ("layers", "heads", "kv_heads", "head_dim", "expected"),
    [
        pytest.param(32, 32, 8, 128, 131072, id="Llama-3.1-8B"),
        pytest.param(80, 64, 8, 128, 327680, id="Llama-3.1-70B"),
        pytest.param(28, 28, 4, 128, 57344, id="Qwen2.5-7B"),
        pytest.param(36, 32, 8, 128, 147456, id="Qwen3-8B"),
        pytest.param(30, 9, 3, 64, 23040, id="SmolLM2-135M"),
        pytest.param(32, 32, 32, 128, 524288, id="Llama-2-7B"),
    ],
)
def test_bytes_per_token_in_16_bits_are_what_engines_log(
    layers: int, heads: int, kv_heads: int, head_dim: int, expected: int
) -> None:
    assert layout.kv_bytes_per_token(shape(layers, heads, kv_heads, head_dim), "BF16") == expected


def test_the_seed_example_is_16_gib_by_both_formulas() -> None:
    seed, tokens = shape(32, 32, 32, 128), 8 * 4096
    by_hidden = 2 * seed.layers * seed.hidden_size * 2 * tokens
    by_heads = 2 * seed.layers * seed.kv_heads * seed.head_dim * 2 * tokens
    assert by_hidden == by_heads == layout.kv_bytes_per_token(seed, "FP16") * tokens == 17_179_869_184


@pytest.mark.parametrize(("precision", "scales"), [("INT4", 8 * 3), ("NVFP4", 2 * 5)])
def test_scales_of_a_head_dim_that_is_no_multiple_of_the_group_are_rounded_up(precision: str, scales: int) -> None:
    codes = 2 * 80 // 2
    assert layout.kv_bytes_per_token(shape(1, 1, 1, 80), precision) == codes + scales


def test_an_unknown_precision_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="use one of BF16, FP16"):
        layout.page_bytes(LLAMA, "FP6", 64)


@given(SHAPES, PRECISIONS, st.sampled_from([16, 32, 64, 128]), st.integers(0, 4))
def test_tensor_parallelism_beyond_the_kv_heads_leaves_the_bytes_unchanged(
    model: ModelShape, precision: str, page_tokens: int, doublings: int
) -> None:
    at_heads = layout.page_bytes(model, precision, page_tokens, tensor_parallel=model.kv_heads)
    beyond = layout.page_bytes(model, precision, page_tokens, tensor_parallel=model.kv_heads << doublings)
    assert beyond == at_heads > 0


@given(SHAPES, PRECISIONS, st.integers(1, 64))
def test_ranks_together_never_hold_less_than_the_whole(model: ModelShape, precision: str, ranks: int) -> None:
    per_rank = layout.kv_bytes_per_token(model, precision, tensor_parallel=ranks)
    assert per_rank * ranks >= layout.kv_bytes_per_token(model, precision)


@given(SHAPES, PRECISIONS, st.sampled_from([16, 32, 64, 128]))
def test_a_page_is_its_tokens_times_the_bytes_of_one(model: ModelShape, precision: str, page_tokens: int) -> None:
    page = layout.page_bytes(model, precision, page_tokens)
    assert page == page_tokens * layout.kv_bytes_per_token(model, precision)
    assert page == model.layers * layout.page_bytes(model, precision, page_tokens, layers=1)


@given(st.integers(1, 200), st.integers(1, 64))
def test_stages_share_all_layers_evenly_and_the_last_never_has_more(layers: int, stages: int) -> None:
    split = layout.stage_layers(layers, stages)
    assert sum(split) == layers
    assert max(split) - min(split) <= 1
    assert split[-1] == min(split)


@given(st.integers(0, 10**9), st.sampled_from([16, 32, 64, 128]))
def test_pages_are_the_least_number_that_holds_the_tokens(tokens: int, page_tokens: int) -> None:
    pages = layout.pages_for(tokens, page_tokens)
    assert (pages - 1) * page_tokens < tokens <= pages * page_tokens
