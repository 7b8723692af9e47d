"""A real API server takes everything that the chart renders."""

import pytest

from support.controlplane import ControlPlane
from support.helmchart import Chart, Object, pod_specs

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}

pytestmark = pytest.mark.apiserver


def path_of(plane: ControlPlane, found: Object) -> str:
    """URL of one object, by discovery."""
    version = found["apiVersion"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    resources = plane.api.get(base)["resources"]
    (resource,) = (r for r in resources if r["kind"] == found["kind"] and "/" not in r["name"])
    place = f"/namespaces/{found['metadata']['namespace']}" if resource["namespaced"] else ""
    return f"{base}{place}/{resource['name']}/{found['metadata']['name']}"


@pytest.mark.parametrize("values", [{}, {"networkPolicy": {"enabled": True}, "imagePullSecrets": [{"name": "pull"}]}])
def test_every_object_passes_a_strict_server_side_dry_run_without_warnings(
    chart: Chart, apiserver: ControlPlane, namespace: str, values: Object
) -> None:
    apiserver.api.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": RESTRICTED}})
    for found in chart.render(values):
        if "namespace" in found["metadata"]:
            found["metadata"]["namespace"] = namespace
        apiserver.api.apply(path_of(apiserver, found), found, dryRun="All")
        assert apiserver.api.warnings == [], found["metadata"]["name"]


def test_every_pod_is_admitted_where_pod_security_restricted_is_enforced(
    rendered: list[Object], apiserver: ControlPlane, namespace: str
) -> None:
    api = apiserver.api
    api.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": RESTRICTED}})
    specs = pod_specs(rendered)
    assert {name.split("/")[0] for name in specs} == {"Deployment", "Job", "Pod"}
    for spec in specs.values():
        account = {"metadata": {"name": spec["serviceAccountName"]}}
        api.apply(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{spec['serviceAccountName']}",
            {"apiVersion": "v1", "kind": "ServiceAccount", **account},
        )
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "pod-"}, "spec": spec}
        api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
