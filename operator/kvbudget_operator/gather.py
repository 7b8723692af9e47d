"""What is known about one LLMService at this moment, taken from the watch's indexes. No request is made here.

An index may lag behind the API server; every decision made from a Snapshot must be harmless when repeated.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kvbudget.api import LLMServiceStatus
from kvbudget.contract import LABEL_PLAN, LABEL_SERVICE, WORKER_CONTAINER, WORKER_PORT
from kvbudget_operator.objects import Object

Key = tuple[str, str]
"""Namespace and name of an LLMService: what the work queue holds."""
Index = Mapping[Any, Iterable[Object]]
_O = TypeVar("_O", bound=Mapping[str, Any])


@dataclass(frozen=True, slots=True)
class Indexes:
    """Live views of what is watched, by Key; but ``gpu_classes`` by name, and ``users`` maps a class's name to the Keys
    of the services that name it."""

    services: Index
    gpu_classes: Index
    users: Mapping[str, Iterable[Key]]
    deployments: Index
    replica_sets: Index
    config_maps: Index
    others: Index
    pods: Index


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One service and everything of its, found along controller references: an object that only bears our label is in
    none of it. ``others``: its Services, ServiceAccounts and PodDisruptionBudgets."""

    service: Object
    gpu_class: Object | None
    deployment: Object | None
    replica_sets: tuple[Object, ...] = ()
    config_maps: tuple[Object, ...] = ()
    others: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()

    @property
    def children(self) -> tuple[Object, ...]:
        """Everything that the service's controller reference may be on."""
        deployment = () if self.deployment is None else (self.deployment,)
        return (*deployment, *self.config_maps, *self.others)

    def is_worker(self, pod: Mapping[str, Any]) -> bool:
        """Whether a pod, also one that is gone, is or was one of the service's workers."""
        return bool(_controlled_by([pod], *map(_uid, self.replica_sets)))

    @property
    def plans_in_use(self) -> frozenset[str]:
        """Hashes of the Plans that a Deployment, ReplicaSet or pod still names."""
        templates = [_template_labels(obj) for obj in (self.deployment, *self.replica_sets) if obj is not None]
        pods = [pod["metadata"].get("labels") or {} for pod in self.pods]
        return frozenset(labels[LABEL_PLAN] for labels in (*templates, *pods) if LABEL_PLAN in labels)

    @property
    def plan_hash(self) -> str | None:
        """Hash of the last accepted Plan: the one that the live Deployment's template names."""
        return None if self.deployment is None else _template_labels(self.deployment).get(LABEL_PLAN)

    @property
    def status(self) -> LLMServiceStatus:
        """The status as last seen; empty where it is missing or of a shape that we do not read."""
        try:
            return LLMServiceStatus.model_validate(self.service.get("status") or {})
        except ValueError:
            return LLMServiceStatus()


def gather(indexes: Indexes, key: Key) -> Snapshot | None:
    """The Snapshot of ``key``; None where the service is gone."""
    service = _first(indexes.services, key)
    if service is None:
        return None
    name = class_name(service)
    uid = service["metadata"]["uid"]
    deployments = _controlled_by(indexes.deployments.get(key, ()), uid)
    replica_sets = _controlled_by(indexes.replica_sets.get(key, ()), *map(_uid, deployments))
    return Snapshot(
        service=service,
        gpu_class=None if name is None else _first(indexes.gpu_classes, name),
        deployment=next(iter(deployments), None),
        replica_sets=replica_sets,
        config_maps=_controlled_by(indexes.config_maps.get(key, ()), uid),
        others=_controlled_by(indexes.others.get(key, ()), uid),
        pods=_controlled_by(indexes.pods.get(key, ()), *map(_uid, replica_sets)),
    )


def workers(indexes: Indexes) -> list[Object]:
    """The worker pods of all services."""
    snapshots = (gather(indexes, key) for key in list(indexes.services))
    return [pod for snapshot in snapshots if snapshot is not None for pod in snapshot.pods]


def service_key(metadata: Mapping[str, Any]) -> Key:
    """Key of an LLMService from its own metadata."""
    return metadata["namespace"], metadata["name"]


def child_key(metadata: Mapping[str, Any]) -> Key:
    """Key of the LLMService that a child, ReplicaSet or pod belongs to, by its label (which the watch selects on)."""
    return metadata["namespace"], metadata["labels"][LABEL_SERVICE]


def class_name(service: Mapping[str, Any]) -> str | None:
    """``spec.gpu.class``; None where a malformed object has none."""
    spec = service.get("spec")
    gpu = spec.get("gpu") if isinstance(spec, Mapping) else None
    name = gpu.get("class") if isinstance(gpu, Mapping) else None
    return name if isinstance(name, str) else None


def controller_uid(obj: Mapping[str, Any]) -> str | None:
    """Uid of the object's controller."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return None


def slim(body: Mapping[str, Any]) -> Object:
    """An object as the indexes keep it: without managedFields, which are most of its bytes."""
    obj = dict(body)
    obj["metadata"] = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return obj


def slim_pod(body: Mapping[str, Any]) -> Object:
    """A pod as the indexes keep it: metadata and status, and the port that metrics are served at."""
    obj = slim(body)
    containers = (obj.pop("spec", None) or {}).get("containers") or ()
    ports = [port for each in containers if each["name"] == WORKER_CONTAINER for port in each.get("ports") or ()]
    obj["port"] = next((port["containerPort"] for port in ports if port.get("name") == "http"), WORKER_PORT)
    return obj


def _controlled_by(objects: Iterable[_O], *uids: str) -> tuple[_O, ...]:
    return tuple(obj for obj in objects if controller_uid(obj) in uids)


def _uid(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["uid"])


def _first(index: Index, key: object) -> Object | None:
    return next(iter(index.get(key, ())), None)


def _template_labels(workload: Mapping[str, Any]) -> Mapping[str, str]:
    return workload["spec"]["template"]["metadata"].get("labels") or {}
