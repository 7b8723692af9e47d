"""What `helm install --wait` promises, on a real cluster."""

from harness.cluster import Cluster
from harness.dump import SYSTEM
from harness.install import PROBE_CLASS, RELEASE, Installed


def test_helm_returns_only_when_the_webhook_answers(chart: Installed) -> None:
    assert f"spec.gpu.class: GPUClass {PROBE_CLASS} does not exist" in chart.first_answer


def test_two_admission_replicas_and_one_operator_run_in_a_restricted_namespace(
    cluster: Cluster, chart: Installed
) -> None:
    ready = {
        deployment["metadata"]["name"]: deployment["status"].get("readyReplicas", 0)
        for deployment in cluster.find("deployments", SYSTEM)
    }
    assert ready == {"kvbudget-operator": 1, "kvbudget-admission": 2}
    (budget,) = cluster.find("poddisruptionbudgets", SYSTEM)
    assert budget["status"]["disruptionsAllowed"] == 1
    space = cluster.get("namespaces", SYSTEM)
    assert space is not None
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_webhook_matches_our_group_alone_and_fails_closed(cluster: Cluster, chart: Installed) -> None:
    configuration = cluster.get("validatingwebhookconfigurations", "kvbudget")
    assert configuration is not None
    for webhook in configuration["webhooks"]:
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["clientConfig"]["caBundle"]
        assert [group for rule in webhook["rules"] for group in rule["apiGroups"]] == ["kvbudget.dev"]


def test_helm_test_passes(cluster: Cluster, chart: Installed) -> None:
    assert "Phase:          Succeeded" in cluster.helm("test", RELEASE, "-n", SYSTEM, "--timeout", "2m")
