"""An operator process against the real API server, as a service account with exactly the rules of rbac.py."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvbudget_operator import rbac
from support.controlplane import ControlPlane
from support.kubeprocess import Process, service_account
from support.services import Cluster

WORKER_IMAGE = "registry.test/worker:1"


@pytest.fixture
def cluster(apiserver: ControlPlane, namespace: str) -> Cluster:
    """One namespace, and a GPUClass of the test's own."""
    return Cluster(apiserver.api, namespace, f"class-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def new_operator(apiserver: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Callable[[], Process]]:
    """Makes an operator that watches the test's namespace only; not started. All of them end with the test."""
    made: list[Process] = []
    kubeconfig = service_account(
        apiserver, tmp_path, namespace, cluster=rbac.OPERATOR_CLUSTER, namespaced={namespace: rbac.OPERATOR}
    )

    def make() -> Process:
        env = {"KVBUDGET_WORKER_IMAGE": WORKER_IMAGE, "KVBUDGET_SCRAPE_SECONDS": "0.5"}
        made.append(Process(["operator", "--namespace", namespace], kubeconfig, tmp_path, env))
        return made[-1]

    yield make
    for process in made:
        process.kill()


@pytest.fixture
def operator(new_operator: Callable[[], Process]) -> Process:
    """A running operator."""
    return new_operator().start().until_ready()
