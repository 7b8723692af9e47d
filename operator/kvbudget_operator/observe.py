"""What the workers of one service report, against what was planned and demanded. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbudget.api import LLMService
from kvbudget.api.status import DemandStatus, MeasuredStatus
from kvbudget.plan import Plan
from kvbudget.scaling import Decision, ScalingPolicy, WorkerSample
from kvbudget_operator.pods import is_leaving, is_ready, is_starting
from kvbudget_operator.scrape import Reading

WEIGHT_TOLERANCE_PERCENT = 2
"""Loaded weights may differ from planned ones by buffers that no shape tells of (rotary tables, padding)."""
DEMAND_STEP_POINTS = 5
STALE_ROUNDS = 3
"""A worker that missed so many readings in a row counts as not answering."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the workers. ``measured`` None: no worker reported its pool; ``mismatch``: how plan and reality
    differ, empty where they agree; ``message``: why ``has_metrics`` is false."""

    ready_workers: int
    measured: MeasuredStatus | None
    mismatch: str
    has_metrics: bool
    message: str
    demand: DemandStatus | None


def samples(pods: Sequence[Mapping[str, Any]], readings: Mapping[str, Reading]) -> list[WorkerSample]:
    """One sample per pod, in the order of names."""
    found = []
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        reading = readings.get(pod["metadata"]["uid"])
        figures: dict[str, int] = {}
        if reading is not None:
            figures = {
                "reserved_tokens": reading.reserved_tokens,
                "queued_tokens": reading.queued_tokens,
                "refused_tokens": reading.refused_tokens,
                "capacity_tokens": reading.capacity_tokens,
                "sampled_at_ms": reading.at_ms,
            }
        name = str(pod["metadata"]["name"])
        found.append(WorkerSample(name, ready=is_ready(pod), starting=is_starting(pod), **figures))
    return found


def is_driver(service: LLMService | None) -> bool:
    """Whether we are the one writer of ``spec.replicas``."""
    return service is not None and service.spec.scaling is not None and service.spec.scaling.driver == "Operator"


def policy(service: LLMService | None, replicas: int, scrape_seconds: float) -> ScalingPolicy:
    """``spec.scaling``; for a service that we do not scale, one that never decides anything but ``replicas``."""
    stale = max(1, round(STALE_ROUNDS * scrape_seconds))
    scaling = service.spec.scaling if service is not None and is_driver(service) else None
    if scaling is None:
        return ScalingPolicy(replicas, replicas, stale_after_seconds=stale)
    return ScalingPolicy(
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        target_percent=scaling.target_percent,
        scale_down_delay_seconds=scaling.scale_down_delay_seconds,
        stale_after_seconds=stale,
    )


def observe(
    pods: Sequence[Mapping[str, Any]], readings: Mapping[str, Reading], plan: Plan | None, decision: Decision
) -> Observation:
    """``decision``: what the scaling made of the same pods and readings; its figures are the demand."""
    live = sorted((pod for pod in pods if not is_leaving(pod)), key=lambda pod: str(pod["metadata"]["name"]))
    serving = [(pod["metadata"]["name"], readings[uid]) for pod in live if (uid := pod["metadata"]["uid"]) in readings]
    # A worker that still loads has measured nothing, which is no mismatch.
    on_plan = [(name, each) for name, each in serving if plan and each.plan == plan.hash() and each.pages]
    demand = None
    if (
        plan is not None and not live
    ):  # nobody is there to hold anything; what was demanded of workers that are gone is no news
        demand = DemandStatus(held_tokens=0, queued_tokens=0, refused_tokens=0, percent=0)
    if decision.metrics_available:
        demand = DemandStatus(
            held_tokens=decision.held_tokens,
            queued_tokens=decision.queued_tokens,
            refused_tokens=decision.refused_tokens,
            percent=decision.demand_percent,
        )
    return Observation(
        ready_workers=sum(1 for pod in live if is_ready(pod)),
        measured=_measured([each for _, each in on_plan]),
        mismatch="; ".join(filter(None, (_mismatch(name, each, plan) for name, each in on_plan if plan is not None))),
        has_metrics=decision.metrics_available,
        message="" if decision.metrics_available else decision.message,
        demand=demand,
    )


def demand_to_write(old: DemandStatus | None, new: DemandStatus | None, may_write: bool) -> DemandStatus | None:
    """The demand for the status: the new one where it may be written now and says something else, else the old one.

    Something else is a change of at least 5 points, or between nothing and something: an idle service is never written.
    """
    if new is None or not may_write:
        return old
    if old is None or old.percent is None or new.percent is None:
        return new
    is_between = (old.percent == 0) != (new.percent == 0)
    return new if is_between or abs(new.percent - old.percent) >= DEMAND_STEP_POINTS else old


def _measured(readings: Sequence[Reading]) -> MeasuredStatus | None:
    if not readings:
        return None
    return MeasuredStatus(
        pages=min(each.pages for each in readings),
        tokens=min(each.capacity_tokens for each in readings),
        weight_bytes=min(each.weight_bytes for each in readings),
        free_bytes=min(each.free_bytes for each in readings),
    )


def _mismatch(pod: str, reading: Reading, plan: Plan) -> str:
    found = []
    if reading.pages != plan.kv.pages:
        found.append(f"{reading.pages} pages, planned {plan.kv.pages}")
    if reading.page_bytes != plan.kv.page_bytes:
        found.append(f"{reading.page_bytes} B per page, planned {plan.kv.page_bytes}")
    planned = plan.budget.weight_bytes
    if abs(reading.weight_bytes - planned) * 100 > planned * WEIGHT_TOLERANCE_PERCENT:
        found.append(f"{reading.weight_bytes} B of weights, planned {planned} ± {WEIGHT_TOLERANCE_PERCENT}%")
    return f"{pod}: {', '.join(found)}" if found else ""
