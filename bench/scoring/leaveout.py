"""Leave one model out: fit the constants of vLLM's table again without it, and score it with those.

Only the runs of one version on one card print every term, so only their row of the table is fitted: bytes per logit
from the activation (where the sampler is the peak), and the growth outside the allocator with and without tensor
parallelism. Each is a median over models of the median over a model's runs, so that no model counts twice.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvbudget.engines import activation, vllm_versions
from kvbudget.engines.result import GIB, Band, gib
from kvbudget.engines.vllm import budget_by
from kvbudget.engines.vllm_versions import VllmVersion
from kvbudget.layers import Architecture
from scoring.cards import card_of
from scoring.kvchecks import H100_019, kind_of, printed_by_first_stage, unplannable
from scoring.models import Models
from scoring.options import settings_of
from scoring.points import Point


@dataclass(frozen=True)
class Run:
    """A complete run: all that a fit and a score need."""

    point: Point
    shape: Architecture
    model: str


def run(points: Sequence[Point], models: Models) -> dict[str, object]:
    """Mean error in sample and of models left out, for weights as logged and predicted; and their ratio."""
    runs = list(_complete(points, models))
    names = sorted({r.model for r in runs})
    if len(names) < 3:
        return {"models": len(names), "why": "fewer than three models have complete runs"}
    everything = fitted(runs)
    found: dict[str, object] = {"models": len(names), "runs": len(runs), "bytes_per_logit": everything.bytes_per_logit}
    without = {name: fitted([r for r in runs if r.model != name]) for name in names}
    for given in (True, False):
        inside = statistics.fmean(abs(_error(r, everything, given=given)) for r in runs)
        outside = statistics.fmean(abs(_error(r, without[r.model], given=given)) for r in runs)
        key = "weights as logged" if given else "weights predicted"
        found[key] = {"in_sample": inside, "left_out": outside, "ratio": outside / inside if inside else 1.0}
    return found


def text(found: Mapping[str, object]) -> list[str]:
    """The result as lines."""
    if "why" in found:
        return [f"leave one model out: {found['why']}"]
    out = [f"leave one model out: {found['models']} models, {found['runs']} runs of {H100_019}"]
    for key, value in found.items():
        if isinstance(value, Mapping):
            out.append(
                f"    {key}: in sample {value['in_sample']:.3%}, left out {value['left_out']:.3%}, "
                f"ratio {value['ratio']:.2f}"
            )
    return out


def _complete(points: Sequence[Point], models: Models) -> list[Run]:
    found = []
    for point in points:
        shape = models.of(point)
        terms = (point.number("activation_gib"), point.number("non_torch_gib"), point.number("model_weights_gib"))
        if isinstance(shape, str) or None in terms or point.kv_gib is None or kind_of(point) != H100_019:
            continue
        if not unplannable(point) and card_of(point) is not None:
            found.append(Run(point, shape, point.text("facts_model") or point.text("model")))
    return found


def fitted(runs: Sequence[Run]) -> VllmVersion:
    """The row of 0.17 with its constants fitted on these runs; a constant without a run keeps its value."""
    rules = vllm_versions.constants((0, 19))
    logits = _typical([(r.model, value) for r in runs if (value := _bytes_per_logit(r, rules)) is not None])
    alone = _typical([(r.model, _other(r)) for r in runs if _gpus(r.point) == 1])
    ranks = _typical([(r.model, _other(r)) for r in runs if r.point.tensor_parallel > 1])
    return replace(
        rules,
        bytes_per_logit=rules.bytes_per_logit if logits is None else round(logits, 1),
        other=_around(rules.other, alone),
        other_tensor_parallel=_around(rules.other_tensor_parallel, ranks),
    )


def _typical(values: Sequence[tuple[str, float]]) -> float | None:
    models = {name for name, _ in values}
    if not models:
        return None
    return statistics.median(statistics.median(v for name, v in values if name == model) for model in models)


def _around(band: Band, value: float | None) -> Band:
    if value is None:
        return band
    size = gib(value)
    return Band(min(band.low, size), size, max(band.high, size))


def _gpus(point: Point) -> int:
    return point.tensor_parallel * (point.whole("pp") or 1)


def _other(run: Run) -> float:
    return run.point.number("non_torch_gib") or 0.0


def _bytes_per_logit(run: Run, rules: VllmVersion) -> float | None:
    """From one log; None where the sampler is not the peak, or the log is of a stage that does not sample."""
    point, shape = run.point, run.shape
    told = settings_of(point)
    rows, tokens = told.max_sequences, told.max_batched_tokens
    if (point.whole("pp") or 1) > 1 or rows is None or tokens is None:
        return None
    ranks = point.tensor_parallel
    experts = activation.expert_workspace_bytes(shape, tokens, tensor_parallel=ranks)
    rest = activation.residual_bytes(shape, tokens) + activation.image_bytes(shape, tokens)
    rest += experts + vllm_versions.ALLOCATOR.expected
    peak = (point.number("activation_gib") or 0.0) * GIB
    sampler = activation.sampler_bytes(shape, max_sequences=rows, bytes_per_logit=rules.bytes_per_logit)
    if activation.prefill_bytes(shape, tokens, tensor_parallel=ranks) + experts >= sampler + rest:
        return None
    return (peak - rest) / (rows * shape.vocab_size) - activation.element_bytes(shape)


def _error(run: Run, rules: VllmVersion, *, given: bool) -> float:
    point, card = run.point, card_of(run.point)
    logged = point.kv_gib
    if card is None or logged is None:
        raise ValueError(f"{point.ident} is not complete")
    plan = budget_by(rules, run.shape, card, point.text("engine_version"), settings_of(point, weights=given))
    kv = plan.stages[0].kv if printed_by_first_stage(point) else plan.worst.kv
    return (kv.expected / GIB - logged) / logged
