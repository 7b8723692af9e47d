"""Manifests that the tests of the budget start from. Session-scoped factories, so that hypothesis may use them."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kvbudget.api import GPUClass, LLMService, parse_gpu_class, parse_service
from kvbudget.checks import Verdict, evaluate

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"

Changes = Mapping[str, Any]
MakeService = Callable[..., LLMService]
MakeClass = Callable[..., GPUClass]


def with_changes(manifest: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """The manifest with values set at dotted paths (``spec.kvCache.precision``); None removes a field."""
    made = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = made
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return made


SERVICE: dict[str, Any] = {
    "apiVersion": "kvbudget.dev/v1alpha1",
    "kind": "LLMService",
    "metadata": {"name": "chat", "namespace": "demo"},
    "spec": {
        "model": {"name": LLAMA, "source": {"pvc": {"claimName": "weights", "path": "/llama"}}},
        "gpu": {"class": "l4-24gb"},
    },
}
GPU_CLASS: dict[str, Any] = {
    "apiVersion": "kvbudget.dev/v1alpha1",
    "kind": "GPUClass",
    "metadata": {"name": "l4-24gb"},
    "spec": {
        "memory": "22478Mi",
        "resourceName": "nvidia.com/gpu",
        "weightPrecisions": ["BF16", "FP16", "FP32", "FP8", "INT8", "INT4"],
        "kvPrecisions": ["BF16", "FP16", "FP8E4M3", "INT8", "INT4"],
    },
}


@pytest.fixture(scope="session")
def make_service() -> MakeService:
    """Llama-3.1-8B on an L4 with all defaults; keyword ``changes`` sets dotted paths."""
    return lambda changes=None: parse_service(with_changes(SERVICE, changes or {}))


@pytest.fixture(scope="session")
def make_class() -> MakeClass:
    """An L4 that offers every precision."""
    return lambda changes=None: parse_gpu_class(with_changes(GPU_CLASS, changes or {}))


@pytest.fixture(scope="session")
def changed() -> Callable[[dict[str, Any], Changes], dict[str, Any]]:
    return with_changes


@pytest.fixture(scope="session")
def service_manifest() -> dict[str, Any]:
    return copy.deepcopy(SERVICE)


@pytest.fixture(scope="session")
def class_manifest() -> dict[str, Any]:
    return copy.deepcopy(GPU_CLASS)


@pytest.fixture
def verdict(make_service: MakeService, make_class: MakeClass) -> Callable[..., Verdict]:
    """Verdict on a service changed at dotted paths; ``class:`` paths change the class."""

    def evaluated(changes: dict[str, Any] | None = None, **keywords: Any) -> Verdict:
        changes = changes or {}
        service = make_service({p: v for p, v in changes.items() if not p.startswith("class:")})
        gpu_class = make_class({p.removeprefix("class:"): v for p, v in changes.items() if p.startswith("class:")})
        return evaluate(service, gpu_class, **keywords)

    return evaluated
