"""Ordered, named, pure checks of an LLMService: one text for the webhook, the command line and the operator.

``evaluate`` never raises for what a schema accepts, and says all that is wrong in one answer.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvbudget import advice, fit
from kvbudget.api import GPUClass, LLMService, unsupported
from kvbudget.budget import Budget
from kvbudget.errors import Problem
from kvbudget.facts import SERVED_KV, SERVED_WEIGHTS, Facts, gather, length_limit
from kvbudget.gpu import did_you_mean
from kvbudget.plan import Plan, make_plan
from kvbudget.remedies import Remedy
from kvbudget.sizing import Sizing, size

__all__ = ["ERROR_CHECKS", "Check", "Sizing", "Verdict", "evaluate"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``plan`` and ``sizing`` are there exactly when nothing stands in their way. An update that leaves an old error as
    it was has that error among the ``warnings`` (it passes), and no plan.

    ``notes``: what was chosen for the user, and, when only planning, what the cluster would still refuse. ``budget``:
    the arithmetic, also where it does not fit. ``remedies``: what would fit, one by one.
    """

    plan: Plan | None
    sizing: Sizing | None
    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()
    budget: Budget | None = None
    remedies: tuple[Remedy, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``reads``: paths of the manifest that its answer depends on, beside the class; an update that changes
    none of them leaves the answer as it was. ``find`` yields the problems."""

    name: str
    reads: tuple[str, ...]
    find: Callable[[Facts], Iterator[Problem]]


_MODEL = ("metadata.name", "spec.model.name", "spec.model.shape")
_PRECISION = ("spec.gpu.class", "spec.model.weightPrecision", "spec.kvCache.precision")
_BUDGET = (
    *_MODEL,
    *_PRECISION,
    "spec.gpu",
    "spec.maxModelLen",
    "spec.kvCache.pageTokens",
    "spec.kvCache.memoryPercent",
    "spec.engine",
)
_LIMITS = ("spec.admission.maxInputTokens", "spec.admission.maxOutputTokens", "spec.admission.defaultOutputTokens")


def _gpu_class(facts: Facts) -> Iterator[Problem]:
    if facts.gpu_class is None:
        name = facts.service.spec.gpu.class_
        fix = "create it, or name one that does (kubectl get gpuclasses)"
        reason = "; ".join(filter(None, (f"GPUClass {name} does not exist", fix, did_you_mean(name))))
        yield Problem("spec.gpu.class", reason, "UnknownGPUClass")


def _shape(facts: Facts) -> Iterator[Problem]:
    if isinstance(facts.shape, Problem):
        yield facts.shape


def _precision(facts: Facts) -> Iterator[Problem]:
    for precision in (facts.weight_precision, facts.kv_precision):
        if isinstance(precision, Problem):
            yield precision


def _parallel(facts: Facts) -> Iterator[Problem]:
    yield from facts.parallel_problems


def _model_limit(facts: Facts) -> Iterator[Problem]:
    wanted = facts.service.spec.max_model_len
    if wanted is None or isinstance(facts.shape, Problem):
        return
    limit = length_limit(facts.shape)
    if limit is not None and wanted > limit:
        reason = f"{wanted} is above the model's own limit of {limit} tokens; set {limit} or less"
        yield Problem("spec.maxModelLen", reason, "AboveModelLimit")


def _limits(facts: Facts) -> Iterator[Problem]:
    """Prompt and output each leave room for one token of the other."""
    longest, admission = facts.max_model_len, facts.service.spec.admission
    if longest == 0 and facts.budget is not None:
        longest = facts.budget.inputs.shape.max_position_embeddings  # nothing fits; the limits may still be too high
    if longest is None:
        return
    if longest < 2:
        reason = f"{longest} leaves no room for a prompt and an output; set 2 or more"
        yield Problem("spec.maxModelLen", reason, "NoRoomForOutput")
        return
    for name, value, other in (
        ("maxInputTokens", admission.max_input_tokens, "output"),
        ("maxOutputTokens", admission.max_output_tokens, "input"),
        ("defaultOutputTokens", admission.default_output_tokens, "input"),
    ):
        if value is not None and value >= longest:
            reason = f"{value} leaves no room for {other} within maxModelLen {longest}; set {longest - 1} or less"
            yield Problem(f"spec.admission.{name}", reason, f"NoRoomFor{other.capitalize()}")


def _served(facts: Facts) -> Iterator[Problem]:
    """Precisions that the class offers and that can be planned, but that the bundled worker does not have yet."""
    if facts.gpu_class is None:
        return
    spec = facts.gpu_class.spec
    for path, precision, offered, served in (
        ("spec.model.weightPrecision", facts.weight_precision, spec.weight_precisions, SERVED_WEIGHTS),
        ("spec.kvCache.precision", facts.kv_precision, spec.kv_precisions, SERVED_KV),
    ):
        if isinstance(precision, str) and precision not in served:
            both = [p for p in offered if p in served]
            fix = f"use {' or '.join(both)}" if both else f"name a class that offers one of {', '.join(served)}"
            reason = f"{precision} can be planned (kvbudget plan) but not served; {fix}"
            yield Problem(path, f"not supported yet: {reason}", "NotSupportedYet")


def _unsupported(facts: Facts) -> Iterator[Problem]:
    yield from unsupported(facts.service)
    yield from _served(facts)


_NOT_PLANNABLE: Final = ("spec.engine",)
"""Unsupported fields below these change the budget itself, so that not even a plan follows."""

ERROR_CHECKS: Final[tuple[Check, ...]] = (
    Check("UnknownGPUClass", ("spec.gpu.class",), _gpu_class),
    Check("ShapeUnknown", _MODEL, _shape),
    Check("PrecisionNotOffered", _PRECISION, _precision),
    Check("Parallel", (*_MODEL, "spec.gpu"), _parallel),
    Check("AboveModelLimit", (*_MODEL, "spec.maxModelLen"), _model_limit),
    Check("NoRoom", (*_BUDGET, *_LIMITS), _limits),
)
"""The checks in the order in which they are told; what is not supported yet comes before them, the budget after."""


def evaluate(
    service: LLMService,
    gpu_class: GPUClass | None,
    *,
    old: LLMService | None = None,
    old_gpu_class: GPUClass | None = None,
    apply: bool = True,
) -> Verdict:
    """All that is wrong with ``service`` on ``gpu_class`` (None: it does not exist), and its plan where nothing is.

    ``old``: the service before an update. A check that reads nothing that changed does not refuse the update again, and
    a smaller budget than before (on ``old_gpu_class``, default the same class) is a warning. None: a new service.
    ``apply`` False: only planning, so that what cannot be served yet is a note. Pure: equal arguments, equal verdicts.
    """
    facts = gather(service, gpu_class)
    errors: list[Problem] = []
    passed: list[Problem] = []
    notes: list[Problem] = []
    dumps = None if old is None else (_dump(old), _dump(service))
    for problem in _unsupported(facts):
        if not apply and not problem.path.startswith(_NOT_PLANNABLE):
            notes.append(problem)
        else:
            (passed if _unchanged((problem.path,), dumps) else errors).append(problem)
    refused = {problem.path for problem in errors}
    for check in ERROR_CHECKS:
        # A value that is not served at all is not also said to be a wrong one of its kind.
        found_now = [problem for problem in check.find(facts) if problem.path not in refused]
        (passed if _unchanged(check.reads, dumps) else errors).extend(found_now)
    too_small, found = fit.problem(facts, apply=apply)
    if too_small is not None:
        (passed if _unchanged(_BUDGET, dumps) else errors).append(too_small)
    if service.metadata.deletion_timestamp is not None:
        passed, errors = [*errors, *passed], []
    plan, sizing, warnings = None, None, list(passed)
    if not errors and not passed and facts.budget is not None and gpu_class is not None:
        plan = make_plan(service, gpu_class.spec.resource_name, facts.budget)
        sizing = size(service, facts.budget)
        warnings.extend(advice.advise(advice.Accepted(facts, plan, sizing), created=old is None))
    if old is not None:
        warnings.extend(advice.shrinks(gather(old, old_gpu_class or gpu_class), facts))
    notes.extend(_chosen(facts, plan))
    return Verdict(plan, sizing, tuple(errors), tuple(warnings), tuple(notes), facts.budget, found)


def _chosen(facts: Facts, plan: Plan | None) -> Iterator[Problem]:
    """What was left out, and what holds instead."""
    if plan is not None and facts.service.spec.max_model_len is None:
        limit = "that fits" if facts.budget and plan.limits.max_model_len == facts.budget.tokens else "of the model"
        reason = f"left out; {plan.limits.max_model_len} tokens, the largest {limit}"
        yield Problem("spec.maxModelLen", reason, "MaxModelLenChosen")


def _dump(service: LLMService) -> Mapping[str, Any]:
    return service.model_dump(by_alias=True, include={"metadata": {"name"}, "spec": True})


def _unchanged(paths: tuple[str, ...], dumps: tuple[Mapping[str, Any], Mapping[str, Any]] | None) -> bool:
    return dumps is not None and all(_value_at(dumps[0], p) == _value_at(dumps[1], p) for p in paths)


def _value_at(dump: Mapping[str, Any], path: str) -> object:
    value: Any = dump
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
