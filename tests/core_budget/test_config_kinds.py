"""How a configuration's keys become layers; what is refused by name, and what is taken and said."""

from typing import Any

import pytest

from kvbudget.cachebytes import token_bytes
from kvbudget.errors import ShapeError
from kvbudget.layers import Architecture, AttentionCache, CompressedCache, LatentCache, StateCache
from kvbudget.shapes.config import from_config, from_config_text
from kvbudget.shapes.table import facts

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
GDN = {
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 64,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
MAMBA2 = {"mamba_num_heads": 32, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 4, "conv_kernel": 4}


def config(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**LLAMA, **changes}.items() if value != "remove"}


def layers_by_kind(shape: Architecture) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for group in shape.groups:
        kind = type(group.cache).__name__
        if isinstance(group.cache, AttentionCache):
            kind = "window" if group.cache.window else "chunk" if group.cache.chunk else "full"
        found[kind] = found.get(kind, ()) + group.layers
    return found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, {"full": range(8)}, id="llama"),
        pytest.param(
            {"model_type": "mistral", "sliding_window": 4096}, {"window": range(8)}, id="mistral slides everywhere"
        ),
        pytest.param(
            {"model_type": "cohere2", "sliding_window": 4096, "sliding_window_pattern": 4, "layer_switch": 4,
             "order_of_interleaved_layers": "local_attn_first"},
            {"window": (0, 1, 2, 4, 5, 6), "full": (3, 7)}, id="cohere2 as published"
        ),
        pytest.param({"attn_type_list": [1] * 8}, {"full": range(8)}, id="attention everywhere"),
        pytest.param({"sliding_window": 65536}, {"full": range(8)}, id="a window beyond the longest sequence"),
        pytest.param({"sliding_window": 4096, "use_sliding_window": False}, {"full": range(8)}, id="switched off"),
        pytest.param(
            {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 6},
            {"full": range(6), "window": (6, 7)},
            id="qwen2 slides above max_window_layers",
        ),
        pytest.param(
            {"model_type": "gemma2", "sliding_window": 4096},
            {"window": (0, 2, 4, 6), "full": (1, 3, 5, 7)},
            id="gemma2 alternates",
        ),
        pytest.param(
            {"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 4},
            {"window": (0, 1, 2, 4, 5, 6), "full": (3, 7)},
            id="gemma3's pattern",
        ),
        pytest.param(
            {"model_type": "gemma3_text", "sliding_window": 512},
            {"window": (0, 1, 2, 3, 4, 6, 7), "full": (5,)},
            id="gemma3 without a pattern: one in six",
        ),
        pytest.param(
            {"layer_types": ["full_attention"] * 6 + ["sliding_attention"] * 2, "sliding_window": 128},
            {"full": range(6), "window": (6, 7)},
            id="a list wins over rules",
        ),
        pytest.param(
            {"model_type": "llama4_text", "attention_chunk_size": 8192, "intermediate_size_mlp": 8192},
            {"chunk": (0, 1, 2, 4, 5, 6), "full": (3, 7)},
            id="llama4: every fourth is full",
        ),
        pytest.param({"model_type": "deepseek_v3", **MLA}, {"LatentCache": range(8)}, id="MLA"),
        pytest.param(
            {"model_type": "qwen3_next", "full_attention_interval": 4, **GDN},
            {"StateCache": (0, 1, 2, 4, 5, 6), "full": (3, 7)},
            id="one full layer in four",
        ),
        pytest.param(
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-M-E", "num_experts": 4, **MAMBA2},
            {"StateCache": (0, 2, 5), "full": (3,), "NoCache": (1, 4, 6, 7)},
            id="nemotron's letters",
        ),
        pytest.param(
            {"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 1, "mamba_d_state": 16,
             "mamba_d_conv": 4},
            {"StateCache": (0, 2, 3, 4, 6, 7), "full": (1, 5)},
            id="jamba's period",
        ),
        pytest.param(
            {"model_type": "falcon_h1", "mamba_d_ssm": 2048, "mamba_n_heads": 32, "mamba_d_state": 128},
            {"full": range(8), "StateCache": range(8)},
            id="falcon-h1 keeps both in every layer",
        ),
        pytest.param(
            {"model_type": "gemma4_text", "sliding_window": 512, "sliding_window_pattern": 2,
             "num_kv_shared_layers": 4},
            {"window": (0, 2), "full": (1, 3), "SharedCache": (4, 5, 6, 7)},
            id="the last layers share",
        ),
        pytest.param(
            {"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": [4, 8], "num_heads": 8,
             "kda_layers": [1, 2, 3, 5, 6, 7], "head_dim": 64}, **MLA},
            {"StateCache": (0, 1, 2, 4, 5, 6), "LatentCache": (3, 7)},
            id="kimi counts from one",
        ),
        pytest.param(
            {"model_type": "kimi_linear", "linear_head_dim": 64, "linear_num_heads": 8, "linear_conv_kernel_dim": 4,
             "layer_types": ["linear_attention", "full_attention"] * 4, **MLA},
            {"StateCache": (0, 2, 4, 6), "LatentCache": (1, 3, 5, 7)},
            id="kimi as transformers 5 writes it",
        ),
        pytest.param(
            {"model_type": "granitemoehybrid", "layer_types": ["linear_attention"] * 7 + ["full_attention"],
             "mamba_n_heads": 32, "mamba_d_state": 128},
            {"StateCache": range(7), "full": (7,)},
            id="mamba under its newer name",
        ),
        pytest.param(
            {"model_type": "deepseek_v4", "head_dim": 128, "qk_rope_head_dim": 64, "q_lora_rank": 64,
             "sliding_window": 128, "index_head_dim": 32, "index_n_heads": 2, "compress_rates": {"csa": 4, "hca": 128},
             "layer_types": ["sliding_attention", "csa", "hca", "csa"] * 2},
            {"CompressedCache": range(8)},
            id="ratios by the names of layers",
        ),
        pytest.param(
            {"model_type": "gemma4_text", "layer_types": ["sliding_attention", "full_attention"] * 4, "head_dim": 64,
             "sliding_window": 512, "per_layer_config": {f"{i:02}": {"head_dim": 128} for i in (1, 3, 5, 7)}},
            {"window": (0, 2, 4, 6), "full": (1, 3, 5, 7)},
            id="wide heads layer by layer",
        ),
    ],
)  # fmt: skip
def test_each_key_says_which_layers_keep_what(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    found = layers_by_kind(from_config(config(**changes)))
    assert {kind: sorted(layers) for kind, layers in found.items()} == {k: list(v) for k, v in expected.items()}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["full_attention", "quantum_attention"] * 4}, 'layer_types has "quantum_attention"'),
        ({"layer_types": ["full_attention"] * 7}, "layer_types has 7 entries for 8 layers"),
        ({"hybrid_override_pattern": "MMMMMMX*"}, 'hybrid_override_pattern has "X"'),
        ({"hybrid_override_pattern": "M*"}, "hybrid_override_pattern has 2 letters for 8 layers"),
        ({"kv_compression_factor": 2}, "kv_compression_factor is 2: not known, and its name says that it could change"),
        ({"cross_layer_attention": True}, "cross_layer_attention is true: layers share K and V, which is not modelled"),
        ({"num_kv_shared_layers": 8}, "num_kv_shared_layers is 8 of 8 layers; at least one must keep its own"),
        ({"num_key_value_heads": 5}, "num_attention_heads 16 is not a multiple of num_key_value_heads 5"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "7 does not divide hidden_size 1024; add head_dim"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be a whole number from 1 to 1024"),
        ({"num_hidden_layers": True}, "num_hidden_layers is true"),
        ({"head_dim": -1}, "head_dim is -1"),
        ({"head_dim": float("nan")}, "head_dim is NaN"),
        ({"torch_dtype": "int3"}, 'torch_dtype is "int3"; known: bfloat16'),
        ({"quantization_config": {"quant_method": "magic"}}, 'quant_method "magic": its bits are not known'),
        ({"quantization_config": {"bits": 4}}, "quant_method is missing"),
        ({"quantization_config": {"quant_algo": "FP3"}}, 'quant_algo "FP3" is not known'),
        ({"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": "FP2"}}, 'kv_cache_scheme is "FP2"'),
        ({"rope_scaling": {"type": "yarn", "factor": 1e9}}, "the factor of rope_scaling is 1000000000.0"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok is 9 of 8 experts"),
        ({"text_config": []}, "text_config is []; it must be an object"),
        ({"vocab_size": "remove"}, "key vocab_size is missing"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "key qk_rope_head_dim is missing"),
        ({"per_layer_config": {"1": {"head_dim": 9}}}, "per_layer_config must name the full-attention layers"),
        ({"compress_rates": {"a": 4}, "layer_types": ["b"] * 8}, 'layer_types has "b", for which compress_rates has'),
        ({"attn_type_list": [0] * 7 + [1]}, "attn_type_list is [0, 0, 0, 0, 0, 0, 0, 1]: what its linear layers keep"),
        ({"multi_query": True}, "multi_query is true: one head of K and V"),
        ({"num_query_groups": 2}, "num_query_groups is 2 where the other keys give 4"),
        ({"sliding_window_size": 1024}, "sliding_window_size is 1024 where the other keys give null"),
        ({"total_ut_steps": 4}, "total_ut_steps is 4: layers run and keep K and V several times"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is true: K and V of the encoder are kept too"),
        ({"block_configs": [{}]}, "block_configs must be a list with an object for each of the 8 layers"),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_name_of_the_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ShapeError) as raised:
        from_config(config(**changes), "x/config.json")
    assert str(raised.value).startswith("x/config.json")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "remove"}, "the file names no model_type"),
        ({"model_type": "novel"}, 'model_type "novel" is not known'),
        ({"torch_dtype": "remove"}, "the file names no dtype; BF16 is taken"),
        ({"max_position_embeddings": "remove"}, "no max_position_embeddings; no length is refused"),
        ({"vision_config": {"model_type": "siglip"}}, "the vision tower's weights are not counted"),
        ({"audio_config": {"hidden_size": 4}}, "the audio tower's weights are not counted"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors"}},
            "does not say how many bits the weights have",
        ),
        ({"quantization_config": {"quant_algo": "MIXED_PRECISION"}}, "weights of MIXED_PRECISION are taken as"),
        (
            {"sparse_attention_config": {"sparse_index_dim": 128, "sparse_attention_freq": [0] + [1] * 7}},
            "one 16-bit index key per token",
        ),
    ],
)
def test_what_was_taken_instead_of_a_fact_stands_in_the_assumptions(changes: dict[str, Any], said: str) -> None:
    assert any(said in note for note in from_config(config(**changes)).assumptions)


def test_a_published_configuration_needs_no_assumption() -> None:
    assert from_config(LLAMA).assumptions == ()


@pytest.mark.parametrize("harmless", [{"kv_sharing": None}, {"attention_sparsity": False}, {"attention_window": 0}])
def test_an_unknown_key_that_says_nothing_is_no_reason_to_refuse(harmless: dict[str, Any]) -> None:
    assert from_config({**LLAMA, **harmless}) == from_config(LLAMA)


def test_nested_text_configs_win_over_what_is_around_them() -> None:
    outer = {"model_type": "qwen3_vl", "hidden_size": 7, "text_config": config(model_type="qwen3_vl_text")}
    assert from_config(outer).hidden_size == 1024


@pytest.mark.parametrize(
    ("given", "matrices", "experts", "kv"),
    [
        ({"quant_method": "fp8"}, 8000, 8000, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8002, 8002, None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4156, 4156, None),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8000, 8000, None),
        ({"quant_method": "mxfp4"}, 16000, 4250, None),
        ({"quant_algo": "FP8", "kv_cache_scheme": "FP8"}, 8000, 8000, "FP8E4M3"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"],
             "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
            4500, 4500, "FP8E4M3",
        ),
        (
            {"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*", "lm_head"],
             "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}},
            16000, 4500, None,
        ),
        (
            {"quant_method": "compressed-tensors",
             "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}}},
            8000, 8000, None,
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4250, 4250, None),
    ],
)  # fmt: skip
def test_quantised_checkpoints_say_their_bits(given: dict[str, Any], matrices: int, experts: int, kv: object) -> None:
    shape = from_config(config(quantization_config=given))
    assert (shape.weights.mixer_millibits, shape.weights.expert_millibits, shape.kv_dtype) == (matrices, experts, kv)


def test_lists_of_single_layers_count_where_they_name_at_least_half() -> None:
    few = {"quant_algo": "NVFP4", "exclude_modules": ["model.layers.0.self_attn*"]}
    most = {"quant_algo": "NVFP4", "exclude_modules": [f"model.layers.{i}.self_attn*" for i in range(4)]}
    found = [from_config(config(quantization_config=given)).weights.mixer_millibits for given in (few, most)]
    assert found == [4500, 16000]


def test_sparse_indexers_are_shared_between_layers() -> None:
    shape = from_config(facts("zai-org/GLM-5.2"))
    indexed = next(g for g in shape.groups if isinstance(g.cache, LatentCache) and g.cache.index_dim)
    assert indexed.layers == (0, 1, *range(2, 78, 4))


def test_deepseek_v4_has_three_kinds_of_layers() -> None:
    shape = from_config(facts("deepseek-ai/DeepSeek-V4-Flash"))
    found = {g.cache.ratio: (g.count, g.cache.index_dim) for g in shape.groups if isinstance(g.cache, CompressedCache)}
    assert found == {0: (2, 0), 4: (21, 128), 128: (20, 0)}


def test_wide_heads_of_full_layers_are_seen() -> None:
    shape = from_config(facts("nvidia/Gemma-4-31B-IT-NVFP4"))
    caches = {g.cache.window: (g.cache.kv_heads, g.cache.head_dim) for g in shape.groups
              if isinstance(g.cache, AttentionCache)}  # fmt: skip
    assert caches == {1024: (16, 256), None: (4, 512)}


def test_keys_and_values_of_different_width_are_both_counted() -> None:
    shape = from_config(facts("XiaomiMiMo/MiMo-V2-Flash"))
    assert {token_bytes(g.cache, "BF16") for g in shape.groups} == {4 * (192 + 128) * 2, 8 * (192 + 128) * 2}


def test_states_have_the_dtype_of_the_file() -> None:
    shapes = [from_config(facts(name)) for name in ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3.5-27B")]
    dtypes = [g.cache.state_dtype for s in shapes for g in s.groups if isinstance(g.cache, StateCache)]
    assert dtypes == ["BF16", "FP32"]


def test_a_configuration_that_is_no_json_is_refused() -> None:
    with pytest.raises(ShapeError, match="is not JSON"):
        from_config_text("{", "c.json")
