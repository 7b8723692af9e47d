"""Scaling by KV tokens: workers' metrics in, the scale subresource out, on a real API server."""

from collections.abc import Callable, Iterator

import pytest

from kvbudget.plan import Plan
from support.fakeworker import FakeWorker
from support.kubeapi import Object
from support.kubeprocess import Process
from support.services import Cluster

pytestmark = pytest.mark.apiserver


@pytest.fixture
def plan(cluster: Cluster, operator: Process) -> Plan:
    """Of a service that scales from 1 to 3, which is there and accepted."""
    cluster.make_class()
    cluster.make(spec__scaling={"maxReplicas": 3, "targetPercent": 50, "scaleDownDelaySeconds": 2})
    cluster.until(lambda: _replicas(cluster) == 1)
    name = cluster.until_deployed()["spec"]["template"]["metadata"]["labels"]["kvbudget.dev/plan"]
    found = cluster.find("configmaps", f"chat-plan-{name}")
    assert found is not None
    return Plan.model_validate_json(found["data"]["plan.json"])


@pytest.fixture
def new_worker(plan: Plan) -> Iterator[Callable[[], FakeWorker]]:
    made: list[FakeWorker] = []

    def make() -> FakeWorker:
        made.append(FakeWorker(plan))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def _replicas(cluster: Cluster) -> int | None:
    found = cluster.find("llmservices", "chat") or {}
    replicas: int | None = found["spec"].get("replicas")
    return replicas


def _status(cluster: Cluster) -> Object:
    found = cluster.find("llmservices", "chat") or {}
    status: Object = found.get("status", {})
    return status


def test_demand_raises_replicas_and_idleness_drains_the_least_loaded_pod(
    cluster: Cluster, new_worker: Callable[[], FakeWorker], plan: Plan
) -> None:
    one, two = new_worker(), new_worker()
    one.pod(cluster, "chat-one")
    cluster.until_condition("MetricsAvailable", "True")
    cluster.until_condition("ScalingActive", "True")
    cluster.until_condition("BudgetMatchesEngine", "True")
    assert _status(cluster)["measured"]["pages"] == plan.kv.pages
    one.reserved = plan.budget.tokens * 3 // 4
    cluster.until(lambda: _replicas(cluster) == 2)
    cluster.until(lambda: cluster.until_deployed()["spec"]["replicas"] == 2)
    two.pod(cluster, "chat-two")
    one.reserved, two.reserved = 640, 64
    cluster.until(lambda: _replicas(cluster) == 1)
    costs = {
        pod["metadata"]["name"]: pod["metadata"]
        .get("annotations", {})
        .get("controller.kubernetes.io/pod-deletion-cost")
        for pod in cluster.all("pods")
    }
    assert costs == {"chat-one": "640", "chat-two": "64"}
    decisions = cluster.until(lambda: len(found := _status(cluster).get("decisions", [])) == 2 and found)
    assert [(each["current"], each["desired"], each["reason"]) for each in decisions] == [
        (2, 1, "ScaleDown"),
        (1, 2, "ScaleUp"),
    ]
    assert decisions[1]["heldTokens"] == plan.budget.tokens * 3 // 4
    reasons = {each["reason"] for each in cluster.all("events")}
    assert {"ScaleUp", "ScaleDown"} <= reasons


def test_a_worker_that_does_not_answer_holds_the_replicas(
    cluster: Cluster, new_worker: Callable[[], FakeWorker], plan: Plan, operator: Process
) -> None:
    worker = new_worker()
    worker.reserved = plan.budget.tokens * 3 // 4
    worker.pod(cluster, "chat-one")
    cluster.until(lambda: _replicas(cluster) == 2)
    worker.close()
    cluster.until_condition("MetricsAvailable", "False", reason="NoMetrics")
    cluster.until_condition("ScalingActive", "False")
    assert _replicas(cluster) == 2


def test_a_pool_that_is_not_as_planned_degrades_and_a_drain_that_cut_requests_off_is_an_event(
    cluster: Cluster, new_worker: Callable[[], FakeWorker]
) -> None:
    worker = new_worker()
    worker.pages -= 5
    worker.pod(cluster, "chat-one")
    found = cluster.until_condition("BudgetMatchesEngine", "False")
    assert "pages, planned" in found["message"]
    cluster.until_condition("Degraded", "True", reason="BudgetMismatch")
    ended = {"terminated": {"exitCode": 0, "message": "requests cut off by the drain: 3"}}
    container = {"name": "worker", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
    path = cluster.path("pods", "chat-one")
    for _ in range(2):  # told once, however often the pod changes
        cluster.api.merge(f"{path}/status", {"status": {"containerStatuses": [container]}})
        cluster.api.merge(path, {"metadata": {"labels": {"touched": str(_)}}})
    cluster.api.delete(path)

    def told() -> list[str]:
        return [each["note"] for each in cluster.all("events") if each["reason"] == "DrainAborted"]

    cluster.until(told)
    assert told() == ["pod chat-one cut off 3 requests: its drain took longer than spec.drain.timeoutSeconds"]


def test_demand_is_written_at_most_every_15_seconds_and_an_idle_service_never(
    cluster: Cluster, new_worker: Callable[[], FakeWorker], plan: Plan, operator: Process
) -> None:
    worker = new_worker()
    worker.pod(cluster, "chat-one")
    # A service without pods has no demand either: what is told of the worker itself comes with its first reading.
    cluster.until_condition("MetricsAvailable", "True")
    cluster.until(lambda: _status(cluster).get("demand", {}).get("percent") == 0)
    idle = cluster.find("llmservices", "chat")
    _pass_rounds(cluster, operator, 4)
    assert cluster.find("llmservices", "chat") == idle
    worker.reserved = plan.budget.tokens // 3
    _pass_rounds(cluster, operator, 4)
    assert cluster.find("llmservices", "chat") == idle
    cluster.until(lambda: _status(cluster)["demand"]["percent"] == 34)
    _pass_rounds(cluster, operator, 4)
    assert _status(cluster)["demand"]["heldTokens"] == plan.budget.tokens // 3


def _pass_rounds(cluster: Cluster, operator: Process, count: int) -> None:
    metric = "kvbudget_operator_scrape_rounds_total"
    start = operator.metric(metric)
    cluster.until(lambda: operator.metric(metric) >= start + count)
