"""A newer CRD over a live one. A group of its own, so that the session's CRDs stay as they are."""

import copy
from typing import Any

import pytest

from kvbudget import crd
from support.controlplane import ControlPlane
from support.kubeapi import CRDS, ApiError, KubeAPI, apply_crds, eventually
from support.objects import Object, service

pytestmark = pytest.mark.apiserver
GROUP = "upgrade.test"
_NAME = f"llmservices.{GROUP}"


def _crd() -> dict[str, Any]:
    made = copy.deepcopy(next(one for one in crd.crds() if one["spec"]["names"]["kind"] == "LLMService"))
    made["metadata"]["name"] = _NAME
    made["spec"]["group"] = GROUP
    made["spec"]["names"].pop("shortNames")
    return made


def _kv_cache(made: dict[str, Any]) -> dict[str, Any]:
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields: dict[str, Any] = schema["properties"]["spec"]["properties"]["kvCache"]["properties"]
    return fields


def _object(**changes: Any) -> Object:
    return {**service(**changes), "apiVersion": f"{GROUP}/v1alpha1"}


def _collection(namespace: str) -> str:
    return f"/apis/{GROUP}/v1alpha1/namespaces/{namespace}/llmservices"


def _upgrade(api: KubeAPI, new: dict[str, Any], path: str, probe: Object) -> None:
    """Applies ``new`` and waits until the server validates by it (a dry-run create of ``probe`` passes)."""
    apply_crds(api, [new])

    def served() -> bool:
        try:
            api.create(path, probe, dryRun="All")
        except ApiError:
            return False
        return True

    eventually(served, 30)


@pytest.fixture
def old(apiserver: ControlPlane, namespace: str) -> None:
    """The CRD of a release that had no prefixCache and took more than all memory, served."""
    made = _crd()
    del _kv_cache(made)["prefixCache"]
    _kv_cache(made)["memoryPercent"]["maximum"] = 200
    _upgrade(apiserver.api, made, _collection(namespace), _object(spec__kvCache__memoryPercent=150))


@pytest.mark.usefixtures("old")
def test_objects_survive_an_upgrade_and_take_its_defaults(apiserver: ControlPlane, namespace: str) -> None:
    api, path = apiserver.api, _collection(namespace)
    before = api.create(path, _object(spec__kvCache__memoryPercent=80))
    assert "prefixCache" not in before["spec"]["kvCache"]
    _upgrade(api, _crd(), path, _object(name="probe", spec__kvCache={"prefixCache": {"mode": "Off"}}))
    after = api.get(f"{path}/chat")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["kvCache"] == {**before["spec"]["kvCache"], "prefixCache": {"mode": "Shared"}}


@pytest.mark.usefixtures("old")
def test_a_value_that_became_invalid_may_stay_but_not_be_written_anew(apiserver: ControlPlane, namespace: str) -> None:
    api, path = apiserver.api, _collection(namespace)
    api.create(path, _object(spec__kvCache__memoryPercent=150))
    _upgrade(api, _crd(), path, _object(name="probe", spec__kvCache={"prefixCache": {"mode": "Off"}}))
    kept = api.merge(f"{path}/chat", {"spec": {"maxModelLen": 4096}})
    assert kept["spec"]["kvCache"]["memoryPercent"] == 150
    with pytest.raises(ApiError, match="memoryPercent"):
        api.merge(f"{path}/chat", {"spec": {"kvCache": {"memoryPercent": 160}}})


def test_applying_the_crds_again_changes_nothing(apiserver: ControlPlane) -> None:
    api = apiserver.api
    before = {one["metadata"]["name"]: api.get(f"{CRDS}/{one['metadata']['name']}") for one in crd.crds()}
    apply_crds(api, crd.crds())
    for name, then in before.items():
        now = api.get(f"{CRDS}/{name}")
        assert (now["metadata"]["generation"], now["spec"]) == (then["metadata"]["generation"], then["spec"])


def test_the_server_finds_nothing_wrong_with_the_schemas(apiserver: ControlPlane) -> None:
    for one in crd.crds():
        found = apiserver.api.get(f"{CRDS}/{one['metadata']['name']}")["status"]["conditions"]
        assert {c["type"]: c["status"] for c in found} == {"NamesAccepted": "True", "Established": "True"}
