"""How a checkpoint stores its matrices, from ``quantization_config`` or modelopt's hf_quant_config.json.

Bits are those of one stored element with its scales: FP8 in blocks of 128 × 128 has an FP32 scale a block, AWQ and GPTQ
an FP16 scale and a zero as wide as a code per group, NVFP4 an E4M3 scale per 16, MXFP4 an E8M0 scale per 32.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvbudget.layers import BF16, DType, WeightFormat, uniform
from kvbudget.shapes.keys import Keys, short

_PLAIN: Final = 16000
_FP8: Final = 8000
_FP8_BLOCK: Final = 8002
_MXFP8: Final = 8250
_NVFP4: Final = 4500
_MXFP4: Final = 4250
_INT4_128: Final = 4156
_ALGORITHMS: Final[dict[str, tuple[str, int]]] = {
    "FP8": ("FP8", _FP8),
    "FP8_PER_CHANNEL_PER_TOKEN": ("FP8", _FP8),
    "FP8_PB_WO": ("FP8", _FP8_BLOCK),
    "MXFP8": ("MXFP8", _MXFP8),
    "NVFP4": ("NVFP4", _NVFP4),
    "W4A16": ("INT4", _INT4_128),
    "W4A16_AWQ": ("AWQ-INT4", _INT4_128),
    "W4A8_AWQ": ("AWQ-INT4", _INT4_128),
    "W8A8_SQ_PER_CHANNEL": ("INT8", _FP8),
}
"""modelopt's ``quant_algo``."""
_KV_NAMES: Final[dict[str, DType]] = {
    "FP8": "FP8E4M3",
    "FP8E4M3": "FP8E4M3",
    "FP8_E4M3": "FP8E4M3",
    "INT8": "INT8",
    "NVFP4": "NVFP4",
}


@dataclass(frozen=True, slots=True)
class Stored:
    """The weights' format, the KV dtype that the checkpoint asks for, and what was assumed."""

    weights: WeightFormat
    kv_dtype: DType | None = None
    assumptions: tuple[str, ...] = ()


def read(keys: Keys, dtype: DType, *, moe: bool, layers: int) -> Stored:
    """From the keys of a config.json. Raises ShapeError for a method whose bits are not known.

    >>> keys = Keys({"quantization_config": {"quant_method": "fp8"}}, "config.json")
    >>> stored = read(keys, "BF16", moe=False, layers=2)
    >>> stored.weights.name, stored.weights.mixer_millibits
    ('FP8', 8000)
    """
    quantised = keys.child("quantization_config")
    if quantised is None:
        return Stored(uniform("FP32", 2 * _PLAIN, table_millibits=2 * _PLAIN) if dtype == "FP32" else BF16)
    method = (quantised.text("quant_method") or "").lower()
    algorithm = (quantised.text("quant_algo") or "").upper()
    if not method and not algorithm:
        quantised.fail("quant_method is missing; it says how the weights are stored")
    kv = _kv_dtype(quantised)
    if algorithm == "MIXED_PRECISION":
        mixed = WeightFormat(name="mixed", mixer_millibits=_FP8, mlp_millibits=_NVFP4, expert_millibits=_NVFP4)
        return Stored(mixed, kv, ("weights of MIXED_PRECISION are taken as FP8 attention and NVFP4 MLPs",))
    notes: tuple[str, ...] = ()
    if algorithm:
        if algorithm not in _ALGORITHMS:
            quantised.fail(f"quant_algo {short(algorithm)} is not known; known: {', '.join(sorted(_ALGORITHMS))}")
        weights = uniform(*_ALGORITHMS[algorithm])
    else:
        weights, notes = _by_method(quantised, method, keys)
    excluded = _excluded(quantised, layers)
    if excluded is None and moe and weights.name == "NVFP4":
        note = (
            "which weights stay in 16 bits is not in the file; attention is taken to, as in the published checkpoints"
        )
        return Stored(replace(weights, mixer_millibits=_PLAIN), kv, (*notes, note))
    out = excluded or ()
    weights = replace(
        weights,
        mixer_millibits=_PLAIN if "mixer" in out else weights.mixer_millibits,
        mlp_millibits=_PLAIN if "mlp" in out else weights.mlp_millibits,
        expert_millibits=_PLAIN if "expert" in out else weights.expert_millibits,
    )
    return Stored(weights, kv, notes)


def _by_method(quantised: Keys, method: str, keys: Keys) -> tuple[WeightFormat, tuple[str, ...]]:
    match method:
        case "fp8" | "deepseek_v4_fp8":
            fp8 = uniform("FP8", _FP8_BLOCK if quantised.has("weight_block_size") else _FP8)
            return (replace(fp8, expert_millibits=_MXFP4) if keys.text("expert_dtype") == "fp4" else fp8), ()
        case "fbgemm_fp8":
            return uniform("FP8", _FP8), ()
        case "mxfp4" | "gpt_oss_mxfp4":
            return replace(uniform("MXFP4", _PLAIN), expert_millibits=_MXFP4), ()
        case "mxfp8":
            return uniform("MXFP8", _MXFP8), ()
        case "awq" | "gptq" | "awq_marlin" | "gptq_marlin" | "auto-round" | "autoround":
            bits, group = quantised.count("bits", "w_bit", default=4), _group_size(quantised)
            return uniform(f"{method.partition('_')[0].upper()}-INT{bits}", _grouped(bits, group, zeros=True)), ()
        case "bitsandbytes":
            return (
                uniform("INT8", _FP8)
                if quantised.flag("load_in_8bit")
                else uniform("NF4", _grouped(4, 64, zeros=False))
            ), ()
        case "compressed-tensors" | "modelopt" | "modelopt_fp4" | "quark":
            return _compressed(quantised)
        case _:
            known = "fp8, fbgemm_fp8, mxfp4, mxfp8, awq, gptq, auto-round, bitsandbytes, compressed-tensors, modelopt"
            return quantised.fail(f"quant_method {short(method)}: its bits are not known; known: {known}")


def _grouped(bits: int, group: int, *, zeros: bool) -> int:
    """Codes, and for each group an FP16 scale and perhaps a zero as wide as a code; group 0 is one a row."""
    return bits * 1000 + ((16 + (bits if zeros else 0)) * 1000 // group if group else 0)


def _group_size(quantised: Keys) -> int:
    value = quantised.config.get("group_size", quantised.config.get("q_group_size", 128))
    return 0 if value in (-1, None) else quantised.whole(value, "group_size", least=1, most=65536)


def _compressed(quantised: Keys) -> tuple[WeightFormat, tuple[str, ...]]:
    """compressed-tensors: each group of layers names its own bits; the group with the fewest decides."""
    groups = quantised.child("config_groups")
    found = []
    for key in groups.config if groups is not None else ():
        group = groups.child(key) if groups is not None else None
        weights = group.child("weights") if group is not None else None
        if weights is not None:
            found.append((weights.count("num_bits"), weights))
    if not found:
        note = (
            "quantization_config does not say how many bits the weights have; 4-bit experts in groups of 32 are taken"
        )
        return replace(uniform("INT4", _PLAIN), expert_millibits=4500), (note,)
    bits, weights = min(found, key=lambda pair: pair[0])
    kind = weights.text("type") or "int"
    if kind == "float" and bits == 4:
        size = weights.count("group_size", default=16)
        return uniform("NVFP4" if size == 16 else "MXFP4", 4000 + 8000 // size), ()
    if bits >= 8:
        return uniform("FP8" if kind == "float" else "INT8", bits * 1000), ()
    zeros = not weights.flag("symmetric", default=True)
    return uniform(f"INT{bits}", _grouped(bits, _group_size(weights), zeros=zeros)), ()


_PARTS: Final[dict[str, tuple[str, ...]]] = {
    "mixer": ("self_attn", "linear_attn", "attn", "mixer"),
    "mlp": ("shared_experts", "shared_expert"),
    "expert": ("experts", "block_sparse_moe"),
}


def _excluded(quantised: Keys, layers: int) -> tuple[str, ...] | None:
    """Parts of all layers that stay in 16 bits, by the lists of module patterns; None where there is no list. A part is
    out where its name stands alone at the end of patterns without a layer, or of at least half the layers."""
    lists = [quantised.config.get(key) for key in ("ignore", "exclude_modules", "modules_to_not_convert")]
    patterns = [p for found in lists if isinstance(found, list | tuple) for p in found if isinstance(p, str)]
    if not patterns:
        return None
    seen: dict[str, set[str]] = {part: set() for part in _PARTS}
    for pattern in patterns:
        plain = re.sub(r"^re:|\\", "", pattern)
        bare = plain.strip(".*^$")
        number = re.search(r"layers\.(\d+)(?:\.|$)", bare)
        for part, names in _PARTS.items():
            if bare.rpartition(".")[2] in names:
                seen[part].add(number.group(1) if number else "*")
    return tuple(part for part, found in seen.items() if "*" in found or 2 * len(found) >= layers)


def _kv_dtype(quantised: Keys) -> DType | None:
    """``kv_cache_scheme`` or ``kv_cache_quant_algo``: an object with bits and type, or a name."""
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        value = quantised.config.get(key)
        if value is None:
            continue
        name = value
        if isinstance(value, Mapping):
            scheme = Keys(value, f"{quantised.path}: {key}")
            kinds = {(8, "float"): "FP8", (8, "int"): "INT8", (4, "float"): "NVFP4"}
            name = kinds.get((scheme.count("num_bits"), scheme.text("type") or "float"))
        if not isinstance(name, str) or name.upper() not in _KV_NAMES:
            quantised.fail(f"{key} is {short(value)}; known: FP8, INT8, NVFP4, or bits and type of one of them")
        return _KV_NAMES[name.upper()]
    return None
