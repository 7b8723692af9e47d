"""What a model type means beyond its keys: biases, norms, gates, which layers slide, and defaults that its own files
leave out. Each row follows the model's own code (transformers 5, ``modeling_*.py``); where a key of the file says the
same thing, the key wins.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts of a model type. ``norms`` are norms of hidden width in a layer, attention's and MLP's together.
    ``qk_norm``: none, one weight per head channel (``head``), or one per channel of all heads (``all``).
    ``window``: which layers use ``sliding_window`` where no list says it."""

    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "head", "all"] = "none"
    norms: int = 2
    norm_bias: bool = False
    output_gate: Literal["none", "wide", "head"] = "none"
    """A gate on the attention's output: as wide as the queries, or one number a head."""
    sinks: Literal["none", "all", "sliding"] = "none"
    gated_mlp: bool = True
    mlp_bias: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    head_bias: bool = False
    """The output projection has a bias."""
    tied: bool = False
    """Value of tie_word_embeddings where the file has none."""
    window: Literal["all", "even", "pattern", "above_max_window_layers", "untold"] = "all"
    pattern: int = 6
    """With ``window`` pattern: every so many layers one is full; with even: layers 0, 2, … slide; with untold the
    family is not known, and only a list can say."""
    states: Literal["none", "listed", "parallel"] = "none"
    """Layers with a state: by a list alone (without one the file is refused), or beside attention in every layer."""
    linear: Literal["delta", "lightning"] = "delta"
    shared_blocks: bool = False
    """``hybrid`` layers have a shared attention block beside Mamba (Zamba2)."""
    shared_projections: bool = False
    """Layers that read an earlier layer's K and V have projections of their own in the checkpoint all the same."""
    mamba: Literal["mamba1", "mamba2"] = "mamba2"
    state_dtype_is_float32: bool = False
    """The recurrent state is FP32 where the file has no dtype for it."""


_LLAMA = Family()
_QWEN2 = Family(qkv_bias=True, window="above_max_window_layers")
_QWEN3 = Family(qk_norm="head", window="above_max_window_layers")
_QWEN3_NEXT = Family(qk_norm="head", output_gate="wide")
_QWEN3_5 = replace(_QWEN3_NEXT, state_dtype_is_float32=True)
_GEMMA3 = Family(qk_norm="head", norms=4, tied=True, window="pattern", pattern=6)
_DEEPSEEK = Family(router_bias=True)
_GLM_MOE = Family(router_bias=True)
_LFM2 = Family(qk_norm="head", tied=True, states="listed")
_MINIMAX = Family(linear="lightning", states="listed")
_NEMOTRON_H = Family(norms=1, gated_mlp=False, router_bias=True, state_dtype_is_float32=True)

FAMILIES: Final[dict[str, Family]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "ministral": _LLAMA,
    "ministral3": _LLAMA,
    "mistral3": _LLAMA,
    "mistral4": Family(),
    "mistral_large3": Family(router_bias=True),
    "mixtral": _LLAMA,
    "smollm3": replace(_LLAMA, tied=True),
    "granite": replace(_LLAMA, tied=True),
    "olmo2": replace(_LLAMA, qk_norm="all"),
    "phi3": _LLAMA,
    "phi": Family(qkv_bias=True, o_bias=True, norms=1, norm_bias=True, gated_mlp=False, mlp_bias=True, head_bias=True),
    "phimoe": Family(qkv_bias=True, o_bias=True, norm_bias=True, head_bias=True),
    "cohere": Family(norms=1, tied=True),
    "cohere2": Family(norms=1, tied=True, window="pattern", pattern=4),
    "chatglm": Family(qkv_bias=True),
    "dbrx": Family(),
    "nemotron-nas": _LLAMA,
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "mimo": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "gemma": Family(tied=True),
    "gemma2": Family(norms=4, tied=True, window="even"),
    "gemma3": _GEMMA3,
    "gemma3n": replace(_GEMMA3, pattern=5, shared_projections=True),
    "gemma4": _GEMMA3,
    "gpt_oss": Family(
        qkv_bias=True, o_bias=True, sinks="all", expert_bias=True, router_bias=True, window="even"
    ),
    "llama4": Family(),
    "mimo_v2_flash": Family(sinks="sliding", router_bias=True),
    "minimax": _MINIMAX,
    "minimax_text_01": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "minimax_m2": Family(qk_norm="all", router_bias=True),
    "minimax_m3": Family(qk_norm="head", router_bias=True),
    "step3p7": Family(qk_norm="head", output_gate="head", router_bias=True),
    "deepseek_v2": Family(),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "deepseek_v4": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "kimi_linear": replace(_DEEPSEEK, state_dtype_is_float32=True),
    "glm4_moe": replace(_GLM_MOE, qkv_bias=True),
    "glm4_moe_lite": _GLM_MOE,
    "glm_moe_dsa": _GLM_MOE,
    "nemotron_h": _NEMOTRON_H,
    "granitemoehybrid": Family(tied=True, states="listed"),
    "jamba": Family(mamba="mamba1", states="listed"),
    "falcon_h1": Family(states="parallel"),
    "bamba": Family(states="listed"),
    "lfm2": _LFM2,
    "lfm2_moe": replace(_LFM2, router_bias=True),
    "zamba2": Family(norms=1, tied=True, states="listed", shared_blocks=True),
}  # fmt: skip
"""By ``model_type``, without a trailing ``_text``."""

UNKNOWN: Final = Family(window="untold", states="listed")
"""What is taken of a model_type that is not known, or not given."""

REFUSED: Final[dict[str, str]] = {
    "longcat_flash": "each of its layers has two attentions",
    "zamba": "its Mamba layers have a form of their own",
    "recurrent_gemma": "its recurrent layers have a state of their own",
}
"""Model types that their keys do not describe, and why."""

_ALIASES: Final[dict[str, str]] = {
    "deepseek_ref": "deepseek_v4",
    "kimi_k25": "kimi_k2",
    "kimi_k3": "kimi_linear",
    "minimax_m3_vl": "minimax_m3",
    "phi-msft": "phi",
    "nemotron_nas": "nemotron-nas",
    "deci": "nemotron-nas",
}


def family_name(model_type: str) -> str:
    """The name under which a model type is known here.

    >>> family_name("qwen3_5_moe_text"), family_name("kimi_k25")
    ('qwen3_5_moe', 'kimi_k2')
    """
    name = model_type.removesuffix("_text")
    return _ALIASES.get(name, name)
