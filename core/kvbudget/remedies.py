"""What would fit, where something does not: each remedy is worked out by the same budget, so that it does fit.

A remedy may need something that can be planned but not served yet (FP8 weights, several GPUs). At apply those are told
apart: a user must not be led from one refusal into the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from kvbudget.api import GPUClass, LLMService
from kvbudget.budget import Budget, BudgetInput, compute
from kvbudget.facts import SERVED_KV, SERVED_WEIGHTS, length_limit, splits
from kvbudget.layout import kv_bytes_per_token
from kvbudget.parameters import weight_bytes

MAX_REMEDY_PERCENT: Final = 95
"""memoryPercent that a remedy may ask for: above it, engines were seen to run out of memory although planned."""
_MIN_SEQUENCES: Final = 8
_MAX_TP: Final = 8

Changes = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """``text`` as told to the user. ``changes``: (path in the manifest, value) to set; a path that begins with
    ``class:`` is one of the GPUClass. ``served``: the cluster accepts the service so changed; else it can
    only be planned."""

    text: str
    changes: Changes
    served: bool


def remedies(service: LLMService, gpu_class: GPUClass, budget: Budget, goal: int) -> tuple[Remedy, ...]:
    """Every remedy for a service whose ``budget`` does not hold one sequence of ``goal`` tokens, which is no more than
    the model can do."""
    return tuple(_remedies(service, gpu_class, budget, goal))


def sentence(found: tuple[Remedy, ...], *, apply: bool) -> str:
    """The remedies as the end of a message; with ``apply``, those that can only be planned stand apart."""
    now = [r.text for r in found if r.served or not apply]
    later = [r.text for r in found if not r.served and apply]
    text = f" Fits: {'; or '.join(now)}." if now else ""
    return text + (f" Can be planned (kvbudget plan) but not served yet: {'; or '.join(later)}." if later else "")


def _remedies(service: LLMService, gpu_class: GPUClass, budget: Budget, goal: int) -> Iterator[Remedy]:
    inputs = budget.inputs
    served = (
        inputs.tensor_parallel == inputs.pipeline_parallel == 1
        and inputs.kv_precision in SERVED_KV
        and inputs.weight_precision in SERVED_WEIGHTS
    )
    longest = _longest(budget)
    if service.spec.max_model_len is not None and longest >= 2:
        yield _shorter(service, longest, served)
    yield from _kv_precisions(service, gpu_class, inputs, goal, longest)
    yield from _weight_precisions(service, gpu_class, inputs, goal)
    percent = -(-budget.usable_to_hold(goal) * 100 // inputs.memory_bytes)
    if percent <= MAX_REMEDY_PERCENT:
        yield Remedy(f"kvCache.memoryPercent {percent}", (("spec.kvCache.memoryPercent", percent),), served)
    sequences = inputs.max_sequences // 2
    while sequences >= _MIN_SEQUENCES:
        if compute(replace(inputs, max_sequences=sequences)).holds(goal):
            yield Remedy(f"engine.maxSequences {sequences}", (("spec.engine.maxSequences", sequences),), served)
            break
        sequences //= 2
    for ranks in range(inputs.tensor_parallel + 1, _MAX_TP + 1):
        if splits(inputs.shape, ranks) and compute(replace(inputs, tensor_parallel=ranks)).holds(goal):
            yield Remedy(f"gpu.tensorParallel {ranks}", (("spec.gpu.tensorParallel", ranks),), False)
            break
    memory = budget.memory_to_hold(goal)
    yield Remedy(f"a class with ≥ {_rounded_up(memory)} of memory", (("class:spec.memory", str(memory)),), served)


def _longest(budget: Budget) -> int:
    limit = length_limit(budget.inputs.shape)
    return budget.tokens if limit is None else min(budget.tokens, limit)


def _shorter(
    service: LLMService, longest: int, served: bool, text: str = "maxModelLen", before: Changes = ()
) -> Remedy:
    """A shorter maxModelLen, and the limits of the spec that it leaves no room for brought down with it."""
    admission = service.spec.admission
    limits = (
        ("admission.maxInputTokens", admission.max_input_tokens),
        ("admission.maxOutputTokens", admission.max_output_tokens),
        ("admission.defaultOutputTokens", admission.default_output_tokens),
    )
    lowered = [path for path, value in limits if value is not None and value >= longest]
    also = f" (and {', '.join(f'{path} ≤ {longest - 1}' for path in lowered)})" if lowered else ""
    changes = (("spec.maxModelLen", longest), *((f"spec.{path}", longest - 1) for path in lowered))
    return Remedy(f"{text} ≤ {longest}{also}", (*before, *changes), served)


def _kv_precisions(
    service: LLMService, gpu_class: GPUClass, inputs: BudgetInput, goal: int, longest: int
) -> Iterator[Remedy]:
    """Smaller KV precisions, the class's best first, until one holds all that is wanted."""
    now = kv_bytes_per_token(inputs.shape, inputs.kv_precision)
    for precision in gpu_class.spec.kv_precisions:
        if kv_bytes_per_token(inputs.shape, precision) >= now:
            continue
        budget = compute(replace(inputs, kv_precision=precision))
        one_gpu = inputs.tensor_parallel == inputs.pipeline_parallel == 1
        served = one_gpu and precision in SERVED_KV and inputs.weight_precision in SERVED_WEIGHTS
        text, change = f"kvCache.precision {precision}", (("spec.kvCache.precision", precision),)
        if budget.holds(goal):
            yield Remedy(text, change, served)
            return
        if service.spec.max_model_len is not None and _longest(budget) > max(1, longest):
            longest = _longest(budget)
            yield _shorter(service, longest, served, f"{text} with", change)


def _weight_precisions(service: LLMService, gpu_class: GPUClass, inputs: BudgetInput, goal: int) -> Iterator[Remedy]:
    """The largest smaller weight precision that the class offers and with which all that is wanted fits. With
    kvCache.precision Auto the KV can only become smaller by it, as long as Auto finds one."""
    auto = service.spec.kv_cache.precision == "Auto"
    if auto and not {"BF16", "FP16"} & set(gpu_class.spec.kv_precisions):
        return
    cost = {p: weight_bytes(inputs.shape, p) for p in gpu_class.spec.weight_precisions}
    now = weight_bytes(inputs.shape, inputs.weight_precision)
    for precision in sorted((p for p in cost if cost[p] < now), key=lambda p: cost[p], reverse=True):
        if compute(replace(inputs, weight_precision=precision)).holds(goal):
            one_gpu = inputs.tensor_parallel == inputs.pipeline_parallel == 1
            served = one_gpu and precision in SERVED_WEIGHTS and (auto or inputs.kv_precision in SERVED_KV)
            yield Remedy(f"model.weightPrecision {precision}", (("spec.model.weightPrecision", precision),), served)
            return


def _rounded_up(memory: int) -> str:
    """Two decimals, upwards: a figure that is a little too low would not fit.

    >>> _rounded_up(2**30 + 1), _rounded_up(2**30), _rounded_up(1800 * 2**20)
    ('1.01 GiB', '1.00 GiB', '1.76 GiB')
    """
    power = (memory.bit_length() - 1) // 10
    hundredths = -(-memory * 100 // 1024**power)
    return f"{hundredths // 100}.{hundredths % 100:02d} {'KMGTPE'[power - 1]}iB"
