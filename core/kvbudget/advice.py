"""Warnings: what is admitted and still worth telling. Each names its field, the figures, and what to do."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kvbudget import quantity
from kvbudget.errors import Problem
from kvbudget.facts import Facts, length_limit
from kvbudget.parameters import checkpoint_agrees
from kvbudget.plan import Plan
from kvbudget.resources import own_resources
from kvbudget.shape import ModelShape
from kvbudget.sizing import Sizing


@dataclass(frozen=True, slots=True)
class Accepted:
    """A service that passed its checks, and what follows."""

    facts: Facts
    plan: Plan
    sizing: Sizing


def advise(it: Accepted, *, created: bool) -> Iterator[Problem]:
    """Warnings about a service that has a plan. ``created``: it is new, so nothing but the user wrote its replicas."""
    if created:
        yield from _replicas_and_scaling(it)
    for advice in _ADVICE:
        yield from advice(it)


def shrinks(before: Facts, after: Facts) -> Iterator[Problem]:
    """A change that leaves fewer tokens per replica."""
    if before.budget is None or after.budget is None or after.budget.tokens >= before.budget.tokens:
        return
    lengths = f"maxModelLen {before.max_model_len} → {after.max_model_len}"
    text = (
        f"the budget shrinks from {before.budget.tokens} to {after.budget.tokens} tokens per replica ({lengths}); "
        "more requests will be refused at the same load"
    )
    yield Problem("spec", text, "BudgetShrinks")


def _replicas_and_scaling(it: Accepted) -> Iterator[Problem]:
    spec = it.facts.service.spec
    if spec.replicas is not None and spec.scaling is not None:
        low, high = spec.scaling.min_replicas, spec.scaling.max_replicas
        reason = f"replicas {spec.replicas} holds only until scaling ({low} to {high}) changes it; leave replicas out"
        yield Problem("spec.replicas", reason, "ReplicasAndScaling")


def _few_sequences(it: Accepted) -> Iterator[Problem]:
    if it.plan.budget.sequences_at_max_len < 2 and it.facts.service.spec.max_model_len is not None:
        half = it.plan.kv.pages // 2 * it.plan.kv.page_tokens
        reason = (
            f"only one sequence of {it.plan.limits.max_model_len} tokens fits at once "
            f"({it.plan.limits.tokens_in_flight} tokens per replica); with maxModelLen ≤ {half} two would"
        )
        yield Problem("spec.maxModelLen", reason, "FewSequences")


def _stretched(it: Accepted) -> Iterator[Problem]:
    shape, longest = it.plan.model.shape, it.plan.limits.max_model_len
    if length_limit(shape) is None and longest > shape.max_position_embeddings:
        reason = f"{longest} is above the {shape.max_position_embeddings} tokens that the model was made for"
        yield Problem("spec.maxModelLen", f"{reason}; RoPE scaling allows it, quality may suffer", "StretchedLength")


def _checkpoint(it: Accepted) -> Iterator[Problem]:
    given = it.facts.service.spec.model.shape
    shape, precision = it.facts.shape, it.plan.model.weight_precision
    if given is None or given.weight_bytes is None or not isinstance(shape, ModelShape):
        return
    if not checkpoint_agrees(shape, precision):
        reason = (
            f"{given.weight_bytes} bytes are no {precision} checkpoint of this shape; the budget counts "
            f"{it.plan.budget.weight_bytes} bytes instead. Set model.weightPrecision, or correct the shape"
        )
        yield Problem("spec.model.shape.weightBytes", reason, "CheckpointSizeIgnored")


def _host_path(it: Accepted) -> Iterator[Problem]:
    if it.facts.service.spec.model.source.host_path is not None:
        reason = "needs a namespace whose Pod Security level is privileged; source.pvc works in any"
        yield Problem("spec.model.source.hostPath", reason, "HostPathNeedsPrivileged")


def _traffic_too_long(it: Accepted) -> Iterator[Problem]:
    traffic = it.facts.service.spec.traffic
    if traffic is None:
        return
    for name, given, limit_name, limit in (
        ("inputTokens", traffic.input_tokens, "maxInputTokens", it.plan.limits.max_input_tokens),
        ("outputTokens", traffic.output_tokens, "maxOutputTokens", it.plan.limits.max_output_tokens),
    ):
        if given > limit:
            reason = f"{given} is above {limit_name} {limit}; such requests are refused"
            yield Problem(f"spec.traffic.{name}", reason, "TrafficAboveLimits")
    both = traffic.input_tokens + traffic.output_tokens
    if both > it.plan.limits.max_model_len:
        reason = (
            f"{both} tokens per request are above maxModelLen {it.plan.limits.max_model_len}; such requests are refused"
        )
        yield Problem("spec.traffic", reason, "TrafficAboveLimits")


def _replicas_below_traffic(it: Accepted) -> Iterator[Problem]:
    spec, needed = it.facts.service.spec, it.sizing.traffic_replicas
    if needed is None:
        return
    if spec.scaling is not None:
        if spec.scaling.max_replicas < needed:
            reason = f"{spec.scaling.max_replicas} is below what the traffic needs: {it.sizing.formula}"
            yield Problem("spec.scaling.maxReplicas", reason, "ReplicasBelowTraffic")
    elif spec.replicas is not None and spec.replicas < needed:
        reason = f"{spec.replicas} is below what the traffic needs: {it.sizing.formula}"
        yield Problem("spec.replicas", reason, "ReplicasBelowTraffic")
    elif spec.replicas is None and it.sizing.replicas < needed:
        reason = f"needs more than the {it.sizing.replicas} replicas that one service can have: {it.sizing.formula}"
        yield Problem("spec.traffic", reason, "ReplicasBelowTraffic")


def _queue(it: Accepted) -> Iterator[Problem]:
    """The queue is one worker's, so both sides are of one replica."""
    traffic, queue = it.facts.service.spec.traffic, it.facts.service.spec.admission.queue
    if traffic is None or queue is None or traffic.output_tokens_per_second is None:
        return
    speed, wait = traffic.output_tokens_per_second, queue.max_wait_seconds
    served = it.plan.limits.tokens_in_flight * wait * speed // traffic.output_tokens
    if queue.max_tokens > served:
        reason = (
            f"{queue.max_tokens} tokens cannot be served within {wait} s: {it.plan.limits.tokens_in_flight} tokens × "
            f"{wait} s ÷ ({traffic.output_tokens} tokens ÷ {speed} per second) = {served}; set {max(1, served)} or less"
        )
        yield Problem("spec.admission.queue.maxTokens", reason, "QueueTooLong")


def _drain(it: Accepted) -> Iterator[Problem]:
    traffic, drain = it.facts.service.spec.traffic, it.plan.drain_timeout_seconds
    if traffic is None or traffic.output_tokens_per_second is None:
        return
    longest = -(-it.plan.limits.max_output_tokens // traffic.output_tokens_per_second)
    if drain < longest:
        reason = (
            f"{drain} s are shorter than the longest answer: {it.plan.limits.max_output_tokens} tokens ÷ "
            f"{traffic.output_tokens_per_second} per second = {longest} s; raise it, or lower admission.maxOutputTokens"
        )
        yield Problem("spec.drain.timeoutSeconds", reason, "DrainTooShort")


def _replaced(it: Accepted) -> Iterator[Problem]:
    """What the class gives takes the place of what the pod template says."""
    pod, gpu_class = it.facts.service.spec.pod_template, it.facts.gpu_class
    if pod is None or gpu_class is None:
        return
    why = f"which class {gpu_class.metadata.name} needs; remove it, or name another class"
    for key, value in (gpu_class.spec.node_selector or {}).items():
        given = (pod.node_selector or {}).get(key, value)
        if given != value:
            path = f"spec.podTemplate.nodeSelector.{key}"
            yield Problem(path, f"{given} is replaced by {value}, {why}", "PodTemplateReplaced")
    if pod.resources is None:
        return
    for part, quantities in (("requests", pod.resources.requests), ("limits", pod.resources.limits)):
        for name, value in own_resources(it.plan).items():
            given = (quantities or {}).get(name, value)
            if not _are_equal(given, value):
                path = f"spec.podTemplate.resources.{part}.{name}"
                yield Problem(path, f"{given} is replaced by {value}, {why}", "PodTemplateReplaced")


def _are_equal(one: str, other: str) -> bool:
    """Whether two quantities are the same number (``1Gi`` and ``1024Mi``)."""
    (numerator, denominator), (others_numerator, others_denominator) = map(quantity.parse_ratio, (one, other))
    return numerator * others_denominator == others_numerator * denominator


_ADVICE: Final[tuple[Callable[[Accepted], Iterator[Problem]], ...]] = (
    _few_sequences,
    _stretched,
    _checkpoint,
    _host_path,
    _traffic_too_long,
    _replicas_below_traffic,
    _queue,
    _drain,
    _replaced,
)
