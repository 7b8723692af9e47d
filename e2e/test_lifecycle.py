"""Whatever goes away while a service runs: the service itself, the operator, a worker, the class, the plan."""

from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from harness.cluster import Cluster
from harness.dump import SYSTEM
from harness.serving import wait_answers
from harness.tiny import MAX_MODEL_LEN, NAME, READY_S, Tiny, start_tiny
from harness.tokens import pools, wait_all_free
from harness.waiting import eventually
from kvbudget.contract import LABEL_SERVICE
from loadgen import Job, load, run_to_end

CHILDREN = ("deployments", "replicasets", "pods", "services", "configmaps", "serviceaccounts", "poddisruptionbudgets")
OURS = f"{LABEL_SERVICE}={NAME}"


def children(cluster: Cluster, namespace: str) -> set[str]:
    """Everything that bears the service's label."""
    return {
        f"{resource}/{found['metadata']['name']}"
        for resource in CHILDREN
        for found in cluster.find(resource, namespace, OURS)
    }


def pod_uids(cluster: Cluster, namespace: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in cluster.pods_of(NAME, namespace)}


def trickle() -> Iterator[Job]:
    return (Job(16, 200, seed) for seed in range(100_000))


def test_delete_leaves_nothing_behind(cluster: Cluster, namespace: str, tiny: Tiny) -> None:
    start_tiny(cluster, namespace, tiny, replicas=2)
    eventually(lambda: len(children(cluster, namespace)) >= len(CHILDREN), 60, "a child of every kind")
    cluster.delete("llmservice", NAME, namespace)

    def gone() -> bool:
        assert children(cluster, namespace) == set()
        return True

    eventually(gone, 120, "the children to go")


def test_the_operator_killed_at_any_moment_changes_nothing_in_the_end(
    cluster: Cluster, namespace: str, tiny: Tiny
) -> None:
    cluster.apply(tiny.service(NAME, namespace, replicas=2))
    for made in ("serviceaccounts", "configmaps", "deployments"):
        eventually(partial(cluster.find, made, namespace, OURS), 120, f"{made} to be made")
        cluster.kubectl(
            "delete", "pod", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator", "--grace-period=0", "--force"
        )
    cluster.wait_condition(NAME, namespace, "Ready", "True", READY_S)
    eventually(lambda: len(cluster.pods_of(NAME, namespace)) == 2, 120, "two pods")
    counts = {resource: len(cluster.find(resource, namespace, OURS)) for resource in CHILDREN}
    assert counts == dict.fromkeys(CHILDREN, 1) | {"pods": 2}


def test_a_worker_killed_in_mid_stream_is_an_error_to_its_client_and_every_page_comes_back(
    cluster: Cluster, namespace: str, tiny: Tiny
) -> None:
    url = start_tiny(cluster, namespace, tiny, replicas=2)
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.pods_of(NAME, namespace)}
    killed: list[str] = []
    job = Job(prompt_tokens=48, output_tokens=MAX_MODEL_LEN - 48)
    body = {"model": NAME, "prompt": job.prompt(), "max_tokens": job.output_tokens, "stream": True, "ignore_eos": True}

    def read_until_killed() -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30, trust_env=False) as answer:
            lines = answer.iter_lines()
            next(lines)
            killed.extend(pool.pod for pool in pools(cluster, NAME, namespace) if pool.reserved)
            assert len(killed) == 1, "one stream holds tokens of one worker"
            cluster.kubectl("delete", "pod", killed[0], "-n", namespace, "--grace-period=0", "--force")
            for line in lines:
                assert line != "data: [DONE]", "the stream ended as if it were whole"

    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        read_until_killed()
    report = run_to_end(url, NAME, [Job(16, 16, seed) for seed in range(8)], concurrency=4)
    assert report.complete == 8, "the other worker serves on"

    def replaced() -> bool:
        assert uids[killed[0]] not in pod_uids(cluster, namespace)
        return True

    eventually(replaced, 60, "another pod")
    cluster.wait_condition(NAME, namespace, "Ready", "True", READY_S)
    wait_answers(url)
    wait_all_free(cluster, NAME, namespace)


def test_a_class_deleted_under_a_running_service_tears_nothing_down(
    cluster: Cluster, namespace: str, tiny: Tiny
) -> None:
    own_class = tiny.gpu_class(f"class-{namespace}")
    cluster.apply(own_class)
    url = start_tiny(cluster, namespace, tiny, replicas=1, gpu={"class": own_class["metadata"]["name"]})
    before = pod_uids(cluster, namespace)

    cluster.delete("gpuclass", own_class["metadata"]["name"])
    refused = cluster.wait_condition(NAME, namespace, "Accepted", "False", 120)
    assert own_class["metadata"]["name"] in refused["message"]
    assert run_to_end(url, NAME, [Job(16, 16)], concurrency=1).complete == 1
    assert pod_uids(cluster, namespace) == before

    cluster.apply(own_class)
    cluster.wait_condition(NAME, namespace, "Accepted", "True", 120)
    assert pod_uids(cluster, namespace) == before
    cluster.delete("gpuclass", own_class["metadata"]["name"], wait=False)


def test_another_max_model_len_under_load_replaces_the_pods_and_loses_nothing(
    cluster: Cluster, namespace: str, tiny: Tiny
) -> None:
    url = start_tiny(cluster, namespace, tiny, replicas=2)
    before = pod_uids(cluster, namespace)
    with load(url, NAME, trickle(), concurrency=8) as running:
        eventually(lambda: len(running.done) > 8, 120, "the load to run")
        cluster.patch("llmservice", NAME, namespace, {"spec": {"maxModelLen": MAX_MODEL_LEN // 2}})

        def replaced() -> bool:
            now = cluster.pods_of(NAME, namespace)
            assert not before & {pod["metadata"]["uid"] for pod in now}
            assert len(now) == 2
            return True

        eventually(replaced, 360, "both pods to be replaced")
        cluster.wait_condition(NAME, namespace, "Ready", "True", READY_S)
    report = running.report()
    print(*report.lines(), sep="\n")
    assert not report.lost
    assert not report.errors
    models = httpx.get(f"{url}/v1/models", timeout=10, trust_env=False).json()
    assert models["data"][0]["max_model_len"] == MAX_MODEL_LEN // 2
