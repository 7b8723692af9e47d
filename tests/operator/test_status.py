"""Status, conditions and events from what was decided and observed."""

from dataclasses import replace
from typing import Any

import pytest

from kvbudget import conditions
from kvbudget.api import LLMServiceStatus, parse_service
from kvbudget.api.status import DemandStatus
from kvbudget.scaling import Decision
from kvbudget_operator import observe, status
from kvbudget_operator.gather import Snapshot
from kvbudget_operator.observe import Observation
from kvbudget_operator.pods import is_starting
from kvbudget_operator.reconcile import decide
from kvbudget_operator.scrape import Reading
from kvbudget_operator.status import Outcome
from support.accepted import WORKER, live_service, snapshot
from support.objects import REMOVE, Object, changed

NOW = "2026-01-01T00:00:00Z"


def deployed(seen: Snapshot, **live: Any) -> Snapshot:
    assert seen.deployment is not None
    full = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}
    return replace(seen, deployment={**seen.deployment, "status": {**full, **live}})


def build(
    seen: Snapshot,
    outcome: Outcome | None = None,
    observation: Observation | None = None,
    demand: DemandStatus | None = None,
) -> LLMServiceStatus:
    return status.build(seen, decide(seen, WORKER), outcome or Outcome(), observation, demand, [], NOW)


def states(built: LLMServiceStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in built.conditions}


def worker(name: str = "chat-a", *, ready: bool = True, **extra: Any) -> Object:
    conditions_ = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": name, "uid": name, "namespace": "demo"},
        "status": {"phase": "Running", "conditions": conditions_, **extra},
    }


def reading(seen: Snapshot, **changes: Any) -> Reading:
    plan = decide(seen, WORKER).plan
    assert plan is not None
    facts = {
        "plan": plan.hash(),
        "capacity_tokens": plan.budget.tokens,
        "weight_bytes": plan.budget.weight_bytes,
        "page_bytes": plan.kv.page_bytes,
        "pages": plan.kv.pages,
        "free_bytes": 5,
    }
    return Reading(0, **{**facts, **changes})


def observed(seen: Snapshot, pods: list[Object], readings: dict[str, Reading], *, metrics: bool = True) -> Observation:
    decision = Decision(2, 2, "Steady" if metrics else "NoMetrics", "because", metrics_available=metrics)
    return observe.observe(pods, readings, decide(seen, WORKER).plan, decision)


@pytest.mark.parametrize(
    ("live", "progressing", "available", "ready"),
    [
        ({}, ("False", "Stable"), ("True", "WorkersReady"), ("True", "WorkersReady")),
        ({"readyReplicas": 1}, ("True", "RollingOut"), ("True", "WorkersReady"), ("True", "WorkersReady")),
        ({"readyReplicas": 0}, ("True", "RollingOut"), ("False", "NoReadyWorkers"), ("False", "NoReadyWorkers")),
        ({"updatedReplicas": 1}, ("True", "RollingOut"), ("True", "WorkersReady"), ("True", "WorkersReady")),
        ({"observedGeneration": 0}, ("True", "RollingOut"), ("True", "WorkersReady"), ("True", "WorkersReady")),
        (
            {"readyReplicas": 0, "conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]},
            ("False", "ProgressDeadlineExceeded"),
            ("False", "NoReadyWorkers"),
            ("False", "NoReadyWorkers"),
        ),
    ],
    ids=["all ready", "one ready", "none ready", "half updated", "not observed", "stuck"],
)
def test_conditions_follow_the_deployment(
    live: dict[str, Any], progressing: tuple[str, str], available: tuple[str, str], ready: tuple[str, str]
) -> None:
    found = states(build(deployed(snapshot(), **live)))
    assert (found["Progressing"], found["Available"], found["Ready"]) == (progressing, available, ready)
    assert found["Accepted"][0] == found["Budgeted"][0] == "True"
    assert found["Degraded"][0] == ("True" if "conditions" in live else "False")


def test_scaled_to_zero_is_ready() -> None:
    seen = deployed(snapshot(spec__replicas=0), replicas=0, updatedReplicas=0, readyReplicas=0)
    assert states(build(seen))["Ready"] == ("True", "ScaledToZero")


def test_the_budget_adds_up_and_limits_and_selector_are_told() -> None:
    built = build(deployed(snapshot(spec__maxModelLen=4096)))
    budget, limits = built.budget, built.limits
    assert budget is not None
    assert limits is not None
    figures = budget.model_dump()
    parts = ("weight_bytes", "activation_bytes", "graph_bytes", "runtime_bytes", "kv_bytes")
    assert figures["usable_bytes"] == sum(figures[part] for part in parts)
    pages = figures["pages"] + figures["reserved_pages"]
    assert figures["kv_bytes"] == pages * figures["page_bytes"] + figures["remainder_bytes"]
    assert limits.max_model_len == 4096
    assert built.selector == "kvbudget.dev/llmservice=chat,app.kubernetes.io/component=worker"


@pytest.mark.parametrize(
    ("seen", "model"),
    [
        (snapshot(), "SmolLM2-135M-Instruct"),
        (replace(snapshot(deployed=False), gpu_class=None), "SmolLM2-135M-Instruct"),
        (replace(snapshot(deployed=False), service=changed(snapshot().service, {"spec.model.name": REMOVE})), "chat"),
        (replace(snapshot(deployed=False), service=changed(snapshot().service, {"spec.model": REMOVE})), None),
    ],
    ids=["accepted", "refused", "no name of its own", "malformed"],
)
def test_the_name_that_clients_use_is_told(seen: Snapshot, model: str | None) -> None:
    assert build(seen).model == model


def test_a_refused_service_says_every_problem_and_serves_on() -> None:
    seen = deployed(replace(snapshot(), gpu_class=None))
    found = states(build(seen))
    assert found["Accepted"] == ("False", "UnknownGPUClass")
    assert found["Budgeted"] == ("True", "LastAcceptedPlan")
    assert found["Available"][0] == "True"
    assert found["Degraded"] == ("True", "ServingLastAcceptedPlan")
    assert found["Ready"] == ("False", "UnknownGPUClass")


def test_a_pod_that_cannot_start_says_why() -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off"}
    ended = {"exitCode": 2, "message": "KVBUDGET_PLAN: no such file"}
    broken = worker(
        ready=False,
        containerStatuses=[{"name": "worker", "state": {"waiting": waiting}, "lastState": {"terminated": ended}}],
    )
    seen = replace(deployed(snapshot(), readyReplicas=0), pods=(broken,))
    available = conditions.find(build(seen).conditions, "Available")
    assert available is not None
    assert "pod chat-a: CrashLoopBackOff: exit code 2, KVBUDGET_PLAN: no such file" in available.message
    unscheduled = worker(ready=False)
    unscheduled["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    ]
    available = conditions.find(build(replace(seen, pods=(unscheduled,))).conditions, "Available")
    assert available is not None
    assert "Unschedulable: 0/3 nodes" in available.message


WRONG_PATH = "/models/x: does not exist: check spec.model.source"
TAIL = f"error: of the run before\n2026 INFO loading\nerror: {WRONG_PATH}\nlogging: done\n"
ENDED = {"terminated": {"exitCode": 1, "reason": "Error", "message": f"error: {WRONG_PATH}"}}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}


@pytest.mark.parametrize(
    ("state", "last_state", "told"),
    [
        (BACK_OFF, ENDED, f"CrashLoopBackOff: exit code 1, {WRONG_PATH}"),
        ({"running": {}}, ENDED, f"Crashed: exit code 1, {WRONG_PATH}"),
        (ENDED, {}, f"Crashed: exit code 1, {WRONG_PATH}"),
        (ENDED, {"terminated": {"exitCode": 9, "message": "older"}}, f"Crashed: exit code 1, {WRONG_PATH}"),
        ({"waiting": {"reason": "ContainerCreating"}}, ENDED, f"Crashed: exit code 1, {WRONG_PATH}"),
        (BACK_OFF, {"terminated": {"exitCode": 1, "message": TAIL}}, f"CrashLoopBackOff: exit code 1, {WRONG_PATH}"),
        (
            BACK_OFF,
            {"terminated": {"exitCode": 127, "message": "starting\nsh: python: not found\n"}},
            "CrashLoopBackOff: exit code 127, sh: python: not found",
        ),
        (
            {"running": {}},
            {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            "Crashed: exit code 137, OOMKilled",
        ),
        (
            {"waiting": {"reason": "ErrImageNeverPull", "message": 'image "x" is not present'}},
            {},
            'ErrImageNeverPull: image "x" is not present',
        ),
    ],
    ids=["waits", "runs again", "stands", "the newest", "made again", "log tail", "no error line", "killed", "image"],
)
def test_the_cause_is_told_through_the_whole_crash_loop(state: Object, last_state: Object, told: str) -> None:
    broken = worker(ready=False, containerStatuses=[{"name": "worker", "state": state, "lastState": last_state}])
    built = build(replace(deployed(snapshot(), readyReplicas=0), pods=(broken,)))
    messages = {each.type: each.message for each in built.conditions}
    assert messages["Ready"] == messages["Available"] == f"0 of 2 workers ready; pod chat-a: {told}"
    reason, _, detail = told.partition(": ")
    assert states(built)["Degraded"] == ("True", "WorkersCannotStart")
    for short in (messages["Degraded"], messages["Progressing"]):
        assert short.endswith(f"; pod chat-a: {reason}")
        assert detail not in short


def test_a_crash_of_the_past_is_no_trouble_of_others() -> None:
    """Neither a drained container that runs again, nor a worker beside one that starts or serves, degrades."""
    status_of = {"name": "worker", "state": {"running": {}}}
    drained = worker(ready=False, containerStatuses=[{**status_of, "lastState": {"terminated": {"exitCode": 0}}}])
    crashed = worker("chat-b", ready=False, containerStatuses=[{**status_of, "lastState": ENDED}])
    seen = deployed(snapshot(), readyReplicas=0)
    for pods in ((drained,), (crashed, drained), (crashed, worker("chat-c"))):
        assert states(build(replace(seen, pods=pods)))["Degraded"] == ("False", "AsExpected")
    assert is_starting(crashed), "it loads again: scaling waits for it"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"weight_bytes": 271_720_000}, ""),
        ({"pages": 200}, "200 pages, planned 225"),
        ({"page_bytes": 1}, "1 B per page, planned 1474560"),
        ({"weight_bytes": 300_000_000}, "300000000 B of weights"),
        ({"plan": "another", "pages": 1}, None),
        ({"pages": 0, "page_bytes": 0, "weight_bytes": 0}, None),
    ],
    ids=["equal", "weights within tolerance", "pages", "page bytes", "weights", "pod of another plan", "still loading"],
)
def test_plan_and_engine_are_compared(changes: dict[str, Any], message: str | None) -> None:
    seen = deployed(snapshot())
    observation = observed(seen, [worker()], {"chat-a": reading(seen, **changes)})
    built = build(seen, observation=observation)
    found = states(built)
    if message is None:
        assert "BudgetMatchesEngine" not in found
        return
    assert message in observation.mismatch
    assert found["BudgetMatchesEngine"][0] == ("False" if message else "True")
    assert found["Degraded"][0] == ("True" if message else "False")
    assert found["Ready"][0] == "True", "a mismatch degrades, it does not stop the service"


def test_metrics_and_scaling_conditions_say_what_is_known() -> None:
    plain = deployed(snapshot())
    blind = observed(plain, [worker()], {}, metrics=False)
    assert states(build(plain, observation=blind))["MetricsAvailable"] == ("False", "NoMetrics")
    assert "ScalingActive" not in states(build(plain, observation=blind))
    scaling = deployed(snapshot(spec__scaling={"maxReplicas": 4}))
    seeing = observed(scaling, [worker()], {"chat-a": reading(scaling)})
    found = states(build(scaling, observation=seeing))
    assert (found["MetricsAvailable"][0], found["ScalingActive"][0]) == ("True", "True")
    starting = observed(scaling, [worker(ready=False)], {}, metrics=False)
    assert "MetricsAvailable" not in states(build(scaling, observation=starting))


def test_what_was_measured_stays_until_the_workers_were_asked_again() -> None:
    seen = deployed(snapshot())
    first = build(seen, observation=observed(seen, [worker()], {"chat-a": reading(seen)}))
    restarted = replace(seen, service={**seen.service, "status": first.model_dump(by_alias=True, exclude_none=True)})
    assert build(restarted, observation=None) == first


def test_a_failure_to_apply_is_told_and_degrades() -> None:
    found = states(build(deployed(snapshot()), Outcome(failure=("ApplyFailed", "Deployment: 422 invalid"))))
    assert found["Progressing"] == ("False", "ApplyFailed")
    assert found["Degraded"] == ("True", "ApplyFailed")


def test_building_twice_changes_nothing_and_transition_times_stay() -> None:
    seen = deployed(snapshot())
    first = build(seen)
    again = replace(seen, service=changed(seen.service, {"status": first.model_dump(by_alias=True, exclude_none=True)}))
    later = status.build(again, decide(again, WORKER), Outcome(), None, None, [], "2027-01-01T00:00:00Z")
    assert later == first


def test_events_tell_transitions_once() -> None:
    seen = deployed(snapshot(), readyReplicas=0)
    starting = build(seen)
    assert status.notices(LLMServiceStatus(), starting) == ()
    ready = build(deployed(snapshot()))
    (told,) = status.notices(starting, ready)
    assert (told.type, told.reason) == ("Normal", "WorkersReady")
    assert status.notices(ready, ready) == ()
    refused = build(deployed(replace(snapshot(), gpu_class=None)))
    assert {(each.type, each.reason) for each in status.notices(ready, refused)} == {("Warning", "UnknownGPUClass")}


ZERO, SMALL, LARGE = (DemandStatus(percent=percent, held_tokens=percent) for percent in (0, 3, 8))


def test_a_service_whose_workers_are_gone_has_no_demand() -> None:
    seen = snapshot(spec__replicas=0)
    found = observed(seen, [], {}, metrics=False)
    assert (found.has_metrics, found.demand) == (
        False,
        DemandStatus(held_tokens=0, queued_tokens=0, refused_tokens=0, percent=0),
    )
    assert observed(seen, [worker()], {}, metrics=False).demand is None, "one that does not answer may hold anything"


def test_only_the_driver_operator_is_ours() -> None:
    for driver, replicas in (("Operator", (1, 4)), ("HPA", (2, 2)), ("KEDA", (2, 2))):
        service = parse_service(live_service(spec__scaling={"maxReplicas": 4, "driver": driver}))
        found = observe.policy(service, 2, 5.0)
        assert (found.min_replicas, found.max_replicas) == replicas
        assert observe.is_driver(service) is (driver == "Operator")


@pytest.mark.parametrize(
    ("old", "new", "may_write", "written"),
    [
        (None, ZERO, True, ZERO),
        (ZERO, ZERO, True, ZERO),
        (ZERO, SMALL, True, SMALL),
        (ZERO, SMALL, False, ZERO),
        (SMALL, DemandStatus(percent=7), True, SMALL),
        (SMALL, LARGE, True, LARGE),
        (SMALL, ZERO, True, ZERO),
        (SMALL, None, True, SMALL),
    ],
)
def test_demand_is_written_on_a_real_change_only(
    old: DemandStatus | None, new: DemandStatus | None, may_write: bool, written: DemandStatus | None
) -> None:
    assert observe.demand_to_write(old, new, may_write) == written
