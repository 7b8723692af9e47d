"""Spellings of the same facts: nested text models, DBRX's sections, LFM2's names, and what transformers 5 writes."""

from collections.abc import Mapping
from typing import Final

from kvbudget.shapes.families import family_name
from kvbudget.shapes.keys import MAX_LAYERS, Keys, short

_TEXT: Final = ("text_config", "llm_config", "language_config")
_SECTIONS: Final[dict[str, dict[str, str]]] = {
    "attn_config": {"kv_n_heads": "num_key_value_heads"},
    "ffn_config": {
        "ffn_hidden_size": "ffn_hidden_size",
        "moe_num_experts": "moe_num_experts",
        "moe_top_k": "moe_top_k",
    },
}


def flattened(config: Mapping[str, object], path: str) -> dict[str, object]:
    """One mapping: the text model's keys over those around it, in the spelling that the parsers read.

    >>> flattened({"hidden_size": 1, "text_config": {"hidden_size": 64}}, "config.json")
    {'hidden_size': 64}
    """
    outer = Keys(config, path)
    found: dict[str, object] = dict(config)
    for key in _TEXT:
        inner = outer.child(key)
        if inner is not None and inner.config:
            found.pop(key)
            found.update({k: v for k, v in inner.config.items() if v is not None or k not in found})
    for section, names in _SECTIONS.items():
        inner = Keys(found, path).child(section)
        if inner is not None:
            found.update({names[k]: v for k, v in inner.config.items() if k in names})
    keys = Keys(found, path)
    found.update(_compress_ratios(keys))
    found.update(_kimi(keys))
    found.update(_wide_layers(keys))
    found.update(_lfm2(keys))
    for key in ("compress_rates", "per_layer_config", "linear_head_dim", "linear_num_heads"):
        found.pop(key, None)
    return found


def _words(keys: Keys) -> list[object]:
    value = keys.config.get("layer_types")
    return value if isinstance(value, list) else []


def _compress_ratios(keys: Keys) -> dict[str, object]:
    """DeepSeek-V4: a kind of layer for each ratio, and the ratio of each kind."""
    rates = keys.child("compress_rates")
    if rates is None:
        return {}
    ratios = []
    for word in _words(keys):
        if word != "sliding_attention" and word not in rates.config:
            keys.fail(f"layer_types has {short(word)}, for which compress_rates has no ratio")
        ratios.append(0 if word == "sliding_attention" else rates.config[str(word)])
    return {"compress_ratios": ratios, "layer_types": None}


def _kimi(keys: Keys) -> dict[str, object]:
    if not keys.has("linear_head_dim") or family_name(keys.text("model_type") or "") != "kimi_linear":
        return {}
    marks = [word == "linear_attention" for word in _words(keys)]
    return {
        "linear_attn_config": {
            "kda_layers": [i + 1 for i, linear in enumerate(marks) if linear],
            "full_attn_layers": [i + 1 for i, linear in enumerate(marks) if not linear],
            "head_dim": keys.config.get("linear_head_dim"),
            "num_heads": keys.config.get("linear_num_heads"),
            "short_conv_kernel_size": keys.config.get("linear_conv_kernel_dim"),
        },
    }


def _wide_layers(keys: Keys) -> dict[str, object]:
    """Gemma 4: heads of the full-attention layers, layer by layer; they must be the same in all of them."""
    listed = keys.child("per_layer_config")
    if listed is None:
        return {}
    full = {i for i, word in enumerate(_words(keys)) if word == "full_attention"}
    named = {int(k) if str(k).isdecimal() and len(str(k)) < 6 else -1 for k in listed.config}
    facts = [listed.child(str(k)) for k in listed.config]
    first = facts[0].config if facts and facts[0] is not None else {}
    known = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    alike = all(part is not None and dict(part.config) == dict(first) for part in facts)
    if named != full or not alike or not set(first) <= set(known):
        keys.fail("per_layer_config must name the full-attention layers and give all of them the same heads")
    return {known[str(k)]: v for k, v in first.items()}


def _lfm2(keys: Keys) -> dict[str, object]:
    """LFM2's own names; its MLP is two thirds as wide as its file says, rounded up."""
    name = family_name(keys.text("model_type") or "")
    if name not in ("lfm2", "lfm2_moe"):
        return {}
    found: dict[str, object] = {"first_k_dense_replace": keys.config.get("num_dense_layers")}
    if keys.config.get("tie_word_embeddings") is None:
        found["tie_word_embeddings"] = keys.config.get("tie_embedding")
    if not keys.has("layer_types") and keys.has("full_attn_idxs"):
        full = set(keys.counts("full_attn_idxs", None, most=MAX_LAYERS) or ())
        layers = keys.count("num_hidden_layers")
        found["layer_types"] = ["full_attention" if i in full else "conv" for i in range(layers)]
    width = keys.optional("block_ff_dim", "intermediate_size")
    if name == "lfm2" and width is not None:
        if keys.flag("block_auto_adjust_ff_dim", default=True):
            scale, step = keys.number("block_ffn_dim_multiplier") or 1.0, keys.count("block_multiple_of", default=256)
            width = -(-int(min(scale, _MAX_SCALE) * (2 * width // 3)) // step) * step
        found["intermediate_size"] = width
    return found


_MAX_SCALE: Final = 64.0
