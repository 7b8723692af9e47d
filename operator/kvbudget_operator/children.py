"""The objects that one accepted LLMService owns, as server-side apply wants them. Pure: same input, same objects.

Deployment, ConfigMap (the Plan), Service, ServiceAccount, and a PodDisruptionBudget only above one replica. The pods
meet Pod Security "restricted", except with a hostPath source, which needs a privileged namespace.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from kvbudget.api import GPUClass, LLMService, PodTemplate
from kvbudget.contract import (
    API_VERSION,
    ENV_PLAN,
    ENV_TERMINATION_LOG,
    GRACE_SECONDS,
    LABEL_ENGINE,
    LABEL_PLAN,
    MODEL_DIR,
    PLAN_DIR,
    PLAN_FILE,
    PRE_STOP_SECONDS,
    WORKER_CONTAINER,
    WORKER_PORT,
)
from kvbudget.plan import Plan
from kvbudget.resources import has_device, host_memory_bytes, own_resources
from kvbudget_operator import names
from kvbudget_operator.objects import Object
from kvbudget_operator.settings import WorkerImage

START_SECONDS = 1800
"""A pod that is not ready after this is restarted: loading weights takes minutes, not half an hour."""
USER_ID = 65532
_TERMINATION_LOG = "/dev/termination-log"
VOLUME_PLAN = "kvbudget-plan"
_VOLUME_WEIGHTS = "kvbudget-weights"
_VOLUME_TMP = "kvbudget-tmp"
_VOLUME_SHM = "kvbudget-shm"
_TMP_SIZE = "2Gi"
"""HOME and compiled kernels; a pod that writes more is evicted instead of filling the node's disk."""
_SHM_SIZE = "1Gi"
"""Counts as the container's memory, so without a limit it would be half of the node's."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The LLMService, as owner references name it."""

    name: str
    namespace: str
    uid: str

    @classmethod
    def of(cls, service: Mapping[str, Any]) -> "Owner":
        """From a watched object."""
        metadata = service["metadata"]
        return cls(metadata["name"], metadata["namespace"], metadata["uid"])


def stable_children(owner: Owner, replicas: int) -> list[Object]:
    """Children that no plan changes: ServiceAccount, Service, and above one replica a PodDisruptionBudget."""
    children = [_service_account(owner), _service(owner)]
    return children + ([_disruption_budget(owner)] if replicas > 1 else [])


def plan_config_map(owner: Owner, plan: Plan) -> Object:
    """The Plan; immutable, since its name holds its hash."""
    body = {"immutable": True, "data": {PLAN_FILE: plan.to_json()}}
    config_map = _child(owner, "v1", "ConfigMap", names.config_map(owner.name, plan.hash()), body)
    config_map["metadata"]["labels"][LABEL_PLAN] = plan.hash()
    return config_map


def config_map_name(workload: Mapping[str, Any]) -> str | None:
    """Name of the ConfigMap that a Deployment's pods read their Plan from; None where it is not one of ours."""
    for volume in workload["spec"]["template"]["spec"].get("volumes") or ():
        if volume["name"] == VOLUME_PLAN:
            return str(volume["configMap"]["name"])
    return None


def deployment(service: LLMService, gpu_class: GPUClass, plan: Plan, replicas: int, worker: WorkerImage) -> Object:
    """The workers. maxSurge is 0: there may be no free GPU to surge for.

    What ``spec.podTemplate`` gives is added; where both set a value, ours wins (and the checks have told so), except
    for the request of host memory, a CPU class's CPU request, the spread over nodes, and HOME and TRITON_CACHE_DIR,
    which are only defaults.
    """
    owner = Owner(service.metadata.name, service.metadata.namespace, service.metadata.uid)
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": START_SECONDS + 60,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "selector": {"matchLabels": names.selector(owner.name)},
        "template": _pod_template(service, gpu_class, plan, worker),
    }
    return _child(owner, "apps/v1", "Deployment", owner.name, {"spec": spec})


def _child(owner: Owner, api_version: str, kind: str, name: str, body: Mapping[str, Any]) -> Object:
    reference = {
        "apiVersion": API_VERSION,
        "kind": "LLMService",
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": dict(names.labels(owner.name)),
            "ownerReferences": [reference],
        },
        **body,
    }


def _service_account(owner: Owner) -> Object:
    name = names.service_account(owner.name)
    return _child(owner, "v1", "ServiceAccount", name, {"automountServiceAccountToken": False})


def _service(owner: Owner) -> Object:
    spec = {
        "type": "ClusterIP",
        "selector": names.selector(owner.name),
        "ports": [{"name": "http", "port": WORKER_PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    return _child(owner, "v1", "Service", owner.name, {"spec": spec})


def _disruption_budget(owner: Owner) -> Object:
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": names.selector(owner.name)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return _child(owner, "policy/v1", "PodDisruptionBudget", owner.name, {"spec": spec})


def _pod_template(service: LLMService, gpu_class: GPUClass, plan: Plan, worker: WorkerImage) -> Object:
    name = service.metadata.name
    extra = service.spec.pod_template or PodTemplate()
    secrets = [{"name": secret} for secret in worker.pull_secrets]
    optional: Object = {
        "nodeSelector": {**(extra.node_selector or {}), **(gpu_class.spec.node_selector or {})},
        "tolerations": [*_dump(gpu_class.spec.tolerations), *_dump(extra.tolerations)],
        "imagePullSecrets": [*secrets, *(each for each in _dump(extra.image_pull_secrets) if each not in secrets)],
        "affinity": extra.affinity,
        "priorityClassName": extra.priority_class_name,
        "runtimeClassName": extra.runtime_class_name,
    }
    spec: Object = {
        "serviceAccountName": names.service_account(name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRE_STOP_SECONDS + plan.drain_timeout_seconds + GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": _spread(name, extra),
        "containers": [_container(service, plan, extra, worker)],
        "volumes": [*_volumes(service, plan), *_dump(extra.volumes)],
        **{key: value for key, value in optional.items() if value},
    }
    ours = {**names.labels(name), LABEL_ENGINE: "vllm", LABEL_PLAN: plan.hash()}
    metadata: Object = {"labels": {**(extra.labels or {}), **ours}}
    return {"metadata": metadata | ({"annotations": extra.annotations} if extra.annotations else {}), "spec": spec}


def _spread(name: str, extra: PodTemplate) -> list[Object]:
    """The user's constraints, and over nodes unless they say that themselves: the API server takes one of each key."""
    ours: Object = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(name)},
    }
    given = list(extra.topology_spread_constraints or [])
    key = ("topologyKey", "whenUnsatisfiable")
    is_given = any(all(each.get(part) == ours[part] for part in key) for each in given)
    return given if is_given else [ours, *given]


def _container(service: LLMService, plan: Plan, extra: PodTemplate, worker: WorkerImage) -> Object:
    env: dict[str, Object] = {"HOME": {"name": "HOME", "value": "/tmp"}}
    if has_device(plan):
        env["TRITON_CACHE_DIR"] = {"name": "TRITON_CACHE_DIR", "value": "/tmp/triton"}
    env |= {entry["name"]: entry for entry in _dump(extra.env)}
    env[ENV_PLAN] = {"name": ENV_PLAN, "value": f"{PLAN_DIR}/{PLAN_FILE}"}
    env[ENV_TERMINATION_LOG] = {"name": ENV_TERMINATION_LOG, "value": _TERMINATION_LOG}
    return {
        "name": WORKER_CONTAINER,
        "image": worker.image,
        "imagePullPolicy": worker.pull_policy,
        "env": list(env.values()),
        "ports": [{"name": "http", "containerPort": WORKER_PORT, "protocol": "TCP"}],
        "resources": _resources(plan, extra),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": _TERMINATION_LOG,
        # A worker that cannot start says why there; one that was killed leaves only its log's last lines.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        "startupProbe": _probe("/ready", period=2, failures=START_SECONDS // 2),
        "readinessProbe": _probe("/ready", period=2, failures=2),
        "livenessProbe": _probe("/live", period=10, failures=6),
        "volumeMounts": [
            {"name": VOLUME_PLAN, "mountPath": PLAN_DIR, "readOnly": True},
            {"name": _VOLUME_WEIGHTS, "mountPath": _weights_mount(service, plan), "readOnly": True},
            {"name": _VOLUME_TMP, "mountPath": "/tmp"},
            *([{"name": _VOLUME_SHM, "mountPath": "/dev/shm"}] if has_device(plan) else []),
            *_dump(extra.volume_mounts),
        ],
    }


def _weights_mount(service: LLMService, plan: Plan) -> str:
    """A claim is mounted as a whole, and the Plan's path leads into it; a node's folder is mounted where it leads."""
    return MODEL_DIR if service.spec.model.source.pvc else plan.model.weights_path


def _probe(path: str, *, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _resources(plan: Plan, extra: PodTemplate) -> Object:
    """A device class: the device, and host memory as a request. A CPU class: CPUs as a request, and the class's memory
    plus the process as the limit. Requests are defaults: a limit alone is a request too, as everywhere."""
    requests: Object = dict((extra.resources and extra.resources.requests) or {})
    limits: Object = dict((extra.resources and extra.resources.limits) or {})
    if has_device(plan):
        requests.setdefault("memory", limits.get("memory", str(host_memory_bytes(plan))))
    else:
        requests.setdefault("cpu", limits.get("cpu", str(plan.gpu.count)))
    own = dict(own_resources(plan))
    return {"requests": requests | own, "limits": limits | own}


def _volumes(service: LLMService, plan: Plan) -> list[Object]:
    source = service.spec.model.source
    if source.pvc:
        weights: Object = {"persistentVolumeClaim": {"claimName": source.pvc.claim_name, "readOnly": True}}
    elif source.host_path:
        weights = {"hostPath": {"path": source.host_path.path}}
    else:
        raise ValueError("an accepted service has a pvc or a hostPath source")
    volumes: list[Object] = [
        {"name": VOLUME_PLAN, "configMap": {"name": names.config_map(service.metadata.name, plan.hash())}},
        {"name": _VOLUME_WEIGHTS, **weights},
        {"name": _VOLUME_TMP, "emptyDir": {"sizeLimit": _TMP_SIZE}},
    ]
    return volumes + (
        [{"name": _VOLUME_SHM, "emptyDir": {"medium": "Memory", "sizeLimit": _SHM_SIZE}}] if has_device(plan) else []
    )


def _dump(models: Iterable[BaseModel] | None) -> list[Object]:
    return [model.model_dump(by_alias=True, exclude_none=True) for model in models or ()]
