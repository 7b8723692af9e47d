"""KV budgets as the engines themselves compute them: vLLM, SGLang, TensorRT-LLM, and the bundled worker.

:func:`budget` is the one way in. It is pure and total for valid settings: nothing is raised because little fits; the
result carries every term with low, expected and high, a verdict and its reason.

>>> from kvbudget.engines.result import gib
>>> from kvbudget.shapes.config import from_config
>>> llama = from_config({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256,
...     "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
...     "max_position_embeddings": 131072})
>>> h100 = Card(name="H100", memory_bytes=gib(79.19), compute_capability=(9, 0))
>>> plan = budget(llama, h100, "vllm", "0.19", Settings(memory_fraction=0.95, max_model_len=8192))
>>> plan.verdict, round(plan.worst.kv.expected / gib(1), 1), round(plan.max_concurrency(), 1)
('fits', 58.1, 58.1)
>>> budget(llama, h100, "vllm", "0.19", Settings(tensor_parallel=3)).reason
'tensor parallelism 3 does not divide the 32 attention heads'
"""

from collections.abc import Callable
from typing import Final

from kvbudget.engines.bundled import bundled_budget, dense_shape, weight_precision
from kvbudget.engines.result import Band, EngineBudget, Pool, StageBudget, Term, Verdict
from kvbudget.engines.settings import Card, KVFormat, Settings
from kvbudget.engines.sglang import sglang_budget
from kvbudget.engines.tensorrt_llm import tensorrt_llm_budget
from kvbudget.engines.vllm import vllm_budget
from kvbudget.layers import Architecture

__all__ = [
    "ENGINES",
    "Band",
    "Card",
    "EngineBudget",
    "KVFormat",
    "Pool",
    "Settings",
    "StageBudget",
    "Term",
    "Verdict",
    "budget",
]


def _bundled(arch: Architecture, card: Card, _version: str, settings: Settings) -> EngineBudget:
    return bundled_budget(dense_shape(arch), card, settings, weights=weight_precision(arch))


_Budget = Callable[[Architecture, Card, str, Settings], EngineBudget]
_BUDGETS: Final[dict[str, _Budget]] = {
    "bundled": _bundled,
    "vllm": vllm_budget,
    "sglang": sglang_budget,
    "tensorrt_llm": tensorrt_llm_budget,
}
ENGINES: Final[tuple[str, ...]] = tuple(_BUDGETS)
"""Names that :func:`budget` takes."""
DEFAULT_VERSIONS: Final = {"bundled": "", "vllm": "0.33", "sglang": "0.5", "tensorrt_llm": "1.2"}


def budget(shape: Architecture, gpu: Card, engine: str, version: str | None, settings: Settings) -> EngineBudget:
    """The budget of one replica of ``engine`` on cards like ``gpu``; ``version`` None is the newest known.

    Raises ValueError for an unknown engine, a version that cannot be read, or a model that keeps no KV (or that the
    bundled worker cannot serve)."""
    if engine not in _BUDGETS:
        raise ValueError(f"{engine!r} is not an engine; use one of {', '.join(ENGINES)}")
    return _BUDGETS[engine](shape, gpu, DEFAULT_VERSIONS[engine] if version is None else version, settings)
