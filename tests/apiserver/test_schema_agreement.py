"""The API server and pydantic read one table of objects, and must agree on each."""

import re
from typing import Any

import pytest

from kvbudget.api import GPUClass, LLMService, parse_gpu_class, parse_service
from kvbudget.errors import ObjectError
from support.controlplane import ControlPlane
from support.kubeapi import ApiError
from support.manifests import BAD, GOOD, Case
from support.objects import Object

pytestmark = [pytest.mark.apiserver, pytest.mark.smoke]


def _collection(obj: Object, namespace: str) -> str:
    if obj["kind"] == "GPUClass":
        return "/apis/kvbudget.dev/v1alpha1/gpuclasses"
    return f"/apis/kvbudget.dev/v1alpha1/namespaces/{namespace}/llmservices"


def _parse(obj: Object) -> LLMService | GPUClass:
    return parse_gpu_class(obj) if obj["kind"] == "GPUClass" else parse_service(obj)


def _spec(parsed: LLMService | GPUClass) -> Any:
    return parsed.model_dump(by_alias=True, exclude_none=True)["spec"]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_both_take_a_good_object_and_give_it_the_same_defaults(
    case: Case, apiserver: ControlPlane, namespace: str
) -> None:
    ours = _spec(_parse(case.object))
    theirs = apiserver.api.create(_collection(case.object, namespace), case.object, dryRun="All")
    assert _numbers_as_text(ours) == _numbers_as_text(theirs["spec"])
    assert _spec(_parse(theirs)) == ours, "what the API server hands out must read as the same object"


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_both_refuse_a_bad_object_at_the_same_field(case: Case, apiserver: ControlPlane, namespace: str) -> None:
    with pytest.raises(ObjectError) as ours:
        _parse(case.object)
    assert case.path in [problem.path for problem in ours.value.problems]
    with pytest.raises(ApiError) as theirs:
        apiserver.api.create(_collection(case.object, namespace), case.object, dryRun="All")
    assert theirs.value.status in (400, 422)
    # Unknown fields are told in the message, all else in the causes.
    told = " ".join([theirs.value.message, *theirs.value.causes])
    told = re.sub(r"\[([a-z]+)\]", r".\1", told)  # CEL writes a map's key as limits[cpu]
    assert re.sub(r"\[\d+\]$", "", case.path) in told


def _numbers_as_text(value: Any) -> Any:
    """A quantity may be a number in the manifest; pydantic keeps its text."""
    if isinstance(value, dict):
        return {key: _numbers_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers_as_text(item) for item in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
