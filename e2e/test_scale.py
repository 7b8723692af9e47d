"""Scaling by KV: load on the budget adds a replica, idleness takes it away, and nothing admitted is lost on the way."""

from collections.abc import Iterator

from harness.cluster import Cluster
from harness.tiny import NAME, Tiny, start_tiny
from harness.tokens import check_never_over, pools, wait_all_free
from harness.waiting import eventually
from loadgen import Job, load, mixed_jobs

SCALING = {"minReplicas": 1, "maxReplicas": 2, "targetPercent": 60, "scaleDownDelaySeconds": 10, "driver": "Operator"}


def test_load_scales_up_and_idleness_down_and_nothing_admitted_is_lost(
    cluster: Cluster, namespace: str, tiny: Tiny
) -> None:
    url = start_tiny(cluster, namespace, tiny, scaling=SCALING)
    assert replicas(cluster, namespace) == 1

    with load(url, NAME, mixed_jobs(), concurrency=60) as heavy:
        eventually(lambda: replicas(cluster, namespace) == 2, 120, "a second replica to be wanted")
        eventually(lambda: ready(cluster, namespace) == 2, 180, "a second replica to be ready")
        second_ready = len(heavy.done)
        eventually(lambda: len(heavy.done) > second_ready + 10, 120, "both replicas to work")
        check_never_over(pools(cluster, NAME, namespace))
    report = heavy.report()
    print(*report.lines(), sep="\n")
    assert not report.lost
    assert not report.errors

    # A trickle goes on while a replica is drained: some of it runs on the one that leaves.
    with load(url, NAME, trickle(), concurrency=4) as light:
        eventually(lambda: replicas(cluster, namespace) == 1, 120, "one replica to be wanted")
        eventually(lambda: len(cluster.pods_of(NAME, namespace)) == 1, 180, "the drained pod to end")
    report = light.report()
    print(*report.lines(), sep="\n")
    assert not report.lost
    assert not report.errors

    wait_all_free(cluster, NAME, namespace)
    status = (cluster.get("llmservices", NAME, namespace) or {})["status"]
    assert [decision["desired"] for decision in status["decisions"]] == [1, 2], "newest first"


def trickle() -> Iterator[Job]:
    """Few tokens at a time, each request seconds long."""
    return (Job(16, 400, seed) for seed in range(1_000_000, 2_000_000))


def replicas(cluster: Cluster, namespace: str) -> int:
    return int((cluster.get("llmservices", NAME, namespace) or {})["spec"].get("replicas", 0))


def ready(cluster: Cluster, namespace: str) -> int:
    return int((cluster.get("llmservices", NAME, namespace) or {})["status"].get("readyReplicas", 0))
