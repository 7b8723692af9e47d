import pytest

from support.controlplane import ControlPlane

pytestmark = pytest.mark.apiserver


def test_the_crds_are_established(apiserver: ControlPlane) -> None:
    found = apiserver.api.get("/apis/kvbudget.dev/v1alpha1")
    assert {r["name"] for r in found["resources"]} == {
        "gpuclasses",
        "llmservices",
        "llmservices/status",
        "llmservices/scale",
    }
