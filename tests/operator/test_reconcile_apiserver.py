"""The operator process against a real API server: what it makes, and that it then goes quiet."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbudget.plan import Plan
from kvbudget_operator import rbac
from kvbudget_operator.client import Client
from kvbudget_operator.controller import Controller
from kvbudget_operator.gather import Indexes
from kvbudget_operator.metrics import OperatorMetrics
from kvbudget_operator.settings import OperatorSettings, WorkerImage
from support.controlplane import ControlPlane
from support.kubeapi import Object
from support.kubeprocess import Process, service_account
from support.laws import profile
from support.services import Cluster

pytestmark = pytest.mark.apiserver

KILLS = 40 if profile() == "soak" else 2
"""How often the operator is killed at a random moment, after it was killed behind each of its writes."""


@pytest.mark.smoke
def test_an_accepted_service_gets_its_children_and_a_budget(cluster: Cluster, operator: Process) -> None:
    cluster.make_class()
    made = cluster.make(spec__replicas=2)
    deployment = cluster.until_deployed()
    cluster.until_condition("Budgeted", "True")
    config_maps = [each for each in cluster.all("configmaps") if each["metadata"]["name"].startswith("chat-plan-")]
    plan = Plan.model_validate_json(config_maps[0]["data"]["plan.json"])
    assert config_maps[0]["metadata"]["name"] == f"chat-plan-{plan.hash()}"
    children = [
        deployment,
        *config_maps,
        cluster.find("services", "chat"),
        cluster.find("serviceaccounts", "chat-worker"),
        cluster.until(lambda: cluster.find("poddisruptionbudgets", "chat")),
    ]
    for child in children:
        assert child is not None
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
    assert deployment["spec"]["replicas"] == 2
    status = cluster.find("llmservices", "chat")["status"]  # type: ignore[index]
    assert status["budget"]["tokens"] == plan.budget.tokens
    assert status["observedGeneration"] == 1
    assert cluster.condition("Ready")["status"] == "False"
    cluster.roll_out()
    cluster.until_condition("Ready", "True")
    assert cluster.condition("Progressing")["reason"] == "Stable"
    reasons = {each["reason"] for each in cluster.until(lambda: cluster.all("events"))}
    assert "WorkersReady" in reasons, json.dumps(sorted(reasons))


def test_the_operator_goes_quiet_once_nothing_changes(cluster: Cluster, operator: Process) -> None:
    """Also where the API server writes values otherwise than the user did."""
    cluster.make_class()
    template = {"resources": {"requests": {"cpu": "0.5"}}, "env": [{"name": "EMPTY", "value": ""}]}
    cluster.make(spec__replicas=2, spec__podTemplate=template)
    cluster.until_deployed()
    cluster.roll_out()
    cluster.until_condition("Ready", "True")
    cluster.until_condition("Progressing", "False", reason="Stable")
    before = cluster.until(lambda: _quiet(cluster, operator))
    noops = 'kvbudget_operator_reconciles_total{result="noop"}'
    for kind in ("llmservices", "deployments"):
        # An event that changes nothing costs a reconcile that writes nothing.
        expected = operator.metric(noops) + 1
        cluster.api.merge(cluster.path(kind, "chat"), {"metadata": {"labels": {"test/touched": "yes"}}})
        cluster.until(lambda: operator.metric(noops) >= expected)  # noqa: B023 (called before the next round)
    after = _metrics(operator)
    assert {key: value for key, value in after.items() if key != noops} == {
        key: value for key, value in before.items() if key != noops
    }


def test_replicas_that_are_left_out_are_written_once_and_then_left_to_others(
    cluster: Cluster, operator: Process
) -> None:
    cluster.make_class()
    cluster.make(spec__scaling={"minReplicas": 2, "maxReplicas": 4})
    cluster.until(lambda: (cluster.find("llmservices", "chat") or {})["spec"].get("replicas") == 2)
    cluster.until(lambda: cluster.until_deployed()["spec"]["replicas"] == 2)
    scale = cluster.path("llmservices", "chat/scale")
    cluster.api.merge(scale, {"spec": {"replicas": 3}})
    cluster.until(lambda: cluster.until_deployed()["spec"]["replicas"] == 3)
    assert cluster.api.get(scale)["status"]["selector"].startswith("kvbudget.dev/llmservice=chat")


def test_a_drifted_child_is_put_right_and_a_deleted_one_made_again(cluster: Cluster, operator: Process) -> None:
    cluster.make_class()
    cluster.make(spec__replicas=1)
    cluster.until_deployed()
    cluster.api.merge(cluster.path("deployments", "chat"), {"spec": {"replicas": 7}})
    cluster.until(lambda: cluster.until_deployed()["spec"]["replicas"] == 1)
    cluster.until(lambda: cluster.find("services", "chat"))
    cluster.api.delete(cluster.path("services", "chat"))
    cluster.until(lambda: cluster.find("services", "chat"))


def test_a_changed_plan_is_a_new_revision_and_the_stale_plan_goes_when_nothing_names_it(
    cluster: Cluster, operator: Process
) -> None:
    cluster.make_class()
    cluster.make(spec__replicas=2, spec__maxModelLen=4096)
    first = _plan(cluster.until_deployed())
    labels = {"kvbudget.dev/llmservice": "chat", "kvbudget.dev/plan": first, "pod-template-hash": "old"}
    cluster.replica_set("chat-old", labels)
    cluster.until(lambda: cluster.find("poddisruptionbudgets", "chat"))
    cluster.make(spec__replicas=1, spec__maxModelLen=2048)
    cluster.until(lambda: _plan(cluster.until_deployed()) != first)
    second = _plan(cluster.until_deployed())
    cluster.until(lambda: cluster.find("configmaps", f"chat-plan-{second}"))
    cluster.until(lambda: cluster.find("poddisruptionbudgets", "chat") is None)
    assert cluster.find("configmaps", f"chat-plan-{first}"), "the old ReplicaSet still names it"
    cluster.api.delete(cluster.path("replicasets", "chat-old"))
    cluster.until(lambda: cluster.find("configmaps", f"chat-plan-{first}") is None)
    assert cluster.find("configmaps", f"chat-plan-{second}")
    reasons = {each["reason"] for each in cluster.all("events")}
    assert "PlanChanged" in reasons


async def test_the_plan_in_force_is_kept_though_the_watch_shows_an_older_deployment(
    apiserver: ControlPlane, cluster: Cluster, tmp_path: Path
) -> None:
    """The watches of kinds run apart: the ConfigMap of a new plan may be seen before the Deployment that names it."""
    rules = {cluster.namespace: rbac.OPERATOR}
    kubeconfig = service_account(
        apiserver, tmp_path, cluster.namespace, cluster=rbac.OPERATOR_CLUSTER, namespaced=rules
    )
    client = Client.connect(threads=2, timeout_seconds=20, kubeconfig=str(kubeconfig))
    controller = Controller(OperatorSettings(WorkerImage("registry.test/worker:1")), client, OperatorMetrics())
    key = (cluster.namespace, "chat")
    seen = Indexes(
        services={}, gpu_classes={}, users={}, deployments={}, replica_sets={}, config_maps={}, others={}, pods={}
    )

    def watch(*, deployment: bool = True) -> None:
        assert isinstance(seen.services, dict)
        assert isinstance(seen.deployments, dict)
        assert isinstance(seen.config_maps, dict)
        seen.services[key] = [cluster.find("llmservices", "chat")]
        seen.config_maps[key] = [each for each in cluster.all("configmaps") if "-plan-" in each["metadata"]["name"]]
        for config_map in seen.config_maps[key]:
            config_map |= {"apiVersion": "v1", "kind": "ConfigMap"}
        if deployment:
            seen.deployments[key] = [cluster.find("deployments", "chat")]

    assert isinstance(seen.gpu_classes, dict)
    seen.gpu_classes[cluster.klass] = [cluster.make_class()]
    await controller.start(seen)
    for length in (4096, 2048):
        cluster.make(spec__replicas=1, spec__maxModelLen=length)
        watch(deployment=False)
        await controller.reconcile(key)
        watch(deployment=length == 4096)
    seen.gpu_classes.clear()
    await controller.reconcile(key)
    await controller.stop()
    client.close()
    assert cluster.find("configmaps", f"chat-plan-{_plan(cluster.until_deployed())}")


def test_a_class_deleted_under_a_running_service_tears_nothing_down(cluster: Cluster, operator: Process) -> None:
    cluster.make_class()
    cluster.make(spec__replicas=2)
    template = cluster.until_deployed()["spec"]["template"]
    cluster.roll_out()
    cluster.until_condition("Ready", "True")
    cluster.delete_class()
    refused = cluster.until_condition("Accepted", "False", reason="UnknownGPUClass")
    assert cluster.klass in refused["message"]
    cluster.until_condition("Degraded", "True", reason="ServingLastAcceptedPlan")
    assert cluster.condition("Budgeted")["reason"] == "LastAcceptedPlan"
    cluster.api.merge(cluster.path("llmservices", "chat/scale"), {"spec": {"replicas": 1}})
    cluster.until(lambda: cluster.until_deployed()["spec"]["replicas"] == 1)
    assert cluster.until_deployed()["spec"]["template"] == template
    cluster.until(lambda: cluster.find("poddisruptionbudgets", "chat") is None)
    for kind in ("services", "deployments"):
        assert cluster.find(kind, "chat")
    cluster.make_class()
    cluster.until_condition("Accepted", "True")
    cluster.roll_out()
    cluster.until_condition("Degraded", "False")
    assert cluster.until_deployed()["spec"]["template"] == template


def test_a_service_that_never_fitted_gets_no_children_and_says_why(cluster: Cluster, operator: Process) -> None:
    cluster.make_class()
    cluster.make(spec__maxModelLen=8192, spec__kvCache={"memoryPercent": 71})
    refused = cluster.until_condition("Accepted", "False")
    assert "spec." in refused["message"]
    assert cluster.condition("Ready")["reason"] == refused["reason"]
    assert cluster.find("deployments", "chat") is None
    assert cluster.find("services", "chat") is None


def test_an_object_of_somebody_else_with_a_childs_name_is_left_alone(cluster: Cluster, operator: Process) -> None:
    theirs = {"metadata": {"name": "chat"}, "spec": {"ports": [{"port": 80}]}}
    before = cluster.api.create(cluster.path("services"), theirs)
    cluster.make_class()
    cluster.make(spec__replicas=1)
    refused = cluster.until_condition("Progressing", "False", reason="NameTaken")
    assert "delete or rename it" in refused["message"]
    after = cluster.find("services", "chat")
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    cluster.api.delete(cluster.path("services", "chat"))
    cluster.until_deployed()


def test_a_service_under_deletion_does_not_get_its_children_back(cluster: Cluster, operator: Process) -> None:
    cluster.make_class()
    cluster.make(spec__replicas=1)
    cluster.until_deployed()
    cluster.until(lambda: cluster.find("services", "chat"))
    path = cluster.path("llmservices", "chat")
    cluster.api.merge(path, {"metadata": {"finalizers": ["test.kvbudget.dev/hold"]}})
    cluster.api.delete(path)
    cluster.api.delete(cluster.path("services", "chat"))
    cluster.make(name="other", spec__replicas=1)  # a service after it proves that the events were handled
    cluster.until_deployed("other")
    assert cluster.find("services", "chat") is None
    cluster.api.merge(path, {"metadata": {"finalizers": None}})
    assert cluster.find("llmservices", "chat") is None


def test_a_service_in_a_namespace_under_deletion_is_left_alone_without_retries(
    cluster: Cluster, operator: Process
) -> None:
    cluster.make_class()
    cluster.make(spec__replicas=1)
    cluster.until_deployed()
    cluster.until(lambda: cluster.find("services", "chat"))
    cluster.api.delete(f"/api/v1/namespaces/{cluster.namespace}")
    cluster.api.delete(cluster.path("services", "chat"))
    cluster.until(lambda: _quiet(cluster, operator))
    assert cluster.find("services", "chat") is None
    assert "failed" not in operator.text()


def test_an_operator_killed_at_any_point_reaches_the_same_end(
    cluster: Cluster, new_operator: Callable[[], Process]
) -> None:
    """Each round stops the operator after one more write; then at any moment, while the service changes."""
    cluster.make_class()
    cluster.make(spec__scaling={"minReplicas": 2, "maxReplicas": 4}, spec__maxModelLen=4096)
    seen = [
        lambda: cluster.find("llmservices", "chat")["spec"].get("replicas"),  # type: ignore[index]
        lambda: cluster.find("serviceaccounts", "chat-worker"),
        lambda: cluster.find("services", "chat"),
        lambda: cluster.find("configmaps", "chat-plan-" + _any_plan(cluster)),
        lambda: cluster.find("deployments", "chat"),
    ]
    process = new_operator()
    for step in seen:
        process.start()
        cluster.until(step, 60)
        process.kill()
    chance = random.Random(7 if profile() != "soak" else None)
    for limit in [*(chance.choice([512, 1024, 2048]) for _ in range(KILLS - 1)), 2048]:
        cluster.make(spec__scaling={"minReplicas": 2, "maxReplicas": 4}, spec__maxModelLen=limit)
        process.start()
        cluster.until(lambda: process.get("/healthz")[0] == 200, 60)
        time.sleep(chance.uniform(0.0, 1.5))  # not a wait: any moment will do
        process.kill()
    process.start()
    cluster.until(lambda: _limit(cluster) == 2048, 60)
    cluster.until(lambda: cluster.find("poddisruptionbudgets", "chat"))
    cluster.roll_out()
    cluster.until_condition("Ready", "True")
    cluster.until(
        lambda: len([each for each in cluster.all("configmaps") if "-plan-" in each["metadata"]["name"]]) == 1
    )
    deployment = cluster.until_deployed()
    plans = [each for each in cluster.all("configmaps") if "kvbudget.dev/plan" in each["metadata"].get("labels", {})]
    assert [each["metadata"]["name"] for each in plans] == [f"chat-plan-{_plan(deployment)}"]
    assert json.loads(plans[0]["data"]["plan.json"])["limits"]["maxModelLen"] == 2048
    assert deployment["spec"]["replicas"] == 2
    assert process.terminate() == 0


def test_the_whole_cluster_is_watched_by_default(
    apiserver: ControlPlane, cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rules = (*rbac.OPERATOR, *rbac.OPERATOR_CLUSTER, *rbac.OPERATOR_SCAN)
    kubeconfig = service_account(apiserver, tmp_path, cluster.namespace, cluster=rules)
    process = Process(["operator"], kubeconfig, tmp_path, {"KVBUDGET_WORKER_IMAGE": "registry.test/worker:1"})
    request.addfinalizer(process.kill)
    process.start().until_ready()
    cluster.make_class()
    cluster.make(spec__replicas=1)
    cluster.until_deployed()
    cluster.until_condition("Accepted", "True")
    assert "forbidden" not in process.text()


def _metrics(operator: Process) -> dict[str, float]:
    names = ("kvbudget_operator_writes_total", "kvbudget_operator_reconciles_total")
    lines = [line for line in operator.get("/metrics")[1].splitlines() if line.startswith(names)]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def _quiet(cluster: Cluster, operator: Process) -> dict[str, float] | None:
    """The metrics, once two scrape rounds passed without a reconcile or a new version of the service."""
    before = (_metrics(operator), cluster.find("llmservices", "chat"))
    rounds = time.monotonic() + 1.5
    cluster.until(lambda: time.monotonic() > rounds)
    return before[0] if before == (_metrics(operator), cluster.find("llmservices", "chat")) else None


def _plan(deployment: Object) -> str:
    return str(deployment["spec"]["template"]["metadata"]["labels"]["kvbudget.dev/plan"])


def _any_plan(cluster: Cluster) -> str:
    hashes = [each["metadata"].get("labels", {}).get("kvbudget.dev/plan") for each in cluster.all("configmaps")]
    return next((each for each in hashes if each), "none")


def _limit(cluster: Cluster) -> int | None:
    found = cluster.find("llmservices", "chat") or {}
    limit: int | None = found.get("status", {}).get("limits", {}).get("maxModelLen")
    return limit
