"""The keys of a GGUF header, translated to those of a config.json (llama.cpp, gguf-py/gguf/constants.py)."""

from collections.abc import Mapping
from typing import Final

from kvbudget.errors import ShapeError
from kvbudget.shapes.keys import MAX_LAYERS, Keys, short

_MODEL_TYPES: Final[dict[str, str]] = {
    "llama": "llama", "llama4": "llama4", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen2vl": "qwen2_vl",
    "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "qwen3next": "qwen3_next", "qwen3vl": "qwen3_vl",
    "qwen3vlmoe": "qwen3_vl_moe", "qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3": "gemma3", "gemma4": "gemma4", "phi2": "phi", "phi3": "phi3", "phimoe": "phimoe",
    "mistral3": "mistral", "command-r": "cohere", "cohere2": "cohere2", "deepseek2": "deepseek_v3",
    "gpt-oss": "gpt_oss", "granite": "granite", "smollm3": "smollm3", "olmo2": "olmo2", "glm4moe": "glm4_moe",
    "minimax-m2": "minimax_m2", "nemotron_h": "nemotron_h", "granitehybrid": "granitemoehybrid", "jamba": "jamba",
    "falcon-h1": "falcon_h1", "lfm2": "lfm2", "lfm2moe": "lfm2_moe",
}  # fmt: skip
_PLAIN: Final[dict[str, str]] = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.sliding_window": "sliding_window",
    "attention.chunk_size": "attention_chunk_size",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "full_attention_interval": "full_attention_interval",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "shortconv.l_cache": "conv_L_cache",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
}
_RECURRENT: Final[dict[str, str]] = {
    "qwen3next": "linear_attention",
    "qwen35": "linear_attention",
    "qwen35moe": "linear_attention",
}
_CONVOLUTIONS: Final = ("lfm2", "lfm2moe")


def config_of(values: Mapping[str, object], path: str) -> dict[str, object]:
    """The keys of a config.json that say the same. Raises ShapeError for an architecture that is not known."""
    name = values.get("general.architecture")
    if not isinstance(name, str) or name not in _MODEL_TYPES:
        known = ", ".join(_MODEL_TYPES)
        raise ShapeError(path, f"general.architecture is {short(name)}; known: {known}")
    prefix = f"{name}."
    own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    keys = Keys(own, path)
    config: dict[str, object] = {new: own[old] for old, new in _PLAIN.items() if own.get(old) not in (None, 0)}
    config["model_type"] = _MODEL_TYPES[name]
    config["torch_dtype"] = "float16"  # in which llama.cpp keeps KV
    layers = keys.whole(own.get("block_count"), "block_count", least=1, most=MAX_LAYERS)
    _vocabulary(values, config)
    _mlp(own, config, keys)
    kinds = _heads(own, config, keys, layers)
    _windows(own, config, keys, layers)
    if "kv_lora_rank" in config:
        _latent(own, config, keys)
    else:
        _head_dims(own, config)
    _states(name, own, config, keys, kinds)
    return config


def untranslated(values: Mapping[str, object]) -> dict[str, object]:
    """The architecture's own keys that :func:`config_of` does not rename, as they stand; ``known.csv`` has their class.

    >>> untranslated({"general.architecture": "llama", "llama.block_count": 2, "llama.rope.freq_base": 1e4})
    {'llama.rope.freq_base': 10000.0}
    """
    prefix = f"{values.get('general.architecture')}."
    return {
        key: value for key, value in values.items() if key.startswith(prefix) and key.removeprefix(prefix) not in _PLAIN
    }


def _vocabulary(values: Mapping[str, object], config: dict[str, object]) -> None:
    """Tokens are the tokenizer's; long arrays are kept as their length."""
    tokens = values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, int):
        config["vocab_size"] = tokens


def _mlp(own: Mapping[str, object], config: dict[str, object], keys: Keys) -> None:
    width = own.get("feed_forward_length")
    if isinstance(width, list):
        sizes = sorted({w for w in width if w})
        if len(sizes) > 1:
            keys.fail(f"feed_forward_length has {len(sizes)} different widths; one is known for a file")
        width = sizes[0] if sizes else None
    if width:
        config["intermediate_size"] = width


def _heads(own: Mapping[str, object], config: dict[str, object], keys: Keys, layers: int) -> list[int]:
    """KV heads, one number or one a layer; 0 is a layer without attention. Returns the list, empty for one number."""
    value = own.get("attention.head_count_kv")
    heads = own.get("attention.head_count")
    if isinstance(heads, list):
        config["num_attention_heads"] = max(heads, default=0)
    if not isinstance(value, list):
        config["num_key_value_heads"] = config.get("num_attention_heads") if value is None else value
        return []
    if len(value) != layers:
        keys.fail(f"attention.head_count_kv has {len(value)} entries for {layers} layers")
    sizes = sorted({v for v in value if v})
    if len(sizes) > 1:
        keys.fail(f"attention.head_count_kv has {len(sizes)} different counts; one is known for a file")
    if sizes:
        config["num_key_value_heads"] = sizes[0]
    return [int(v) for v in value]


def _windows(own: Mapping[str, object], config: dict[str, object], keys: Keys, layers: int) -> None:
    pattern = own.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != layers:
            keys.fail(f"attention.sliding_window_pattern has {len(pattern)} entries for {layers} layers")
        config["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern


def _head_dims(own: Mapping[str, object], config: dict[str, object]) -> None:
    key, value = own.get("attention.key_length"), own.get("attention.value_length")
    swa = own.get("attention.key_length_swa")
    if key is not None and swa is not None and swa != key:  # Gemma 4: the full layers have wider heads
        config["head_dim"], config["global_head_dim"] = swa, key
        return
    if key is not None:
        config["head_dim"] = key
    if value is not None and value != key:
        config["v_head_dim"] = value


def _latent(own: Mapping[str, object], config: dict[str, object], keys: Keys) -> None:
    rope = keys.whole(own.get("rope.dimension_count"), "rope.dimension_count", least=1, most=4096)
    query = own.get("attention.key_length_mla", own.get("attention.key_length"))
    whole = keys.whole(query, "attention.key_length_mla", least=rope + 1, most=4096)
    config["qk_rope_head_dim"], config["qk_nope_head_dim"] = rope, whole - rope
    config["v_head_dim"] = own.get("attention.value_length_mla", own.get("attention.value_length"))
    config["num_key_value_heads"] = config.get("num_attention_heads")


def _states(name: str, own: Mapping[str, object], config: dict[str, object], keys: Keys, kv_heads: list[int]) -> None:
    """State-space and convolution layers: those without KV heads."""
    if name in _CONVOLUTIONS:
        config["layer_types"] = ["full_attention" if heads else "conv" for heads in kv_heads]
        config["block_auto_adjust_ff_dim"] = False  # feed_forward_length is what the MLP has
        return
    inner = own.get("ssm.inner_size")
    if inner is None:
        return
    state, groups = own.get("ssm.state_size"), own.get("ssm.group_count")
    config["conv_kernel"] = own.get("ssm.conv_kernel")
    if kv_heads:
        recurrent = _RECURRENT.get(name, "mamba")
        config["layer_types"] = ["full_attention" if heads else recurrent for heads in kv_heads]
    if name in _RECURRENT:
        width = keys.whole(inner, "ssm.inner_size", least=1, most=2**21)
        dim = keys.whole(state, "ssm.state_size", least=1, most=4096)
        config.update(
            linear_key_head_dim=dim,
            linear_value_head_dim=dim,
            linear_num_key_heads=groups,
            linear_num_value_heads=width // dim,
            linear_conv_kernel_dim=config.pop("conv_kernel"),
        )
        return
    heads = own.get("ssm.time_step_rank")
    config.update(mamba_d_ssm=inner, mamba_n_heads=heads, ssm_state_size=state, n_groups=groups)
    if name == "jamba":
        hidden = keys.whole(own.get("embedding_length"), "embedding_length", least=1, most=2**21)
        width = keys.whole(inner, "ssm.inner_size", least=hidden, most=2**21)
        config.update(mamba_d_state=state, mamba_dt_rank=heads, mamba_expand=width // hidden)
