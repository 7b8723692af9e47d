"""Small valid manifests, and a way to vary them."""

import copy
from typing import Any

Object = dict[str, Any]
REMOVE = object()
"""As a value of :func:`changed`: the key goes."""


def service(name: str = "chat", **changes: Any) -> Object:
    """The smallest LLMService that the schema takes, with ``changes`` by dotted path (``__`` stands for a dot)."""
    base: Object = {
        "apiVersion": "kvbudget.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": {"model": {"source": {"pvc": {"claimName": "weights"}}}, "gpu": {"class": "h100-80gb"}},
    }
    return changed(base, {path.replace("__", "."): value for path, value in changes.items()})


def gpu_class(name: str = "h100-80gb", **changes: Any) -> Object:
    """The smallest GPUClass that the schema takes."""
    base: Object = {
        "apiVersion": "kvbudget.dev/v1alpha1",
        "kind": "GPUClass",
        "metadata": {"name": name},
        "spec": {"memory": "85028077568"},
    }
    return changed(base, {path.replace("__", "."): value for path, value in changes.items()})


def changed(base: Object, changes: dict[str, Any]) -> Object:
    """A copy of ``base`` in which each dotted path has its value; missing objects on the way are made."""
    made = copy.deepcopy(base)
    for path, value in changes.items():
        *parents, last = path.split(".")
        here = made
        for part in parents:
            here = here.setdefault(part, {})
        if value is REMOVE:
            del here[last]
        else:
            here[last] = copy.deepcopy(value)
    return made
