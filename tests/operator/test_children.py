"""Children, as pure values."""

from typing import Any

import pytest

from kvbudget.api.pod import OWN_ENV, OWN_LABELS
from kvbudget.gpu import CPU_PROCESS_BYTES
from kvbudget_operator import children, names
from support.accepted import UID, WORKER, accepted, small_class
from support.objects import Object

CPU = {"spec__resourceName": "cpu", "spec__memory": "2Gi"}
EVERYTHING: dict[str, Any] = {
    "labels": {"team": "a"},
    "annotations": {"note": "x"},
    "nodeSelector": {"zone": "b"},
    "tolerations": [{"key": "mine", "operator": "Exists"}],
    "priorityClassName": "high",
    "imagePullSecrets": [{"name": "pull"}],
    "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "3Gi"}},
    "env": [{"name": "KVBUDGET_DEVICE", "value": "cpu"}, {"name": "HOME", "value": "/data"}],
    "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}


def deploy(of_class: Object | None = None, **changes: Any) -> Object:
    service, klass, plan = accepted(of_class, **changes)
    return children.deployment(service, klass, plan, 2, WORKER)


def pod(deployment: Object) -> Object:
    found: Object = deployment["spec"]["template"]["spec"]
    return found


def worker(deployment: Object) -> Object:
    (found,) = pod(deployment)["containers"]
    result: Object = found
    return result


@pytest.mark.parametrize("of_class", [small_class(), small_class(**CPU)], ids=["device", "cpu"])
@pytest.mark.parametrize("template", [None, EVERYTHING], ids=["plain", "everything"])
def test_pods_meet_pod_security_restricted(of_class: Object, template: Object | None) -> None:
    spec = pod(deploy(of_class, **({"spec__podTemplate": template} if template else {})))
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in spec["volumes"]:
        assert set(volume) - {"name"} <= allowed
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert all("hostPort" not in port for port in container["ports"])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


def test_every_mount_has_its_volume_and_all_that_is_ours_is_writable_only_in_tmp_and_shm() -> None:
    spec = pod(deploy(spec__podTemplate=EVERYTHING))
    volumes = {volume["name"] for volume in spec["volumes"]}
    (container,) = spec["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/tmp", "/dev/shm", "/data"}


def test_a_rollout_needs_no_spare_gpu_and_drains_in_full() -> None:
    deployment = deploy(spec__drain={"timeoutSeconds": 120})
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert pod(deployment)["terminationGracePeriodSeconds"] == 5 + 120 + 5
    assert worker(deployment)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    probes = {name: worker(deployment)[name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe")}
    assert probes == {"readinessProbe": "/ready", "livenessProbe": "/live"}


@pytest.mark.parametrize(
    ("given", "skews"),
    [
        ({"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}, [3]),
        ({"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}, [1, 3]),
        ({"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}, [1, 3]),
    ],
)
def test_a_spread_over_nodes_of_the_users_own_takes_the_place_of_ours(given: Object, skews: list[int]) -> None:
    """Twice the same key and server-side apply refuses the Deployment."""
    spec = pod(deploy(spec__podTemplate={"topologySpreadConstraints": [{"maxSkew": 3, **given}]}))
    assert [each["maxSkew"] for each in spec["topologySpreadConstraints"]] == skews


def test_a_device_class_asks_for_its_device_on_its_nodes() -> None:
    of_class = small_class(
        spec__nodeSelector={"gpu": "x", "zone": "of-the-class"},
        spec__tolerations=[{"key": "gpu", "operator": "Exists"}],
    )
    spec = pod(deploy(of_class, spec__podTemplate=EVERYTHING))
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"memory": "3Gi", "nvidia.com/gpu": "1"}
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}
    assert spec["nodeSelector"] == {"gpu": "x", "zone": "of-the-class"}, "the checks warn of it"
    assert [each["key"] for each in spec["tolerations"]] == ["gpu", "mine"]


@pytest.mark.parametrize(
    ("given", "requested"),
    [
        ({}, None),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}, None),
        ({"requests": {"memory": "3Gi"}}, "3Gi"),
        ({"limits": {"memory": "5Gi"}}, "5Gi"),
        ({"requests": {"memory": "3Gi"}, "limits": {"memory": "5Gi"}}, "3Gi"),
    ],
)
def test_a_device_class_asks_for_the_process_and_the_weights_in_host_memory_by_default(
    given: Object, requested: str | None
) -> None:
    """A pod that asks for no memory is the first that a node under pressure evicts, GPU and all."""
    _, _, plan = accepted()
    made = worker(deploy(spec__podTemplate={"resources": given}))["resources"]
    assert made["requests"]["memory"] == (requested or str(CPU_PROCESS_BYTES + plan.budget.weight_bytes))
    assert made["limits"].get("memory") == given.get("limits", {}).get("memory")


def test_no_scratch_volume_can_fill_the_node() -> None:
    scratch = [each["emptyDir"] for each in pod(deploy())["volumes"] if "emptyDir" in each]
    assert scratch == [{"sizeLimit": "2Gi"}, {"medium": "Memory", "sizeLimit": "1Gi"}]


def test_every_label_of_ours_is_one_that_the_schema_keeps_from_the_user() -> None:
    labels = deploy()["spec"]["template"]["metadata"]["labels"]
    assert {key for key in labels if not key.startswith("kvbudget.dev/")} == set(OWN_LABELS)
    own = {entry["name"] for entry in worker(deploy())["env"]} - {"HOME", "TRITON_CACHE_DIR"}
    assert own <= set(OWN_ENV)


def test_a_cpu_class_limits_memory_to_the_class_and_the_process() -> None:
    of_class = small_class(**CPU)
    plain, changed = deploy(of_class), deploy(of_class, spec__podTemplate=EVERYTHING)
    memory = str((2 << 30) + CPU_PROCESS_BYTES)
    assert worker(plain)["resources"] == {"limits": {"memory": memory}, "requests": {"memory": memory, "cpu": "1"}}
    assert worker(changed)["resources"]["requests"]["cpu"] == "2"
    assert worker(changed)["resources"]["limits"] == {"memory": memory}
    assert {volume["name"] for volume in pod(plain)["volumes"]} == {"kvbudget-plan", "kvbudget-weights", "kvbudget-tmp"}


def test_the_device_is_chosen_by_the_pod_template_only() -> None:
    def device(deployment: Object) -> list[str]:
        return [each["value"] for each in worker(deployment)["env"] if each["name"] == "KVBUDGET_DEVICE"]

    assert device(deploy()) == []
    assert device(deploy(spec__podTemplate=EVERYTHING)) == ["cpu"]


def test_weights_come_read_only_from_the_claim_or_the_node() -> None:
    claim = deploy(spec__model__source={"pvc": {"claimName": "w", "path": "/llama"}})
    volume = next(each for each in pod(claim)["volumes"] if each["name"] == "kvbudget-weights")
    mount = next(each for each in worker(claim)["volumeMounts"] if each["name"] == "kvbudget-weights")
    assert volume["persistentVolumeClaim"] == {"claimName": "w", "readOnly": True}
    assert mount == {"name": "kvbudget-weights", "mountPath": "/models", "readOnly": True}
    service, klass, plan = accepted(spec__model__source={"hostPath": {"path": "/srv/llama"}})
    node = children.deployment(service, klass, plan, 1, WORKER)
    volume = next(each for each in pod(node)["volumes"] if each["name"] == "kvbudget-weights")
    mount = next(each for each in worker(node)["volumeMounts"] if each["name"] == "kvbudget-weights")
    assert volume["hostPath"] == {"path": "/srv/llama"}
    assert (mount["mountPath"], mount["readOnly"]) == (plan.model.weights_path, True)


def test_selectors_never_change_and_a_changed_plan_changes_only_the_template() -> None:
    one, other = deploy(spec__maxModelLen=4096), deploy(spec__maxModelLen=2048, spec__podTemplate=EVERYTHING)
    selector = {"kvbudget.dev/llmservice": "chat", "app.kubernetes.io/component": "worker"}
    for deployment in (one, other):
        assert deployment["spec"]["selector"] == {"matchLabels": selector}
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
        assert labels["llm-d.ai/engine-type"] == "vllm"
    hashes = [each["spec"]["template"]["metadata"]["labels"]["kvbudget.dev/plan"] for each in (one, other)]
    assert hashes[0] != hashes[1]
    assert pod(one)["volumes"][0]["configMap"]["name"] == f"chat-plan-{hashes[0]}"


def test_replicas_do_not_change_the_plan_or_the_template() -> None:
    service, klass, plan = accepted()
    one, two = (children.deployment(service, klass, plan, count, WORKER) for count in (1, 2))
    assert one["spec"].pop("replicas") == 1
    assert two["spec"].pop("replicas") == 2
    assert one == two


@pytest.mark.parametrize(("replicas", "kinds"), [(0, 2), (1, 2), (2, 3)])
def test_a_disruption_budget_exists_only_above_one_replica(replicas: int, kinds: int) -> None:
    made = children.stable_children(children.Owner("chat", "demo", UID), replicas)
    assert len(made) == kinds
    assert all(each["metadata"]["ownerReferences"][0]["uid"] == UID for each in made)


def test_names_of_the_longest_service_are_valid() -> None:
    service = "a" * 63
    assert len(names.config_map(service, "0" * 10)) <= 253
    assert len(names.service_account(service)) <= 253
    assert all(len(value) <= 63 for value in names.labels(service).values())
