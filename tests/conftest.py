"""Fixtures that more than one area uses."""

import uuid
from collections.abc import Iterator

import pytest

from kvbudget import crd
from support.controlplane import ControlPlane, control_plane
from support.kubeapi import apply_crds
from support.laws import load_profile

load_profile()


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real etcd and kube-apiserver with our CRDs, one for the session. Fails where the binaries are missing."""
    with control_plane(tmp_path_factory.mktemp("controlplane")) as plane:
        apply_crds(plane.api, crd.crds())
        yield plane


@pytest.fixture
def namespace(apiserver: ControlPlane) -> str:
    """Name of a new namespace. It is not removed: without controllers a namespace never finishes its deletion."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    apiserver.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return name
