"""Accepted services with their class and plan, and the Snapshot that a watch would have of them."""

from typing import Any

from kvbudget.api import GPUClass, LLMService, parse_gpu_class, parse_service
from kvbudget.checks import evaluate
from kvbudget.plan import Plan
from kvbudget_operator.children import Owner as ChildOwner
from kvbudget_operator.children import deployment, plan_config_map, stable_children
from kvbudget_operator.gather import Snapshot
from kvbudget_operator.settings import WorkerImage
from support.objects import Object, gpu_class, service

WORKER = WorkerImage("registry.test/worker:1")
UID = "11111111-2222-3333-4444-555555555555"


def small_class(**changes: Any) -> Object:
    return gpu_class("small", **{"spec__memory": "1720Mi", **changes})


def live_service(**changes: Any) -> Object:
    """As the API server would hold it."""
    made = service(spec__gpu__class="small", spec__model__name="SmolLM2-135M-Instruct", **changes)
    made["metadata"] |= {"namespace": "demo", "uid": UID, "generation": 1, "resourceVersion": "7"}
    return made


def accepted(of_class: Object | None = None, **changes: Any) -> tuple[LLMService, GPUClass, Plan]:
    """Raises AssertionError where the service is not accepted."""
    parsed, klass = parse_service(live_service(**changes)), parse_gpu_class(of_class or small_class())
    verdict = evaluate(parsed, klass)
    assert verdict.plan is not None, verdict.errors
    return parsed, klass, verdict.plan


def snapshot(of_class: Object | None = None, *, deployed: bool = True, **changes: Any) -> Snapshot:
    """A service as it is after its first reconcile; ``deployed`` False: before it."""
    changes.setdefault("spec__replicas", 2)
    obj, klass = live_service(**changes), of_class or small_class()
    if not deployed:
        return Snapshot(obj, klass, None)
    parsed, parsed_class, plan = accepted(klass, **changes)
    owner = ChildOwner.of(obj)
    replicas = parsed.spec.replicas or 0
    made = deployment(parsed, parsed_class, plan, replicas, WORKER)
    made["metadata"] |= {"generation": 1, "uid": "uid-of-Deployment"}
    children = [plan_config_map(owner, plan), *stable_children(owner, replicas)]
    for child in children:
        child["metadata"]["uid"] = f"uid-of-{child['kind']}"
    return Snapshot(obj, klass, made, config_maps=(children[0],), others=tuple(children[1:]))
