"""What kubectl, an autoscaler and the operator do with the real API server."""

from typing import Any

import pytest

from kvbudget import conditions
from kvbudget.api import Condition, LLMServiceStatus, parse_service
from support.controlplane import ControlPlane
from support.kubeapi import ApiError, KubeAPI
from support.objects import Object, gpu_class, service

pytestmark = pytest.mark.apiserver


def _path(namespace: str, name: str = "") -> str:
    return f"/apis/kvbudget.dev/v1alpha1/namespaces/{namespace}/llmservices" + (f"/{name}" if name else "")


def _table(api: KubeAPI, path: str) -> tuple[list[dict[str, Any]], list[Any]]:
    found = api.get(path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    return found["columnDefinitions"], found["rows"][0]["cells"]


def _status(**fields: Any) -> Object:
    return {**service(), "status": fields}


def _condition(kind: str, status: str, reason: str) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def test_scale_writes_spec_replicas_and_reads_status(apiserver: ControlPlane, namespace: str) -> None:
    api = apiserver.api
    api.create(_path(namespace), service(spec__replicas=1))
    api.apply(_path(namespace, "chat/status"), _status(replicas=1, selector="kvbudget.dev/llmservice=chat"))
    scale = api.get(_path(namespace, "chat/scale"))
    assert scale["status"] == {"replicas": 1, "selector": "kvbudget.dev/llmservice=chat"}
    scale["spec"]["replicas"] = 3
    api.replace(_path(namespace, "chat/scale"), scale)
    assert api.get(_path(namespace, "chat"))["spec"]["replicas"] == 3


def test_scale_needs_spec_replicas(apiserver: ControlPlane, namespace: str) -> None:
    apiserver.api.create(_path(namespace), service())
    with pytest.raises(ApiError, match=r"spec\.replicas"):
        apiserver.api.get(_path(namespace, "chat/scale"))


def test_conditions_of_two_writers_are_merged_by_type(apiserver: ControlPlane, namespace: str) -> None:
    api, path = apiserver.api, _path(namespace, "chat/status")
    api.create(_path(namespace), service())
    api.apply(path, _status(conditions=[_condition("Ready", "False", "Starting")]), manager="operator", force=False)
    api.apply(path, _status(conditions=[_condition("Paused", "True", "ByHand")]), manager="someone", force=False)
    found = api.get(_path(namespace, "chat"))["status"]["conditions"]
    assert {condition["type"] for condition in found} == {"Ready", "Paused"}
    api.apply(path, _status(conditions=[_condition("Ready", "True", "Serving")]), manager="operator", force=False)
    found = api.get(_path(namespace, "chat"))["status"]["conditions"]
    assert {c["type"]: c["status"] for c in found} == {"Ready": "True", "Paused": "True"}


def test_a_condition_that_is_left_out_is_removed(apiserver: ControlPlane, namespace: str) -> None:
    api, path = apiserver.api, _path(namespace, "chat/status")
    api.create(_path(namespace), service())
    both = [_condition("Ready", "True", "Serving"), _condition("ScalingActive", "True", "Steady")]
    api.apply(path, _status(conditions=both))
    api.apply(path, _status(conditions=both[:1]))
    assert [c["type"] for c in api.get(_path(namespace, "chat"))["status"]["conditions"]] == ["Ready"]


def test_the_status_models_write_what_the_schema_takes(apiserver: ControlPlane, namespace: str) -> None:
    ready = Condition(type="Ready", status="True", reason="Serving", observed_generation=1)
    status = LLMServiceStatus.model_validate(
        {
            "observedGeneration": 1,
            "replicas": 2,
            "readyReplicas": 1,
            "selector": "a=b",
            "budget": {"kvBytes": -5, "tokens": 20000, "precision": "BF16"},
            "limits": {"maxModelLen": 8192, "queueTokens": 0},
            "measured": {"pages": 312, "freeBytes": 0},
            "demand": {"heldTokens": 10, "percent": 130},
            "decisions": [{"time": "2026-01-01T00:00:00Z", "current": 1, "desired": 2, "reason": "DemandAboveTarget"}],
            "conditions": conditions.merge([], [ready], "2026-01-01T00:00:00Z"),
        }
    )
    written = status.model_dump(by_alias=True, exclude_none=True)
    api = apiserver.api
    api.create(_path(namespace), service())
    api.apply(_path(namespace, "chat/status"), _status(**written))
    found = api.get(_path(namespace, "chat"))
    assert found["status"] == written
    assert parse_service(found).status == status


def test_status_is_neither_defaulted_nor_written_with_the_spec(apiserver: ControlPlane, namespace: str) -> None:
    made = apiserver.api.create(_path(namespace), {**service(), "status": {"replicas": 7}})
    assert "status" not in made


def test_a_status_change_is_no_new_generation(apiserver: ControlPlane, namespace: str) -> None:
    api = apiserver.api
    api.create(_path(namespace), service())
    api.apply(_path(namespace, "chat/status"), _status(replicas=1))
    assert api.get(_path(namespace, "chat"))["metadata"]["generation"] == 1


def test_the_printer_columns_show_the_budget_at_a_glance(apiserver: ControlPlane, namespace: str) -> None:
    api = apiserver.api
    api.create(_path(namespace), service())
    api.apply(
        _path(namespace, "chat/status"),
        _status(
            model="SmolLM2-135M-Instruct",
            replicas=2,
            limits={"maxModelLen": 8192},
            budget={"tokens": 20032},
            demand={"percent": 42},
            conditions=[_condition("Ready", "True", "Serving"), _condition("Accepted", "True", "Fits")],
        ),
    )
    columns, cells = _table(api, _path(namespace))
    shown = {column["name"]: (cell, column["priority"]) for column, cell in zip(columns, cells, strict=True)}
    assert list(shown) == ["Name", "Model", "GPU", "MaxLen", "KVTokens", "Replicas", "KV%", "Ready", "Age", "Reason"]
    shown.pop("Age")
    assert shown == {
        "Name": ("chat", 0),
        "Model": ("SmolLM2-135M-Instruct", 0),
        "GPU": ("h100-80gb", 0),
        "MaxLen": (8192, 0),
        "KVTokens": (20032, 0),
        "Replicas": (2, 0),
        "KV%": (42, 0),
        "Ready": ("True", 0),
        "Reason": ("Serving", 1),
    }


@pytest.mark.parametrize("memory", ["80Gi", 85899345920])
def test_a_class_shows_its_memory_however_it_is_written(apiserver: ControlPlane, memory: object) -> None:
    path = "/apis/kvbudget.dev/v1alpha1/gpuclasses"
    made = apiserver.api.create(path, {**gpu_class(spec__memory=memory), "metadata": {"generateName": "shown-"}})
    _, cells = _table(apiserver.api, f"{path}/{made['metadata']['name']}")
    assert cells[1:3] == [str(memory), "nvidia.com/gpu"]


def test_a_generated_name_passes(apiserver: ControlPlane, namespace: str) -> None:
    made = apiserver.api.create(_path(namespace), {**service(), "metadata": {"generateName": "chat-"}})
    assert made["metadata"]["name"].startswith("chat-")


def test_the_kind_has_short_names_and_a_category_of_its_own(apiserver: ControlPlane) -> None:
    found = apiserver.api.get("/apis/kvbudget.dev/v1alpha1")["resources"]
    kinds = {r["name"]: (r["shortNames"], r["categories"]) for r in found if "/" not in r["name"]}
    assert kinds == {"llmservices": (["llm"], ["kvbudget"]), "gpuclasses": (["gpuc"], ["kvbudget"])}
