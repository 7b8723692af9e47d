"""The bundled worker's budget, as the engines' type. The figures are those of ``kvbudget.budget``, to the byte: the
operator and the worker depend on them. They carry no band: what the worker takes it was told beforehand.

>>> from kvbudget.engines.result import gib
>>> from kvbudget.engines.settings import Card, Settings
>>> from kvbudget.served import named
>>> llama = named("meta-llama/Llama-3.1-8B")
>>> told = Settings(memory_fraction=0.9, max_model_len=8192)
>>> plan = bundled_budget(llama, Card(name="80 GiB", memory_bytes=gib(80)), told)
>>> plan.pages.expected, plan.grantable_pages.expected, plan.verdict
(7143, 7142, 'fits')
"""

from typing import Final

from kvbudget.budget import RESERVED_PAGES, Budget, BudgetInput, StageBudget, compute
from kvbudget.engines.result import CacheGroup, EngineBudget, Pool, Term, exact
from kvbudget.engines.result import StageBudget as EngineStage
from kvbudget.engines.settings import Card, Settings
from kvbudget.engines.verdict import judged
from kvbudget.facts import splits
from kvbudget.layers import Architecture
from kvbudget.layout import KVPrecision
from kvbudget.parameters import WEIGHT_PRECISIONS, WeightPrecision
from kvbudget.shape import ModelShape
from kvbudget.shapes.dense import dense_of

ENGINE: Final = "bundled"
PAGE_TOKENS: Final = 64
MEMORY_PERCENT: Final = 90
MAX_BATCHED_TOKENS: Final = 2048
MAX_SEQUENCES: Final = 256


def bundled_budget(shape: ModelShape, card: Card, settings: Settings, *, weights: str = "BF16") -> EngineBudget:
    """The budget of one replica of the bundled worker on GPUs. ``memory_fraction`` counts in whole percent.

    Raises ValueError for a weight precision that the worker does not know."""
    budget = compute(_inputs(shape, card, settings, weights))
    length = settings.max_model_len or shape.max_position_embeddings
    plan = EngineBudget(
        engine=ENGINE,
        version="",
        max_model_len=length,
        stages=tuple(_stage(budget, stage, card) for stage in budget.stages),
        verdict="fits",
        reason="",
        kv_precision=budget.inputs.kv_precision,
        settings=settings,
    )
    return judged(plan, _refusal(shape, settings))


def _refusal(shape: ModelShape, settings: Settings) -> str | None:
    if settings.pipeline_parallel > shape.layers:
        return f"pipeline parallelism {settings.pipeline_parallel} is more than the {shape.layers} layers"
    if not splits(shape, settings.tensor_parallel):
        return f"tensor parallelism {settings.tensor_parallel} does not divide the heads"
    return None


def dense_shape(arch: Architecture) -> ModelShape:
    """The shape of a model that the bundled worker can serve. Raises ValueError for one that it cannot."""
    shape = dense_of(arch)
    if shape is None:
        raise ValueError(f"the bundled worker serves dense decoders; this model is {arch.kind}; use another engine")
    return shape


def weight_precision(arch: Architecture) -> WeightPrecision:
    """In which the worker loads this model's weights: its own formats by name, anything else as it computes."""
    names = {"FP8": "FP8", "INT8": "INT8"}
    wanted = names.get(arch.weights.name, "INT4" if "INT4" in arch.weights.name else arch.dtype)
    return next((p for p in WEIGHT_PRECISIONS if p == wanted), "BF16")


def _inputs(shape: ModelShape, card: Card, settings: Settings, weights: str) -> BudgetInput:
    precision: KVPrecision = settings.kv_format or ("FP32" if weights == "FP32" else "BF16")
    known = next((p for p in WEIGHT_PRECISIONS if p == weights), None)
    if known is None:
        raise ValueError(f"{weights!r} is not a weight precision; use one of {', '.join(WEIGHT_PRECISIONS)}")
    fraction = settings.memory_fraction
    return BudgetInput(
        shape=shape,
        memory_bytes=card.memory_bytes,
        memory_percent=MEMORY_PERCENT if fraction is None else round(fraction * 100),
        device="gpu",
        kv_precision=precision,
        weight_precision=known,
        page_tokens=settings.block_tokens or PAGE_TOKENS,
        tensor_parallel=settings.tensor_parallel,
        pipeline_parallel=min(settings.pipeline_parallel, shape.layers),
        max_batched_tokens=settings.max_batched_tokens or MAX_BATCHED_TOKENS,
        max_sequences=settings.max_sequences or MAX_SEQUENCES,
    )


def _stage(budget: Budget, stage: StageBudget, card: Card) -> EngineStage:
    group = CacheGroup(kind="full", layers=stage.layers, block_tokens=budget.inputs.page_tokens)
    return EngineStage(
        stage=stage.stage,
        layers=stage.layers,
        memory_bytes=card.memory_bytes,
        usable_bytes=budget.usable_bytes,
        terms=(
            Term("weights", exact(stage.weight_bytes), "checkpoint, or counted from the shape"),
            Term("activation", exact(stage.activation_bytes), "sampler or prefill, and the decode workspace"),
            Term("graphs", exact(stage.graph_bytes), "the worker captures none"),
            Term("runtime", exact(stage.runtime_bytes), "CUDA context and libraries"),
        ),
        outside=(),
        pool=Pool(page_bytes=stage.page_bytes, groups=(group,), reserved_pages=RESERVED_PAGES),
    )
