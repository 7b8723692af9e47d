"""What is to be done for one LLMService, from a Snapshot alone. Pure: the same Snapshot gives the same Actions.

A service that was accepted and is invalid now keeps its pods on the last accepted Plan: its Deployment's template is
left as it is, only the number of replicas follows ``spec.replicas``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvbudget.api import GPUClass, LLMService, parse_gpu_class, parse_service
from kvbudget.checks import Verdict, evaluate
from kvbudget.contract import LABEL_PLAN, PLAN_FILE
from kvbudget.errors import ObjectError, Problem
from kvbudget.plan import Plan
from kvbudget_operator import children
from kvbudget_operator.client import Ref
from kvbudget_operator.gather import Snapshot
from kvbudget_operator.objects import Object
from kvbudget_operator.settings import WorkerImage

_AT_CREATE_ONLY = "ReplicasAndScaling"
"""True of every live service that scales, since somebody writes ``spec.replicas``: told when it is created only."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """An object of ours that is no longer wanted; ``uid`` so that no later object of the name is hit."""

    ref: Ref
    uid: str


@dataclass(frozen=True, slots=True)
class Actions:
    """``problems``: errors, or warnings and notes where accepted. ``plan``: the one in force, also of a service that is
    not accepted. ``replicas``: wanted now.

    ``set_replicas``: write this to ``spec.replicas``, which is absent; ``sizing`` says where the number comes from.
    ``scale_child``: write ``replicas`` to the existing Deployment and touch nothing else of it. ``apply`` in order;
    ``delete`` only after all of it succeeded.
    """

    accepted: bool
    problems: tuple[Problem, ...]
    plan: Plan | None
    replicas: int
    service: LLMService | None
    set_replicas: int | None = None
    sizing: str | None = None
    scale_child: bool = False
    apply: tuple[Object, ...] = ()
    delete: tuple[Deletion, ...] = ()


def decide(snapshot: Snapshot, worker: WorkerImage) -> Actions:
    """What is to be done for a service that is not being deleted."""
    service, verdict, gpu_class = _judge(snapshot)
    owner = children.Owner.of(snapshot.service)
    if service is None or verdict.plan is None or verdict.errors or gpu_class is None:
        return _keep(snapshot, owner, service, verdict)
    replicas, sizing = _replicas(service, verdict)
    wanted = (
        *children.stable_children(owner, replicas),
        children.plan_config_map(owner, verdict.plan),
        children.deployment(service, gpu_class, verdict.plan, replicas, worker),
    )
    return Actions(
        accepted=True,
        problems=tuple(each for each in (*verdict.warnings, *verdict.notes) if each.check != _AT_CREATE_ONLY),
        plan=verdict.plan,
        replicas=replicas,
        service=service,
        set_replicas=None if sizing is None else replicas,
        sizing=sizing,
        apply=wanted,
        delete=_unwanted(snapshot, wanted, keep_plans=snapshot.plans_in_use | {verdict.plan.hash()}),
    )


def last_plan(snapshot: Snapshot) -> Plan | None:
    """The Plan that the live Deployment's template names; None where there is none, or not one that we can read."""
    for config_map in snapshot.config_maps:
        if (config_map["metadata"].get("labels") or {}).get(LABEL_PLAN) == snapshot.plan_hash:
            try:
                return Plan.model_validate_json((config_map.get("data") or {}).get(PLAN_FILE, ""))
            except ValueError:
                return None
    return None


def _judge(snapshot: Snapshot) -> tuple[LLMService | None, Verdict, GPUClass | None]:
    try:
        service = parse_service(snapshot.service)
    except ObjectError as error:
        return None, Verdict(plan=None, sizing=None, errors=error.problems, warnings=()), None
    gpu_class = None
    if snapshot.gpu_class is not None:
        try:
            gpu_class = parse_gpu_class(snapshot.gpu_class)
        except ObjectError as error:
            name = snapshot.gpu_class["metadata"]["name"]
            errors = tuple(Problem("spec.gpu.class", f"{name}: {each}", "InvalidClass") for each in error.problems)
            return service, Verdict(plan=None, sizing=None, errors=errors, warnings=()), None
    return service, evaluate(service, gpu_class), gpu_class


def _keep(snapshot: Snapshot, owner: children.Owner, service: LLMService | None, verdict: Verdict) -> Actions:
    """Nothing is made for a service that was never accepted; nothing is torn down of one that was."""
    live = snapshot.deployment
    if live is None:
        return Actions(accepted=False, problems=verdict.errors, plan=None, replicas=0, service=service)
    running = _count(live["spec"].get("replicas"), default=1)
    replicas = _count((snapshot.service.get("spec") or {}).get("replicas"), default=running)
    wanted = tuple(children.stable_children(owner, replicas))
    return Actions(
        accepted=False,
        problems=verdict.errors,
        plan=last_plan(snapshot),
        replicas=replicas,
        service=service,
        scale_child=replicas != running,
        apply=wanted,
        delete=_unwanted(snapshot, wanted, keep_plans=snapshot.plans_in_use),
    )


def _replicas(service: LLMService, verdict: Verdict) -> tuple[int, str | None]:
    """Replicas, and why so many; None where the spec says them itself."""
    spec = service.spec
    if spec.replicas is not None:
        return spec.replicas, None
    if spec.scaling is not None:
        return spec.scaling.min_replicas, "spec.scaling.minReplicas"
    if verdict.sizing is not None:
        return verdict.sizing.replicas, verdict.sizing.formula or verdict.sizing.reason
    return 1, "no replicas, scaling or traffic in the spec"


def _unwanted(snapshot: Snapshot, wanted: tuple[Object, ...], *, keep_plans: frozenset[str]) -> tuple[Deletion, ...]:
    """ConfigMaps of Plans that nothing names any more, and a PodDisruptionBudget that is no longer wanted."""
    refs = {Ref.of(obj) for obj in wanted}
    stale = [
        config_map
        for config_map in snapshot.config_maps
        if (config_map["metadata"].get("labels") or {}).get(LABEL_PLAN) not in keep_plans
    ]
    budgets = [obj for obj in snapshot.others if obj["kind"] == "PodDisruptionBudget" and Ref.of(obj) not in refs]
    return tuple(
        Deletion(Ref.of(obj), obj["metadata"]["uid"])
        for obj in (*stale, *budgets)
        if not obj["metadata"].get("deletionTimestamp")
    )


def _count(value: object, *, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def is_deleting(service: Mapping[str, Any]) -> bool:
    """The garbage collector removes the children; we only must not bring them back."""
    return bool(service["metadata"].get("deletionTimestamp"))
