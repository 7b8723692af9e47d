"""Mistral's own params.json, translated to the keys of a config.json.

>>> shape = from_params({"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
...                      "n_kv_heads": 8, "vocab_size": 32768, "max_seq_len": 32768})
>>> shape.kind, shape.groups[0].cache.kv_heads
('full', 8)
"""

from collections.abc import Mapping
from typing import Final

from kvbudget.errors import ShapeError
from kvbudget.layers import Architecture
from kvbudget.shapes.config import from_config
from kvbudget.shapes.keys import MAX_LENGTH, Keys, short

_SAME: Final = (
    "head_dim",
    "vocab_size",
    "sliding_window",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "max_position_embeddings",
    "rope_scaling",
)
_RENAMED: Final[dict[str, str]] = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "tied_embeddings": "tie_word_embeddings",
    "max_seq_len": "max_position_embeddings",
}
_EXPERTS: Final[dict[str, str]] = {
    "num_experts": "n_routed_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size",
    "num_shared_experts": "n_shared_experts",
    "first_k_dense_replace": "first_k_dense_replace",
}
_IGNORED: Final = (
    "norm_eps",
    "rope_theta",
    "use_biases",
    "causal",
    "model_type",
    "yarn",
    "llama_4_scaling",
    "ragged_attention",
    "audio_encoder_args",
    "vision_encoder",
    "moe",
    "quantization",
    "quantization_config",
    "_sliding_window",
)
_FORMATS: Final[dict[str, str]] = {"fp8_e4m3": "FP8", "nvfp4": "NVFP4"}


def from_params(params: object, path: str = "params.json", *, name: str | None = None) -> Architecture:
    """The model of a parsed params.json. Raises ShapeError as :func:`from_config` does, and for keys that are not
    Mistral's."""
    if not isinstance(params, Mapping):
        raise ShapeError(path, f"holds a {type(params).__name__}, not an object; use the model's own params.json")
    keys = Keys(params, path)
    unknown = [k for k in params if k not in {*_SAME, *_RENAMED, *_IGNORED} and keys.has(str(k))]
    if unknown:
        keys.fail(f"{unknown[0]} is {short(params[unknown[0]])}: not a known key of Mistral's format")
    config: dict[str, object] = {k: params[k] for k in _SAME if params.get(k) is not None}
    config.update(
        {new: params[old] for old, new in _RENAMED.items() if params.get(old) is not None and new not in config}
    )
    config["torch_dtype"] = "bfloat16"
    config["model_type"] = "mistral_large3" if keys.has("kv_lora_rank") else "mistral"
    _experts(keys, config)
    _windows(keys, config)
    tower = keys.child("vision_encoder")
    if tower is not None:
        config["vision_config"] = {**tower.config, "model_type": "pixtral"}
    _quantisation(keys, config)
    yarn = keys.child("yarn")
    if yarn is not None and yarn.has("factor"):
        original = yarn.optional("original_max_position_embeddings")
        config["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": yarn.number("factor"),
            "original_max_position_embeddings": original,
        }
    return from_config(config, path, name=name)


def _experts(keys: Keys, config: dict[str, object]) -> None:
    nested = keys.child("moe")
    if nested is None:
        return
    config.update({new: nested.config[old] for old, new in _EXPERTS.items() if nested.config.get(old) is not None})
    if config["model_type"] == "mistral":
        config["model_type"] = "mixtral"


def _windows(keys: Keys, config: dict[str, object]) -> None:
    """``sliding_window`` may be a pattern that repeats over the layers; null stands for full attention."""
    window = config.get("sliding_window")
    if not isinstance(window, list):
        return
    sizes = {keys.whole(w, "sliding_window", least=1, most=MAX_LENGTH) for w in window if w is not None}
    if len(sizes) > 1 or not window:
        keys.fail(f"sliding_window is {short(window)}; one size of window is known, beside full attention")
    layers = keys.count("n_layers")
    config["sliding_window"] = next(iter(sizes), None)
    config["layer_types"] = [
        "full_attention" if window[i % len(window)] is None else "sliding_attention" for i in range(layers)
    ]


def _quantisation(keys: Keys, config: dict[str, object]) -> None:
    if keys.has("quantization_config"):
        config["quantization_config"] = keys.config["quantization_config"]
        return
    nested = keys.child("quantization")
    if nested is None or not nested.config:
        return
    stored = nested.text("qformat_weight")
    if stored is None or stored not in _FORMATS:
        nested.fail(f"qformat_weight is {short(stored)}; known: {', '.join(_FORMATS)}")
    config["quantization_config"] = {"quant_algo": _FORMATS[stored]}
