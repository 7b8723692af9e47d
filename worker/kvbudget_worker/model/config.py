"""What the decoder must know of a model, parsed from ``config.json`` or a GGUF header; unknown variants are refused.

The facts that size memory (layers, heads, …) are compared with the Plan's shape by :func:`check_shape`; the rest (RoPE,
norm, biases) only the worker needs.
"""

import json
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from kvbudget.errors import ShapeError, UnsupportedError
from kvbudget.shape import MAX_FACT, ModelShape

Family = Literal["llama", "qwen2"]
ARCHITECTURES: Mapping[str, Family] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
}
_SIZES = ("layers", "hidden_size", "intermediate_size", "attention_heads", "kv_heads", "head_dim", "vocab_size")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position encoding. ``kind`` "linear" divides positions by ``factor``; "llama3" stretches low frequencies
    only (``low_freq_factor``, ``high_freq_factor``, ``original_max_positions``)."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A llama-family decoder: RMSNorm, RoPE on whole heads, grouped-query attention, SwiGLU."""

    family: Family
    layers: int
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope: Rope
    rms_norm_eps: float
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    eos_ids: tuple[int, ...] = field(default=())

    @property
    def query_size(self) -> int:
        return self.attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


def read_config(path: Path) -> ModelConfig:
    """Parse ``config.json``. Raises ShapeError with the file's path and the fix."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ShapeError(str(path), "not found: the weights folder needs the model's config.json") from None
    except OSError as e:
        raise ShapeError(str(path), f"cannot be read ({e.strerror}): check the volume and its permissions") from None
    except (ValueError, RecursionError) as e:
        raise ShapeError(str(path), f"is no valid JSON ({e}): copy the model's config.json again") from None
    if not isinstance(raw, dict):
        raise ShapeError(str(path), "must hold a JSON object: copy the model's config.json again")
    return parse_config(raw, str(path))


def read_eos_ids(config: ModelConfig, path: Path) -> ModelConfig:
    """``config`` with the end tokens of ``generation_config.json`` too, where there is one: chat models list their
    end-of-turn token only there."""
    if not path.exists():
        return config
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        ids = _token_ids(raw.get("eos_token_id"), str(path))
    except (OSError, ValueError, AttributeError, RecursionError) as e:
        raise ShapeError(str(path), f"cannot be read ({e}): copy it again, or remove it") from None
    return replace(config, eos_ids=tuple(dict.fromkeys((*config.eos_ids, *ids))))


def parse_config(raw: Mapping[str, Any], path: str) -> ModelConfig:
    """From the keys that `transformers` writes (version 4 and 5). Raises ShapeError; UnsupportedError for a known
    feature that this decoder does not have."""
    names = raw.get("architectures") or ["(none)"]
    name = names[0] if isinstance(names, list) and names else str(names)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnsupportedError(
            f"{path}: architectures", f"{name} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    family = ARCHITECTURES[name]
    _refuse_unsupported(raw, path)
    heads = _positive(raw, "num_attention_heads", path)
    hidden = _positive(raw, "hidden_size", path)
    attention_bias = _flag(raw, "attention_bias", path)
    return ModelConfig(
        family=family,
        layers=_positive(raw, "num_hidden_layers", path),
        hidden_size=hidden,
        intermediate_size=_positive(raw, "intermediate_size", path),
        attention_heads=heads,
        kv_heads=_groups(raw, heads, path),
        head_dim=_positive(raw, "head_dim", path)
        if raw.get("head_dim") is not None
        else _head_dim(hidden, heads, path),
        vocab_size=_positive(raw, "vocab_size", path),
        max_position_embeddings=_positive(raw, "max_position_embeddings", path),
        rope=_rope(raw, path),
        rms_norm_eps=_number(raw, "rms_norm_eps", path, 1e-6),
        tied_embeddings=_flag(raw, "tie_word_embeddings", path),
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias and name == "LlamaForCausalLM",
        eos_ids=_token_ids(raw.get("eos_token_id"), path),
    )


def check_shape(config: ModelConfig, shape: ModelShape, path: str) -> None:
    """Raises ShapeError, naming ``path``, unless the weights are of the shape that the Plan was computed for."""
    facts = (*_SIZES, "tied_embeddings")
    wrong = [
        f"{field} is {getattr(config, field)} here but {getattr(shape, field)} in the Plan"
        for field in facts
        if getattr(config, field) != getattr(shape, field)
    ]
    if wrong:
        raise ShapeError(
            path,
            "; ".join(wrong) + ". The budget was computed for another model: correct spec.model.shape, or point "
            "spec.model.source at the weights of spec.model.name",
        )


def _refuse_unsupported(raw: Mapping[str, Any], path: str) -> None:
    if raw.get("sliding_window") is not None and raw.get("use_sliding_window", True):
        raise UnsupportedError(f"{path}: sliding_window", "sliding-window attention is not supported yet")
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedError(f"{path}: hidden_act", f"{raw['hidden_act']!r} is not supported; silu is")
    if raw.get("mlp_bias"):
        raise UnsupportedError(f"{path}: mlp_bias", "biases in the MLP are not supported yet")
    if raw.get("quantization_config") is not None:
        raise UnsupportedError(
            f"{path}: quantization_config",
            "quantised safetensors are not supported yet: use BF16, FP16 or FP32 weights",
        )


def _positive(raw: Mapping[str, Any], key: str, path: str) -> int:
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_FACT:
        what = "is missing" if value is None else f"is {reprlib.repr(value)}, not a positive whole number"
        raise ShapeError(f"{path}: {key}", f"{what}: copy the model's config.json again")
    return value


def _number(raw: Mapping[str, Any], key: str, path: str, default: float) -> float:
    value = raw.get(key)
    if value is None:
        return default
    if not is_positive(value):
        raise ShapeError(
            f"{path}: {key}", f"is {reprlib.repr(value)}, not a positive number: copy the model's config.json again"
        )
    return float(value)


def is_positive(value: object) -> bool:
    """A number above 0 that a float can hold: JSON readers accept NaN, Infinity and integers of any length.

    >>> [is_positive(v) for v in (1e-5, 3, 0, True, "1", float("nan"), float("inf"), 10**400)]
    [True, True, False, False, False, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _flag(raw: Mapping[str, Any], key: str, path: str) -> bool:
    value = raw.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ShapeError(f"{path}: {key}", f"is {value!r}, not true or false: copy the model's config.json again")
    return value


def _head_dim(hidden: int, heads: int, path: str) -> int:
    if hidden % heads:
        raise ShapeError(f"{path}: head_dim", f"is missing, and hidden_size {hidden} is no multiple of {heads} heads")
    return hidden // heads


def _groups(raw: Mapping[str, Any], heads: int, path: str) -> int:
    kv_heads = heads if raw.get("num_key_value_heads") is None else _positive(raw, "num_key_value_heads", path)
    if heads % kv_heads:
        raise ShapeError(
            f"{path}: num_key_value_heads", f"{kv_heads} does not divide the {heads} attention heads evenly"
        )
    return kv_heads


def _rope(raw: Mapping[str, Any], path: str) -> Rope:
    """Version 4 writes ``rope_theta`` and ``rope_scaling``; version 5 writes both into ``rope_parameters``."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ShapeError(f"{path}: rope_scaling", "must be an object: copy the model's config.json again")
    theta = _number(scaling if "rope_theta" in scaling else raw, "rope_theta", path, 10_000.0)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", factor=_number(scaling, "factor", path, 1.0))
    if kind == "llama3":
        low, high = _number(scaling, "low_freq_factor", path, 1.0), _number(scaling, "high_freq_factor", path, 4.0)
        if low >= high:  # the frequencies between them are scaled by a division by their difference
            raise ShapeError(
                f"{path}: rope_scaling", f"low_freq_factor {low} must be below high_freq_factor {high}: copy it again"
            )
        return Rope(
            theta,
            "llama3",
            factor=_number(scaling, "factor", path, 8.0),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_positions=_positive(scaling, "original_max_position_embeddings", path),
        )
    raise UnsupportedError(f"{path}: rope_scaling", f"type {kind!r} is not supported; default, linear and llama3 are")


def _token_ids(value: object, path: str) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in values):
        raise ShapeError(f"{path}: eos_token_id", f"{value!r} is no token id: copy the model's config.json again")
    return tuple(values)
