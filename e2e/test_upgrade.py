"""A chart upgrade touches neither the objects of users, nor their pods, nor the certificate."""

import shutil
from pathlib import Path

import yaml

from harness.cluster import Cluster
from harness.dump import SYSTEM
from harness.install import CHART, PROBE_CLASS, RELEASE, install, upgrade, webhook_answer
from harness.tiny import NAME, Tiny, start_tiny
from loadgen import Job, run_to_end


def newer(folder: Path) -> Path:
    """The chart as a later version whose templates differ: every object gets another version label."""
    chart = folder / "kvbudget"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    about |= {"version": "0.1.1", "appVersion": "0.1.1"}
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about))
    return chart


def identity(cluster: Cluster, namespace: str) -> dict[str, object]:
    """What an upgrade must leave alone."""
    configuration = cluster.get("validatingwebhookconfigurations", RELEASE) or {}
    secret = cluster.get("secrets", f"{RELEASE}-webhook-cert", SYSTEM) or {}
    service = cluster.get("llmservices", NAME, namespace) or {}
    return {
        "caBundle": [webhook["clientConfig"]["caBundle"] for webhook in configuration["webhooks"]],
        "certificate": secret["data"],
        "service": (service["metadata"]["uid"], service["metadata"]["generation"], service["spec"]),
        "classes": sorted(found["metadata"]["uid"] for found in cluster.find("gpuclasses")),
        "pods": sorted(pod["metadata"]["uid"] for pod in cluster.pods_of(NAME, namespace)),
    }


def test_an_upgrade_keeps_services_pods_and_the_certificate(
    cluster: Cluster, namespace: str, tiny: Tiny, tmp_path: Path
) -> None:
    url = start_tiny(cluster, namespace, tiny, replicas=1)
    before = identity(cluster, namespace)
    upgrade(cluster, newer(tmp_path))
    assert PROBE_CLASS in webhook_answer(cluster)
    assert identity(cluster, namespace) == before
    deployment = cluster.get("deployments", "kvbudget-admission", SYSTEM) or {}
    assert deployment["metadata"]["labels"]["app.kubernetes.io/version"] == "0.1.1"
    assert run_to_end(url, NAME, [Job(16, 16)], concurrency=1).complete == 1


def test_services_and_their_pods_outlive_an_uninstall_and_are_taken_up_again(
    cluster: Cluster, namespace: str, tiny: Tiny
) -> None:
    start_tiny(cluster, namespace, tiny, replicas=1)
    before = identity(cluster, namespace)
    install(cluster)
    cluster.wait_condition(NAME, namespace, "Ready", "True", 60)
    after = identity(cluster, namespace)
    kept = ("service", "classes", "pods")
    assert {part: after[part] for part in kept} == {part: before[part] for part in kept}
