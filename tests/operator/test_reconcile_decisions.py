"""What is decided from a Snapshot."""

from dataclasses import replace
from typing import Any

import pytest

from kvbudget_operator import apply
from kvbudget_operator.gather import Indexes, gather, workers
from kvbudget_operator.reconcile import Actions, decide, last_plan
from support.accepted import WORKER, small_class, snapshot
from support.objects import Object, changed


def kinds(actions: Actions) -> list[str]:
    return [obj["kind"] for obj in actions.apply]


def deleted(actions: Actions) -> list[str]:
    return [deletion.ref.name for deletion in actions.delete]


def pod(plan: str) -> Object:
    return {"metadata": {"name": "p", "uid": "u", "labels": {"kvbudget.dev/plan": plan}}, "status": {}}


def test_a_new_service_gets_everything_in_an_order_in_which_pods_can_start() -> None:
    actions = decide(snapshot(deployed=False), WORKER)
    assert actions.accepted
    assert kinds(actions) == ["ServiceAccount", "Service", "PodDisruptionBudget", "ConfigMap", "Deployment"]
    assert actions.set_replicas is None


def test_the_same_snapshot_gives_the_same_actions() -> None:
    assert decide(snapshot(), WORKER) == decide(snapshot(), WORKER)


@pytest.mark.parametrize(
    ("spec", "replicas"),
    [
        ({}, 1),
        ({"spec__scaling": {"minReplicas": 3, "maxReplicas": 4}}, 3),
        ({"spec__traffic": {"concurrentRequests": 100, "inputTokens": 600, "outputTokens": 100}}, 7),
        (
            {
                "spec__traffic": {"concurrentRequests": 100, "inputTokens": 600, "outputTokens": 100},
                "spec__scaling": {"minReplicas": 2, "maxReplicas": 9},
            },
            2,
        ),
    ],
    ids=["neither", "scaling", "traffic", "both"],
)
def test_absent_replicas_are_min_replicas_else_the_size_from_traffic_else_one(
    spec: dict[str, Any], replicas: int
) -> None:
    seen = snapshot(deployed=False, **spec)
    del seen.service["spec"]["replicas"]
    actions = decide(seen, WORKER)
    assert (actions.set_replicas, actions.replicas) == (replicas, replicas)
    assert actions.sizing
    assert actions.apply[-1]["spec"]["replicas"] == replicas


def test_a_warning_that_only_concerns_creation_is_not_told_of_a_live_service() -> None:
    actions = decide(snapshot(spec__scaling={"minReplicas": 1, "maxReplicas": 4}), WORKER)
    assert "ReplicasAndScaling" not in {problem.check for problem in actions.problems}


@pytest.mark.parametrize(
    ("spec", "gpu_class", "reason"),
    [
        ({}, None, "UnknownGPUClass"),
        ({"spec.maxModelLen": "long"}, small_class(), "InvalidField"),
        ({"spec.router": {"replicas": 1}}, small_class(), "NotSupportedYet"),
        ({}, small_class(spec__memory="1Ti€"), "InvalidClass"),
        ({}, small_class(spec__memory="1Gi"), "BudgetTooSmall"),
    ],
    ids=["no class", "bad field", "unsupported", "bad class", "class edited"],
)
def test_a_service_that_became_invalid_keeps_its_last_plan(
    spec: dict[str, Any], gpu_class: Object | None, reason: str
) -> None:
    before = snapshot()
    plan = last_plan(before)
    broken = replace(before, service=changed(before.service, {**spec, "spec.replicas": 1}), gpu_class=gpu_class)
    actions = decide(broken, WORKER)
    assert not actions.accepted
    assert actions.problems[0].check == reason
    assert actions.plan == plan
    assert actions.plan is not None
    assert kinds(actions) == ["ServiceAccount", "Service"]
    assert (actions.scale_child, actions.replicas) == (True, 1)
    assert deleted(actions) == ["chat"], "the disruption budget of what is one replica now"


def test_a_service_that_was_never_accepted_has_nothing_made_for_it() -> None:
    actions = decide(replace(snapshot(deployed=False), gpu_class=None), WORKER)
    assert (actions.accepted, actions.apply, actions.delete, actions.plan) == (False, (), (), None)


def test_an_unreadable_last_plan_is_no_reason_to_touch_anything() -> None:
    before = snapshot()
    broken = replace(
        before, gpu_class=None, config_maps=(changed(before.config_maps[0], {"data": {"plan.json": "{"}}),)
    )
    actions = decide(broken, WORKER)
    assert (actions.plan, deleted(actions)) == (None, [])


@pytest.mark.parametrize("user", ["nobody", "pod", "replica set"])
def test_a_plan_is_deleted_when_nothing_names_it(user: str) -> None:
    before = snapshot()
    old = changed(before.config_maps[0], {"metadata.name": "chat-plan-old", "metadata.uid": "old"})
    old["metadata"]["labels"]["kvbudget.dev/plan"] = "old"
    template = {"metadata": {"labels": {"kvbudget.dev/plan": "old"}}}
    seen = replace(
        before,
        config_maps=(*before.config_maps, old),
        pods=(pod("old"),) if user == "pod" else (),
        replica_sets=({"spec": {"template": template}},) if user == "replica set" else (),
    )
    assert deleted(decide(seen, WORKER)) == (["chat-plan-old"] if user == "nobody" else [])


def test_what_was_applied_and_not_touched_needs_no_second_apply() -> None:
    wanted = apply._marked(decide(snapshot(), WORKER).apply[-1])
    live = changed(wanted, {"metadata.uid": "u", "spec.paused": False, "spec.template.spec.dnsPolicy": "ClusterFirst"})
    assert apply.is_applied(wanted, live)
    drifted = changed(live, {"spec.replicas": 9})
    assert not apply.is_applied(wanted, drifted)
    other = apply._marked(decide(snapshot(spec__replicas=3), WORKER).apply[-1])
    assert not apply.is_applied(other, live)
    before = apply._marked(decide(snapshot(spec__podTemplate={"annotations": {"a": "b"}}), WORKER).apply[-1])
    assert not apply.is_applied(wanted, before), "what is no longer wanted must go, though all that is wanted is there"
    live["spec"]["template"]["spec"]["containers"].append({"name": "injected"})
    assert not apply.is_applied(wanted, live)


def controlled(name: str, uid: str, owner: str | None) -> Object:
    """A ReplicaSet or pod that bears our label; ``owner`` is the uid of its controller."""
    metadata: Object = {"name": name, "namespace": "demo", "uid": uid, "labels": {"kvbudget.dev/llmservice": "chat"}}
    metadata["ownerReferences"] = [] if owner is None else [{"uid": owner, "controller": True}]
    return {"metadata": metadata, "spec": {"template": {"metadata": {}}}, "status": {}}


def test_gather_takes_along_controller_references_only_what_is_ours() -> None:
    """A label is anybody's to set: a stray pod must not be read, scaled by, or given a deletion cost."""
    seen = snapshot()
    assert seen.deployment is not None
    key = ("demo", "chat")
    foreign = changed(seen.others[0], {})
    foreign["metadata"]["ownerReferences"][0]["uid"] = "another"
    stray = changed(seen.deployment, {"metadata.uid": "stray"})
    stray["metadata"]["ownerReferences"][0]["uid"] = "another"
    ours = controlled("chat-1", "set", "uid-of-Deployment")
    worker = controlled("chat-1-a", "pod", "set")
    strangers = [controlled("debug", "debug", None), controlled("job", "job", "another"), controlled("s", "s", "sets")]
    indexes = Indexes(
        services={key: [seen.service]},
        gpu_classes={"small": [seen.gpu_class] if seen.gpu_class else []},
        users={},
        deployments={key: [stray, seen.deployment]},
        replica_sets={key: [controlled("chat-0", "sets", "stray"), ours]},
        config_maps={key: list(seen.config_maps)},
        others={key: [*seen.others, foreign]},
        pods={key: [*strangers, worker]},
    )
    found = gather(indexes, key)
    assert found is not None
    assert (found.deployment, found.others) == (seen.deployment, seen.others)
    assert (found.replica_sets, found.pods) == ((ours,), (worker,))
    assert workers(indexes) == [worker]
    assert [each["metadata"]["name"] for each in (worker, *strangers) if found.is_worker(each)] == ["chat-1-a"]
    assert gather(indexes, ("demo", "other")) is None
