"""What the checks look at: the service, its class, and all that follows from the two, worked out once.

A part that does not follow (an unknown shape, a precision that the class lacks) is the Problem that says why; what
would need it is None.
"""

from dataclasses import dataclass
from typing import Final

from kvbudget import quantity
from kvbudget.api import GPUClass, LLMService
from kvbudget.budget import Budget, BudgetInput, compute
from kvbudget.errors import Problem
from kvbudget.gpu import device_kind
from kvbudget.layout import KVPrecision
from kvbudget.parameters import WeightPrecision
from kvbudget.plan import max_model_len
from kvbudget.served import resolve
from kvbudget.shape import ModelShape

SERVED_KV: Final[tuple[KVPrecision, ...]] = ("BF16", "FP16", "FP32", "FP8E4M3", "INT8", "INT4")
"""KV precisions that the bundled worker has; the others can be planned."""
SERVED_WEIGHTS: Final[tuple[WeightPrecision, ...]] = ("BF16", "FP16", "FP32")


@dataclass(frozen=True, slots=True)
class Facts:
    """``budget`` is None where a problem stands in its way. ``max_model_len`` is the one that holds, given or
    chosen."""

    service: LLMService
    gpu_class: GPUClass | None
    shape: ModelShape | Problem
    weight_precision: WeightPrecision | Problem | None
    kv_precision: KVPrecision | Problem | None
    parallel_problems: tuple[Problem, ...]
    budget: Budget | None
    max_model_len: int | None


def gather(service: LLMService, gpu_class: GPUClass | None) -> Facts:
    """Works out the facts. Never raises for a service and a class that their schema accepts."""
    shape = resolve(service)
    weights = None if gpu_class is None else _weight_precision(service, gpu_class)
    kv = None if gpu_class is None or not isinstance(weights, str) else _kv_precision(service, gpu_class, weights)
    parallel = () if isinstance(shape, Problem) else tuple(_parallel_problems(service, shape))
    budget = None
    if (
        gpu_class
        and isinstance(shape, ModelShape)
        and isinstance(weights, str)
        and isinstance(kv, str)
        and not parallel
    ):
        budget = compute(_inputs(service, gpu_class, shape, weights, kv))
    longest = service.spec.max_model_len if budget is None else max_model_len(service, budget)
    return Facts(service, gpu_class, shape, weights, kv, parallel, budget, longest)


def _inputs(
    service: LLMService, gpu_class: GPUClass, shape: ModelShape, weights: WeightPrecision, kv: KVPrecision
) -> BudgetInput:
    spec = service.spec
    return BudgetInput(
        shape=shape,
        memory_bytes=quantity.parse_int(gpu_class.spec.memory),
        memory_percent=spec.kv_cache.memory_percent,
        device=device_kind(gpu_class.spec.resource_name),
        kv_precision=kv,
        weight_precision=weights,
        page_tokens=spec.kv_cache.page_tokens,
        tensor_parallel=spec.gpu.tensor_parallel,
        pipeline_parallel=spec.gpu.pipeline_parallel,
        max_batched_tokens=spec.engine.max_batched_tokens,
        max_sequences=spec.engine.max_sequences,
    )


def _weight_precision(service: LLMService, gpu_class: GPUClass) -> WeightPrecision | Problem:
    wanted, offered = service.spec.model.weight_precision, gpu_class.spec.weight_precisions
    path, name = "spec.model.weightPrecision", gpu_class.metadata.name
    if wanted != "Auto":
        if wanted in offered:
            return wanted
        return Problem(path, f"class {name} cannot do {wanted}; it offers {', '.join(offered)}", "PrecisionNotOffered")
    chosen = next((p for p in offered if p in SERVED_WEIGHTS), None)
    if chosen is None:
        reason = (
            f"Auto finds none of {', '.join(SERVED_WEIGHTS)} in class {name}; it offers {', '.join(offered)}: set one"
        )
        return Problem(path, reason, "PrecisionNotOffered")
    return chosen


def _kv_precision(service: LLMService, gpu_class: GPUClass, weights: WeightPrecision) -> KVPrecision | Problem:
    wanted, offered = service.spec.kv_cache.precision, gpu_class.spec.kv_precisions
    path, name = "spec.kvCache.precision", gpu_class.metadata.name
    if wanted != "Auto":
        if wanted in offered:
            return wanted
        return Problem(path, f"class {name} cannot do {wanted}; it offers {', '.join(offered)}", "PrecisionNotOffered")
    if weights == "FP32":
        return "FP32"  # K and V come out of FP32 arithmetic; whoever asks for it wants them whole
    order: tuple[KVPrecision, ...] = ("FP16", "BF16") if weights == "FP16" else ("BF16", "FP16")
    chosen = next((p for p in order if p in offered), None)
    if chosen is None:
        reason = f"Auto finds neither BF16 nor FP16 in class {name}; it offers {', '.join(offered)}: set one"
        return Problem(path, reason, "PrecisionNotOffered")
    return chosen


def _parallel_problems(service: LLMService, shape: ModelShape) -> list[Problem]:
    tp, pp = service.spec.gpu.tensor_parallel, service.spec.gpu.pipeline_parallel
    problems = []
    if not splits(shape, tp):
        fitting = ", ".join(str(n) for n in range(1, min(shape.attention_heads, 64) + 1) if splits(shape, n))
        reason = f"{tp} does not divide {shape.attention_heads} attention heads and {shape.kv_heads} KV heads evenly"
        problems.append(
            Problem("spec.gpu.tensorParallel", f"{reason}; use one of {fitting}", "TensorParallelDoesNotDivide")
        )
    if pp > shape.layers:
        reason = f"{pp} stages for {shape.layers} layers; use {shape.layers} or fewer"
        problems.append(Problem("spec.gpu.pipelineParallel", reason, "PipelineAboveLayers"))
    return problems


def length_limit(shape: ModelShape) -> int | None:
    """Longest sequence that the model itself allows, in tokens; None where RoPE scaling stretches it."""
    return None if shape.rope_scaling else shape.max_position_embeddings


def splits(shape: ModelShape, tensor_parallel: int) -> bool:
    """Whether heads can be split over so many ranks: query heads evenly; KV heads evenly, or replicated evenly.

    >>> from kvbudget.served import named
    >>> [n for n in range(1, 17) if splits(named("meta-llama/Llama-3.1-8B"), n)]
    [1, 2, 4, 8, 16]
    """
    if shape.attention_heads % tensor_parallel:
        return False
    return shape.kv_heads % tensor_parallel == 0 or tensor_parallel % shape.kv_heads == 0
