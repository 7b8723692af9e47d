"""Hugging Face's config.json, and every dialect of it that puts the text model under ``text_config``.

>>> from kvbudget.shapes.config import from_config
>>> shape = from_config({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100,
...     "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512})
>>> shape.kind, shape.layers, shape.groups[0].cache.kv_heads
('full', 2, 2)
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvbudget.errors import ShapeError
from kvbudget.layers import Architecture, DType, Elements, LayerGroup
from kvbudget.shapes import mlps, quantisation, table, vision
from kvbudget.shapes.dialects import flattened
from kvbudget.shapes.drafts import draft_of
from kvbudget.shapes.families import FAMILIES, REFUSED, UNKNOWN, Family, family_name
from kvbudget.shapes.keys import Keys, short
from kvbudget.shapes.known import refuse_unknown
from kvbudget.shapes.layerlist import Plan, layer_mixers, layer_mlps
from kvbudget.shapes.mixers import Mixer
from kvbudget.shapes.sizes import head_size, hidden_size, kv_head_count, model_name, query_head_count
from kvbudget.shapes.stack import layer_count

_DTYPES: Final[dict[str, DType]] = {
    "bfloat16": "BF16",
    "float16": "FP16",
    "half": "FP16",
    "float32": "FP32",
    "float": "FP32",
}
_STRETCHING_ROPE: Final = ("linear", "dynamic", "yarn")
_MAX_ROPE_FACTOR: Final = 1024
_MOST_NAMES: Final = 40
_STATES_STRETCHED: Final = ("gemma3",)


def from_config_text(text: str, path: str = "config.json", *, name: str | None = None) -> Architecture:
    """:func:`from_config` of JSON text. Raises :class:`ShapeError` where it is no JSON."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        detail = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ShapeError(path, f"is not JSON ({detail}); download the model's config.json again") from None
    return from_config(config, path, name=name)


def from_config(config: object, path: str = "config.json", *, name: str | None = None) -> Architecture:
    """The model that a parsed config.json describes; ``path`` is named in errors.

    With ``name``, keys that the file lacks come from the table of known models, and the assumptions say which. Raises
    :class:`ShapeError` for a missing or impossible fact, a layer kind or a quantisation that is not known, and a key
    that could change the cache and is not understood.
    """
    if not isinstance(config, Mapping):
        raise ShapeError(path, f"holds a {type(config).__name__}, not an object; use the model's own config.json")
    merged, filled = table.completed(flattened(config, path), name)
    keys = Keys(merged, path)
    strange = refuse_unknown(keys)
    family, notes = _family(keys)
    if strange:
        notes = (*notes, f"keys of which nothing is known are taken to change nothing: {_listed(strange)}")
    if filled:
        notes = (*notes, f"not in the file, taken from what is known of {name}: {', '.join(filled)}")
    said = table.remark(name) if name is not None else None
    if said is not None:
        notes = (*notes, f"{name}: {said}")
    plan = _plan(keys, family)
    return _architecture(keys, plan, notes)


def _family(keys: Keys) -> tuple[Family, tuple[str, ...]]:
    model_type = keys.text("model_type")
    if model_type is None:
        return UNKNOWN, ("the file names no model_type; biases and norms are taken as Llama's",)
    known = FAMILIES.get(family_name(model_type))
    why = REFUSED.get(family_name(model_type))
    if why is not None:
        keys.fail(f"model_type {model_type} is not supported: {why}; set spec.model.shape by hand")
    if known is None:
        return UNKNOWN, (f"model_type {short(model_type)} is not known; its keys are read as those of Llama",)
    return known, ()


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(name[:100] for name in names[:_MOST_NAMES]) + more


def _plan(keys: Keys, family: Family) -> Plan:
    """Sizes that all layers share; the family with what the file says of its flags."""
    if keys.config.get("attention_bias") is not None and keys.text("model_type") not in ("glm4_moe", "qwen2"):
        biased = keys.flag("attention_bias")
        family = replace(family, qkv_bias=biased, o_bias=biased)
    elif keys.config.get("attention_bias") is not None:
        family = replace(family, qkv_bias=keys.flag("attention_bias"))
    if keys.config.get("mlp_bias") is not None:
        family = replace(family, mlp_bias=keys.flag("mlp_bias"))
    if keys.config.get("use_qk_norm") is not None and model_name(keys) == "glm4_moe":
        family = replace(family, qk_norm="head" if keys.flag("use_qk_norm") else "none")
    return Plan(
        keys=keys,
        family=family,
        name=model_name(keys),
        layers=layer_count(keys),
        hidden=hidden_size(keys),
        heads=query_head_count(keys),
        kv_heads=kv_head_count(keys),
        head_dim=head_size(keys),
        dtype=_dtype(keys),
    )


def _dtype(keys: Keys) -> DType:
    value = keys.text("torch_dtype") or keys.text("dtype")
    if value is None:
        return "BF16"
    found = _DTYPES.get(value.removeprefix("torch."))
    if found is None:
        keys.fail(f"torch_dtype is {short(value)}; known: {', '.join(_DTYPES)}")
    return found


def _architecture(keys: Keys, plan: Plan, notes: tuple[str, ...]) -> Architecture:
    mixers = layer_mixers(plan)
    mlp_list = layer_mlps(plan)
    feed_forward = mlps.grouped(mlp_list)
    stored = quantisation.read(keys, plan.dtype, moe=any(f.experts for f in feed_forward), layers=plan.layers)
    length, stretched, positions = _length(keys)
    towers, tower_notes = vision.parameters(keys)
    vocab = keys.count("vocab_size", "padded_vocab_size")
    if plan.dtype == "BF16" and not keys.has("torch_dtype", "dtype"):
        notes = (*notes, "the file names no dtype; BF16 is taken")
    if length is None:
        notes = (*notes, "the file has no max_position_embeddings; no length is refused")
    return Architecture(
        model_type=keys.text("model_type") or "unknown",
        hidden_size=plan.hidden,
        vocab_size=vocab,
        attention_heads=plan.heads,
        groups=_grouped(mixers, plan),
        feed_forward=feed_forward,
        max_position_embeddings=length,
        tied_embeddings=keys.flag("tie_word_embeddings", default=plan.family.tied),
        dtype=plan.dtype,
        kv_dtype=stored.kv_dtype,
        weights=stored.weights,
        vision_parameters=towers,
        drafts=draft_of(plan, mixers, mlp_list),
        extra=_extra(keys, plan, vocab),
        rotary_positions=positions,
        rope_scaling=stretched,
        assumptions=(*notes, *tower_notes, *stored.assumptions, *plan.notes),
    )


def _grouped(mixers: list[tuple[Mixer, ...]], plan: Plan) -> tuple[LayerGroup, ...]:
    """Layers that keep the same together, in order of their first layer. A layer's norms go with its first mixer."""
    norms = plan.family.norms * plan.hidden * (2 if plan.family.norm_bias else 1)
    found: dict[tuple[Mixer, bool], list[int]] = {}
    for index, layer in enumerate(mixers):
        for position, mixer in enumerate(layer):
            found.setdefault((mixer, position == 0), []).append(index)
    return tuple(
        LayerGroup(
            cache=mixer.cache,
            layers=tuple(layers),
            elements=mixer.elements + Elements(kept=norms + plan.layer_extra if first else 0),
            query_heads=mixer.query_heads,
        )
        for (mixer, first), layers in found.items()
    )


def _extra(keys: Keys, plan: Plan, vocab: int) -> int:
    """Elements beside layers, tables and the final norm: biases of the head, Gemma's embeddings per layer, mixing of
    DeepSeek-V4's and Gemma 3n's streams."""
    count = vocab if plan.family.head_bias else 0
    if plan.family.norm_bias:
        count += plan.hidden
    per_layer = keys.count("hidden_size_per_layer_input", default=0, least=0)
    if per_layer:
        rows = keys.count("vocab_size_per_layer_input", default=vocab)
        count += rows * plan.layers * per_layer + plan.hidden * plan.layers * per_layer + per_layer
    streams = keys.count("hc_mult", default=0, least=0)
    if streams:
        count += streams * streams * plan.hidden + streams + 1
    altup = keys.count("altup_num_inputs", default=0, least=0)
    if altup > 1:
        count += 2 * (altup - 1) * plan.hidden**2
    return count


def _length(keys: Keys) -> tuple[int | None, bool, int | None]:
    """Longest sequence in tokens, whether RoPE scaling stretches it, and the positions of the rotary tables where they
    are more. Gemma 3 states the stretched length, although its scaling is linear."""
    length = keys.optional("max_position_embeddings", "max_seq_len", "seq_length", "n_positions")
    scaling = keys.config.get("rope_scaling") or keys.config.get("rope_parameters")
    if length is None or not isinstance(scaling, Mapping):
        return length, False, None
    rope = Keys(scaling, f"{keys.path}: rope_scaling")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = rope.number("factor")
    if kind not in _STRETCHING_ROPE or factor is None:
        return length, False, None
    if not 1 <= factor <= _MAX_ROPE_FACTOR:
        keys.fail(f"the factor of rope_scaling is {factor}; it must be from 1 to {_MAX_ROPE_FACTOR}")
    original = rope.optional("original_max_position_embeddings")
    stretched = max(length, int((original or length) * factor))
    if model_name(keys) in _STATES_STRETCHED:
        return length, True, stretched
    return stretched, True, None
