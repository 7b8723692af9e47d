"""Objects that the tests apply, as plain dictionaries."""

from typing import Any

from harness.cluster import GPU_NODE_LABEL, NODE_WEIGHTS, Object
from kvbudget.contract import API_VERSION

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
CLAIM = "weights"
TINY_CLASS = "e2e-tiny"


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}


def volume_name(namespace_name: str) -> str:
    return f"weights-{namespace_name}"


def weights_volume(namespace_name: str) -> tuple[Object, Object]:
    """A PersistentVolume over the weights on the GPU node and the claim ``CLAIM`` bound to it: restricted namespaces
    may not use hostPath volumes, and nothing makes volumes here."""
    name = volume_name(namespace_name)
    size = {"storage": "1Gi"}
    on_gpu_node = {"matchExpressions": [{"key": GPU_NODE_LABEL, "operator": "In", "values": ["true"]}]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": size,
            "accessModes": ["ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": namespace_name, "name": CLAIM},
            "hostPath": {"path": NODE_WEIGHTS, "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [on_gpu_node]}},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": namespace_name},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": name,
            "resources": {"requests": size},
        },
    }
    return volume, claim


def gpu_class(name: str, memory: str, **spec: Any) -> Object:
    """A class of plain CPU memory on the node that has the weights and the worker's image."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUClass",
        "metadata": {"name": name},
        "spec": {
            "memory": memory,
            "resourceName": "cpu",
            "nodeSelector": {GPU_NODE_LABEL: "true"},
            **spec,
        },
    }


def service(name: str, namespace_name: str, **spec: Any) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "LLMService",
        "metadata": {"name": name, "namespace": namespace_name},
        "spec": spec,
    }
