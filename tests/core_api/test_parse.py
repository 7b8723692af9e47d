from types import MappingProxyType
from typing import Any

import pytest

from kvbudget.api import parse_gpu_class, parse_service, unsupported
from kvbudget.api.support import UNSUPPORTED
from kvbudget.errors import InputError, ObjectError
from support.manifests import BAD, FULL_POD
from support.objects import REMOVE, Object, changed, gpu_class, service


def _problems(obj: Any) -> list[str]:
    with pytest.raises(ObjectError) as raised:
        parse_service(obj)
    return [str(problem) for problem in raised.value.problems]


def test_every_problem_is_in_one_answer_with_its_path() -> None:
    wrong = service(
        spec__gpu={"tensorParallel": 0},
        spec__kvCache={"pageTokens": 48, "precison": "BF16"},
        spec__podTemplate={"env": [{"name": "A"}, {"value": "x"}]},
    )
    assert set(_problems(wrong)) == {
        "spec.gpu.class: is required; set it",
        "spec.gpu.tensorParallel: must be at least 1; is 0",
        "spec.kvCache.pageTokens: must be 16, 32, 64 or 128; is 48",
        "spec.kvCache.precison: is not a field; did you mean precision?",
        "spec.podTemplate.env[1].name: is required; set it",
    }


def test_every_broken_rule_is_in_one_answer() -> None:
    wrong = service(
        name="Chat",
        spec__scaling={"minReplicas": 3, "maxReplicas": 2},
        spec__model__source={},
        spec__podTemplate={"env": [{"name": "A"}, {"name": "KVBUDGET_PORT"}]},
    )
    assert [problem.partition(": ")[0] for problem in _problems(wrong)] == [
        "metadata.name",
        "spec.model.source",
        "spec.scaling.minReplicas",
        "spec.podTemplate.env[1].name",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec.maxModelLen": "1"}, "spec.maxModelLen: must be a whole number; is '1'"),
        ({"spec.maxModelLen": 2**31}, "spec.maxModelLen: must be at most 2147483647; is 2147483648"),
        ({"spec.model.shape": []}, "spec.model.shape: must be an object; is a list"),
        ({"spec.podTemplate": {"labels": {"a": 1}}}, "spec.podTemplate.labels.a: must be a string; quote it; is 1"),
        ({"spec.podTemplate": {"env": {}}}, "spec.podTemplate.env: must be a list; is an object"),
        ({"spec.podTemplate": {"env": [{"name": "A"}] * 2}}, "spec.podTemplate.env: name 'A' occurs twice"),
        ({"spec.model.name": ""}, "spec.model.name: must have at least 1 characters; has 0"),
        ({"spec.model.name": "x" * 254}, "spec.model.name: must have at most 253 characters; has 254"),
        ({"spec.router": {"image": "x"}}, "spec.router.image: is not a field; remove it. Fields here: replicas"),
        ({"kind": "LLMservice"}, "kind: must be 'LLMService'; is 'LLMservice'"),
        ({"metadata": REMOVE}, "metadata: is required; set it"),
        (
            {"spec.engine": {"extraArgs": ["x"] * 65}},
            "spec.engine.extraArgs: must have at most 64 entries; has 65",
        ),
    ],
)
def test_a_problem_says_what_is_wrong_and_what_to_do(changes: Object, message: str) -> None:
    assert _problems(changed(service(), changes)) == [message]


@pytest.mark.parametrize("obj", [None, [], "text", 3], ids=["null", "list", "text", "number"])
def test_what_is_no_object_at_all_is_refused(obj: Any) -> None:
    assert "must be a LLMService object" in _problems(obj)[0]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_an_error_is_one_line_per_problem_and_never_names_our_internals(case: Any) -> None:
    parse = parse_gpu_class if case.object["kind"] == "GPUClass" else parse_service
    with pytest.raises(InputError) as raised:
        parse(case.object)
    for line in str(raised.value).splitlines():
        assert line.startswith(("spec", "metadata")), line
        assert "pydantic" not in line
        assert "Input should" not in line


def test_a_read_only_view_is_read_as_well() -> None:
    assert parse_service(MappingProxyType(service())) == parse_service(service())


def test_the_bookkeeping_of_the_api_server_is_no_problem() -> None:
    live = service(
        metadata__uid="u",
        metadata__generation=3,
        metadata__managedFields=[{"manager": "kubectl"}],
        metadata__creationTimestamp="2026-01-01T00:00:00Z",
        status__observedGeneration=3,
        status__fieldOfALaterRelease={"a": 1},
    )
    read = parse_service(live)
    assert (read.metadata.generation, read.status.observed_generation) == (3, 3)


def test_the_served_name_is_that_of_the_model_else_of_the_object() -> None:
    assert parse_service(service(name="chat")).served_name == "chat"
    assert parse_service(service(name="chat", spec__model__name="org/m")).served_name == "org/m"


def test_a_pod_template_comes_back_as_it_was_written() -> None:
    read = parse_service(service(spec__podTemplate=FULL_POD)).spec.pod_template
    assert read is not None
    limits = {**FULL_POD["resources"]["limits"], "cpu": "2"}
    written = {**FULL_POD, "resources": {**FULL_POD["resources"], "limits": limits}}
    assert read.model_dump(by_alias=True, exclude_none=True) == written


def test_a_number_as_a_quantity_is_kept_as_its_text() -> None:
    assert parse_gpu_class(gpu_class(spec__memory=85028077568)).spec.memory == "85028077568"


# One use of each field that is not supported yet.
USES: dict[str, Object] = {
    "spec.model.source.huggingFace": {"spec.model.source": {"huggingFace": {"repo": "a/b"}}},
    "spec.model.source.image": {"spec.model.source": {"image": {"reference": "a/b:c"}}},
    "spec.gpu.tensorParallel": {"spec.gpu.tensorParallel": 2},
    "spec.gpu.pipelineParallel": {"spec.gpu.pipelineParallel": 2},
    "spec.kvCache.prefixCache.mode": {"spec.kvCache": {"prefixCache": {"mode": "PerTenant"}}},
    "spec.kvCache.overcommitPercent": {"spec.kvCache": {"overcommitPercent": 100}},
    "spec.scaling.driver": {"spec.scaling": {"maxReplicas": 2, "driver": "HPA"}},
    "spec.scaling.minReplicas": {"spec.scaling": {"maxReplicas": 2, "minReplicas": 0}},
    "spec.admission.mode": {"spec.admission": {"mode": "Enforce"}},
    "spec.admission.longPrompt": {"spec.admission": {"longPrompt": {"thresholdTokens": 1, "sharePercent": 1}}},
    "spec.admission.degradation": {
        "spec.admission": {"degradation": [{"atPercent": 85, "action": "CapOutputTokens", "outputTokens": 1024}]}
    },
    "spec.engine.type": {"spec.engine": {"type": "VLLM"}},
    "spec.engine.version": {"spec.engine": {"version": "0.1"}},
    "spec.engine.extraArgs": {"spec.engine": {"extraArgs": ["--x"]}},
    "spec.router": {"spec.router": {"replicas": 1}},
}


def test_the_smallest_service_uses_nothing_unsupported() -> None:
    assert unsupported(parse_service(service())) == ()


def test_an_empty_value_asks_for_nothing() -> None:
    empty = service(spec__engine={"version": "", "extraArgs": []}, spec__admission={"degradation": []})
    assert unsupported(parse_service(empty)) == ()


def test_a_status_of_another_release_is_no_problem_of_the_spec() -> None:
    assert parse_service(service(status={"decisions": [{}] * 9, "budget": {"tokens": "many"}})) == parse_service(
        service()
    )


def test_metadata_that_is_null_is_left_out() -> None:
    parsed = parse_service(service(metadata__labels=None, metadata__annotations=None, metadata__namespace=None))
    assert (parsed.metadata.labels, parsed.metadata.namespace) == ({}, "")


@pytest.mark.parametrize("entry", UNSUPPORTED, ids=lambda entry: entry.path)
def test_a_field_that_is_not_supported_yet_is_refused_by_name(entry: Any) -> None:
    (problem,) = unsupported(parse_service(changed(service(), USES[entry.path])))
    assert (problem.path, problem.check) == (entry.path, "NotSupportedYet")
    assert problem.message.startswith("not supported yet: ")


def test_all_that_is_unsupported_is_told_at_once() -> None:
    obj = service()
    for changes in USES.values():
        for path, value in changes.items():
            obj = _merged(obj, changed({}, {path: value}))
    del obj["spec"]["model"]["source"]["pvc"], obj["spec"]["model"]["source"]["image"]
    found = [problem.path for problem in unsupported(parse_service(obj))]
    assert found == [entry.path for entry in UNSUPPORTED if entry.path != "spec.model.source.image"]


def _merged(base: Object, more: Object) -> Object:
    return base | {
        key: _merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in more.items()
    }
