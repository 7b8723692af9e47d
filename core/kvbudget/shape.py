"""The facts of a dense decoder from which its memory follows, and a Hugging Face ``config.json`` that has them
(:func:`from_config`). What ``spec.model`` of a service means is in ``served``."""

import json
from typing import Final

from kvbudget.api.base import Model
from kvbudget.errors import ShapeError

MAX_FACT: Final = 2**31 - 1
"""Bound of every fact that a config may state."""


class ModelShape(Model):
    """A dense decoder: every layer keeps K and V for every token (MHA, GQA or MQA).

    ``kv_heads == attention_heads`` is MHA, 1 is MQA, anything between is GQA.
    """

    layers: int
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tied_embeddings: bool = False
    weight_bytes: int | None = None
    """Bytes of the checkpoint where known; else the weights are counted from the shape and the weight precision."""
    rope_scaling: bool = False
    """The position encoding can be stretched: a maxModelLen above max_position_embeddings is then a warning."""

    def difference(self, other: "ModelShape") -> tuple[str, ...]:
        """Names of the facts that decide how tensors look and in which the two differ (not: bytes of the checkpoint,
        length limits). Empty: weights of one can be read with the shape of the other."""
        return tuple(name for name in GEOMETRY if getattr(self, name) != getattr(other, name))


GEOMETRY: Final = (
    "layers",
    "hidden_size",
    "intermediate_size",
    "attention_heads",
    "kv_heads",
    "head_dim",
    "vocab_size",
    "tied_embeddings",
)


def contradiction(shape: ModelShape) -> str | None:
    """Why no model can have this shape, or None.

    >>> from kvbudget.served import named
    >>> contradiction(named("Qwen/Qwen2.5-7B")) is None
    True
    >>> contradiction(named("Qwen/Qwen2.5-7B").model_copy(update={"kv_heads": 5}))
    'attentionHeads 28 is not a multiple of kvHeads 5; every KV head serves the same number of query heads'
    """
    for name in ModelShape.model_fields:
        value = getattr(shape, name)
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            return f"{ModelShape.model_fields[name].alias} is {value}; it must be 1 or more"
    if shape.attention_heads % shape.kv_heads:
        return (
            f"attentionHeads {shape.attention_heads} is not a multiple of kvHeads {shape.kv_heads}; "
            "every KV head serves the same number of query heads"
        )
    return None


SERVED_TYPES: Final = ("llama", "mistral", "qwen2")
"""Model types that the bundled worker runs: every layer is attention over all tokens and a gated MLP."""

_REFUSED_KEYS: Final = (
    ("kv_lora_rank", "multi-head latent attention (MLA)"),
    ("num_local_experts", "a mixture of experts (MoE)"),
    ("num_experts", "a mixture of experts (MoE)"),
    ("n_routed_experts", "a mixture of experts (MoE)"),
    ("moe_intermediate_size", "a mixture of experts (MoE)"),
    ("attention_chunk_size", "chunked attention"),
    ("hybrid_override_pattern", "Mamba layers"),
    ("layers_block_type", "Mamba layers"),
    ("attn_layer_period", "Mamba layers"),
    ("mamba_d_state", "Mamba layers"),
    ("mamba_d_ssm", "Mamba layers"),
    ("ssm_cfg", "Mamba layers"),
    ("state_size", "Mamba layers"),
    ("full_attention_interval", "linear-attention layers"),
    ("linear_num_key_heads", "linear-attention layers"),
    ("num_kv_shared_layers", "layers that share KV"),
    ("text_config", "a multimodal model"),
    ("vision_config", "a multimodal model"),
)
_STRETCHING_ROPE: Final = ("linear", "dynamic", "yarn")
"""RoPE types whose factor multiplies the original length; others (llama3, longrope) already have it in
max_position_embeddings."""
_MAX_ROPE_FACTOR: Final = 1024


def from_config(config: object, path: str = "config.json") -> ModelShape:
    """The shape that a Hugging Face ``config.json`` (parsed) describes; ``path`` is named in errors.

    ``weight_bytes`` stays None: a config does not say how large the checkpoint is. Raises :class:`ShapeError` for a
    missing or wrong key, and for every kind of model whose memory is not that of a dense decoder.

    >>> shape = from_config({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100,
    ...                      "intermediate_size": 128, "num_attention_heads": 4, "max_position_embeddings": 512})
    >>> shape.kv_heads, shape.head_dim
    (4, 16)
    """
    if not isinstance(config, dict):
        raise ShapeError(path, f"holds a {type(config).__name__}, not an object; use the model's own config.json")
    _refuse_other_kinds(config, path)
    hidden, heads = _count(config, "hidden_size", path), _count(config, "num_attention_heads", path)
    if config.get("head_dim") is None and hidden % heads:
        reason = f"num_attention_heads {heads} does not divide hidden_size {hidden}; add head_dim"
        raise ShapeError(path, reason)
    length, stretched = _length(config, path)
    shape = ModelShape(
        layers=_count(config, "num_hidden_layers", path),
        hidden_size=hidden,
        intermediate_size=_count(config, "intermediate_size", path),
        attention_heads=heads,
        kv_heads=_count(config, "num_key_value_heads", path, default=heads),
        head_dim=_count(config, "head_dim", path, default=hidden // heads),
        vocab_size=_count(config, "vocab_size", path),
        max_position_embeddings=length,
        tied_embeddings=_flag(config, "tie_word_embeddings", path),
        rope_scaling=stretched,
    )
    wrong = contradiction(shape)
    if wrong is not None:
        raise ShapeError(path, f"{wrong}; use the model's own config.json")
    return shape


def from_config_text(text: str, path: str = "config.json") -> ModelShape:
    """:func:`from_config` of JSON text. Raises :class:`ShapeError` where it is no JSON."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        detail = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ShapeError(path, f"is not JSON ({detail}); download the model's config.json again") from None
    return from_config(config, path)


def _refuse_other_kinds(config: dict[str, object], path: str) -> None:
    for key, kind in _REFUSED_KEYS:
        value = config.get(key)
        if value not in (None, False, 0, [], {}) and not (key.startswith(("num_", "n_")) and value == 1):
            raise ShapeError(path, f"{key} is {_short(value)} ({kind}): not supported yet; serve a dense decoder")
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list):
        other = sorted({str(t) for t in layer_types if t != "full_attention"})
        if other:
            reason = f"layer_types has {', '.join(other)}: not supported yet; serve a model with full attention only"
            raise ShapeError(path, reason)
    window = config.get("sliding_window")
    used = config.get("use_sliding_window") is not False and not isinstance(layer_types, list)
    length = config.get("max_position_embeddings")
    if used and isinstance(window, int) and not (isinstance(length, int) and window >= length):
        reason = f"sliding_window is {window} (sliding-window attention): not supported yet; serve a dense decoder"
        raise ShapeError(path, reason)
    model_type = config.get("model_type")
    if model_type not in SERVED_TYPES:
        known = ", ".join(SERVED_TYPES)
        reason = f"model_type {_short(model_type)} is not supported yet; supported: {known}"
        raise ShapeError(path, f"{reason}. For another dense decoder set spec.model.shape by hand")


def _length(config: dict[str, object], path: str) -> tuple[int, bool]:
    """Longest sequence in tokens, and whether RoPE scaling stretches it."""
    length = _count(config, "max_position_embeddings", path)
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict):
        return length, False
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor")
    if kind not in _STRETCHING_ROPE or not isinstance(factor, int | float):
        return length, False
    if not 1 <= factor <= _MAX_ROPE_FACTOR:  # also refuses NaN, which JSON readers accept
        raise ShapeError(path, f"the factor of rope_scaling is {factor}; it must be from 1 to {_MAX_ROPE_FACTOR}")
    original = scaling.get("original_max_position_embeddings")
    return int((original if isinstance(original, int) else length) * factor), True


def _count(config: dict[str, object], key: str, path: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        if default is None:
            raise ShapeError(path, f"key {key} is missing; use the model's own config.json")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_FACT:
        raise ShapeError(path, f"{key} is {_short(value)}; it must be a whole number from 1 to {MAX_FACT}")
    return value


def _flag(config: dict[str, object], key: str, path: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ShapeError(path, f"{key} is {_short(value)}; it must be true or false")
    return value


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"
