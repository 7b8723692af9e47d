"""Can an engine load weights of this format on such a card, and what does it do where the card lacks the instructions?

Cards are told apart by CUDA's compute capability; of a card without one (other makers) nothing is said here. Sources:
``get_min_capability`` of vLLM's model_executor/layers/quantization; its fallback to FP16 in config/model.py
(vllm#17265); Marlin on 8.0 (vllm#5975) and on 7.5 (vllm#29901); CUDA 13 by default since 0.20 (vllm#39878), which has
no 7.0; SGLang's ``maybe_downgrade_dtype_for_legacy_gpu`` and Marlin for NVFP4 (sglang#19652); TensorRT-LLM's support
matrix.

A card without FP8 or FP4 instructions keeps the weights as they are and widens them inside the kernel (Marlin), so that
the memory is the same:

>>> from kvbudget.layers import uniform
>>> from kvbudget.engines.settings import Card
>>> a100, t4 = (Card(name=n, memory_bytes=1, compute_capability=c) for n, c in (("a100", (8, 0)), ("t4", (7, 5))))
>>> format_refused("FP8", a100, "vllm", "0.33"), format_refused("FP8", t4, "vllm", "0.12")
(None, 'vLLM 0.12 loads FP8 weights from compute capability 8.0 on, and t4 has 7.5')
>>> format_refused("FP8", a100, "tensorrt_llm", "1.2")
'TensorRT-LLM loads FP8 weights from compute capability 8.9 on, and a100 has 8.0'
"""

import re
from typing import Final

from kvbudget.engines.settings import Card
from kvbudget.layers import Architecture

Capability = tuple[int, int]

_TITLES: Final = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM"}
_BF16: Final = (8, 0)
_NATIVE: Final[dict[str, Capability]] = {"FP8": (8, 9), "NVFP4": (10, 0), "mixed": (10, 0)}
"""First capability with instructions for it. ``mixed`` is FP8 attention and NVFP4 MLPs."""
_ENGINE_FROM: Final[dict[str, Capability]] = {"sglang": (7, 5), "tensorrt_llm": (8, 0)}
_CUDA_13: Final = ("0.20", (7, 5))
"""The first vLLM whose published builds are for CUDA 13, and the first capability that those have kernels for."""
_LOADED_FROM: Final[dict[str, dict[str, tuple[tuple[str, Capability], ...]]]] = {
    "vllm": {
        "FP8": (("0.14", (7, 5)), ("", (8, 0))),
        "NVFP4": (("0.15", (7, 5)), ("", (8, 0))),
        "mixed": (("0.24", (7, 5)), ("", (8, 0))),
        "MXFP4": (("0.11", (8, 0)), ("", (9, 0))),
        "INT4": (("0.14", (7, 5)), ("", (8, 0))),
        "AWQ": (("", (7, 5)),),
        "INT8": (("", (7, 5)),),
    },
    "sglang": {
        "FP8": (("", (8, 0)),),
        "NVFP4": (("0.5", (7, 5)), ("", (10, 0))),
        "mixed": (("0.5", (8, 0)), ("", (10, 0))),
    },
    "tensorrt_llm": {
        "FP8": (("", (8, 9)),),
        "NVFP4": (("", (10, 0)),),
        "mixed": (("", (10, 0)),),
        "MXFP4": (("", (9, 0)),),
    },
}
"""By engine and format: since which version, from which capability on. A format that is not here is loaded anywhere."""


def refused_format(arch: Architecture, card: Card, engine: str, version: str) -> str | None:
    """Why the engine does not load this model on this card; None where it does, or where that is not known."""
    reason = format_refused(arch.weights.name, card, engine, version)
    return None if reason is None else f"{reason}; use another GPU type"


def format_refused(name: str, card: Card, engine: str, version: str) -> str | None:
    """:func:`refused_format` without the advice, of weights that the checkpoint calls ``name`` (``AWQ-INT4``)."""
    has = card.compute_capability
    if has is None:
        return None
    title = f"{_TITLES[engine]} {version}" if engine == "vllm" else _TITLES[engine]
    wanted, what = _wanted(name, engine, version)
    if has >= wanted:
        return None
    return f"{title} {what} from compute capability {_text(wanted)} on, and {card.name} has {_text(has)}"


def _wanted(name: str, engine: str, version: str) -> tuple[Capability, str]:
    """The first capability that will do, and what for."""
    least = _ENGINE_FROM.get(engine, (7, 0))
    if engine == "vllm" and _at_least(version, _CUDA_13[0]):
        least = _CUDA_13[1]
    rows = _LOADED_FROM[engine].get(_family(name), ())
    loaded = next((least for since, least in rows if _at_least(version, since)), least)
    return (loaded, f"loads {name} weights") if loaded > least else (least, "has kernels")


def fallback(arch: Architecture, card: Card, engine: str, version: str) -> str | None:
    """What the engine does instead where it loads the model, but the card lacks the instructions; None where it has
    them, or where that is not known."""
    has, name = card.compute_capability, arch.weights.name
    if has is None or refused_format(arch, card, engine, version):
        return None
    native = _NATIVE.get(_family(name))
    if native is not None and has < native:
        note = (
            f"{card.name} has no instructions for {name}: {_TITLES[engine]} keeps {name} weights and widens them as it "
            "multiplies (weight-only, Marlin); the memory is the same, long prompts are slower"
        )
        late = engine == "sglang" and arch.is_moe and _family(name) == "FP8"
        return note + ("; experts in FP8 only in SGLang's releases since July 2026" if late else "")
    if has < _BF16 and arch.dtype == "BF16":
        return f"{card.name} has no BF16: {_TITLES[engine]} computes in FP16, which takes the same memory"
    return None


def _family(name: str) -> str:
    """``AWQ-INT4`` is AWQ; GPTQ's kernels run anywhere."""
    return name.partition("-")[0]


def _at_least(version: str, since: str) -> bool:
    return _number(version) >= _number(since)


def _number(version: str) -> tuple[int, ...]:
    found = re.match(r"\s*v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _text(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
