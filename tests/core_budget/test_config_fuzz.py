"""A configuration that was tampered with gives a refusal that names a key, or a model that its keys explain."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.cachebytes import state_bytes, token_bytes
from kvbudget.errors import ShapeError, WeightsError
from kvbudget.layers import Architecture, StateCache
from kvbudget.shapes.config import from_config
from kvbudget.shapes.gguf import read_header
from kvbudget.shapes.mistral import from_params
from kvbudget.shapes.safetensors import tensors_of
from kvbudget.shapes.table import facts
from kvbudget.weights import count, stored_bytes
from support.laws import share

SEEDS = [
    facts(name) or {}
    for name in (
        "meta-llama/Meta-Llama-3.1-8B",
        "deepseek-ai/DeepSeek-V3.2",
        "deepseek-ai/DeepSeek-V4-Flash",
        "Qwen/Qwen3.5-35B-A3B",
        "google/gemma-4-E2B-it",
        "openai/gpt-oss-20b",
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
        "ai21labs/Jamba-v0.1",
        "moonshotai/Kimi-Linear-48B-A3B-Instruct",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
        "tiiuae/Falcon-H1-1.5B-Deep-Instruct",
        "google/gemma-3n-E2B-it",
        "MiniMaxAI/MiniMax-M1-80k",
        "LiquidAI/LFM2-8B-A1B",
        "Zyphra/Zamba2-1.2B",
    )
]
EVERY_KEY = sorted({key for seed in SEEDS for key in seed} | {"kv_heads_shared", "text_config", "rope_scaling"})
WORDS = st.sampled_from(["", "full_attention", "linear_attention", "M*", "fp8", "yarn", "llama", "float32", "é"])
NUMBERS = st.integers(-3, 130) | st.sampled_from([2**31, 2**63, 10**40, -(10**20)]) | st.floats(width=64)
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(EVERY_KEY), inner, max_size=3),
    max_leaves=6,
)
DIMENSIONS = ("layers", "hidden_size", "vocab_size", "attention_heads")


def check(shape: Architecture) -> None:
    """No number of a model that was accepted is missing, negative, or beyond what a checkpoint could have."""
    assert all(1 <= getattr(shape, name) <= 2**24 for name in DIMENSIONS)
    assert sorted({i for group in shape.groups for i in group.layers}) == list(range(shape.layers))
    for group in shape.groups:
        assert group.elements.total >= 0
        assert token_bytes(group.cache, "BF16") >= 0
        if isinstance(group.cache, StateCache):
            assert state_bytes(group.cache) > 0
    counted = count(shape, drafts=True)
    assert 0 < counted.total < 2**70
    assert 0 < stored_bytes(shape, counted) < 2**72
    assert all(isinstance(note, str) and note for note in shape.assumptions)


def read(config: object) -> Architecture | None:
    try:
        return from_config(config)
    except ShapeError as error:
        refusal = error
    assert str(refusal).startswith("config.json")
    assert refusal.reason
    return None


@share(5)  # 500 here, 10,000 in the soak
@given(st.sampled_from(SEEDS), st.dictionaries(st.sampled_from(EVERY_KEY), VALUES, min_size=1, max_size=4))
def test_a_tampered_configuration_is_refused_or_explained(seed: dict[str, Any], changes: dict[str, Any]) -> None:
    shape = read({**seed, **changes})
    if shape is not None:
        check(shape)


@given(st.sampled_from(SEEDS), st.sets(st.sampled_from(EVERY_KEY), min_size=1, max_size=5))
def test_a_configuration_without_some_keys_is_refused_or_explained(seed: dict[str, Any], gone: set[str]) -> None:
    shape = read({key: value for key, value in seed.items() if key not in gone})
    if shape is not None:
        check(shape)


@given(
    st.sampled_from(SEEDS), st.sampled_from(EVERY_KEY), st.sampled_from([True, -1, 0.5, "8", [], float("nan"), 2**40])
)
def test_a_count_that_is_no_count_is_never_taken(seed: dict[str, Any], key: str, wrong: object) -> None:
    """A whole number that a model depends on is replaced by something that is none: the model must not stay the same,
    unless the key did not matter to it."""
    value = seed.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or key in ("vision_parameters", "index_topk"):
        return
    shape = read({**seed, key: wrong})
    if shape is not None:
        check(shape)
        assert shape == read({k: v for k, v in seed.items() if k != key}) or wrong == []


@given(VALUES)
def test_anything_that_is_json_is_refused_or_explained(value: object) -> None:
    shape = read(value)
    if shape is not None:
        check(shape)


@given(st.dictionaries(st.sampled_from(["dim", "n_layers", "n_heads", "hidden_dim", "moe", "sliding_window", "yarn",
                                        "quantization", "vision_encoder", "kv_lora_rank"]), VALUES))  # fmt: skip
def test_tampered_params_are_refused_or_explained(changes: dict[str, Any]) -> None:
    params = {"dim": 64, "n_layers": 4, "n_heads": 4, "hidden_dim": 128, "vocab_size": 100, "n_kv_heads": 2}
    with suppress(ShapeError):
        check(from_params({**params, **changes}))


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: b"GGUF\x03\0\0\0" + tail))
def test_bytes_that_are_no_gguf_are_refused(data: bytes) -> None:
    try:
        header = read_header(data)
    except WeightsError:
        return
    assert header.tensor_bytes >= 0


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
def test_safetensors_headers_that_are_none_are_refused(entries: dict[str, Any]) -> None:
    text = json.dumps(entries, default=str).encode()
    try:
        tensors = tensors_of(text, "x.safetensors")
    except WeightsError:
        return
    assert all(t.end >= t.begin for t in tensors.values())


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: str(seed["model_type"]))
def test_the_seeds_themselves_are_read(seed: dict[str, Any]) -> None:
    check(from_config(seed))
