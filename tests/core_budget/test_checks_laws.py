"""Laws over random services: a verdict is a function, a plan is a fixed point, and every remedy named does fit."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvbudget.api import GPUClass, LLMService, parse_gpu_class, parse_service
from kvbudget.checks import evaluate
from kvbudget.explain import as_json, explain
from kvbudget.plan import Plan
from support.laws import share

MakeService = Callable[..., LLMService]
MakeClass = Callable[..., GPUClass]
Changed = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]

NAMES = ["SmolLM2-135M-Instruct", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "Qwen/Qwen2.5-7B"]
WEIGHTS = ["BF16", "FP16", "FP32", "FP8", "INT8", "INT4"]
KV = ["BF16", "FP16", "FP8E4M3", "INT8", "INT4", "NVFP4"]


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


SERVICES = st.fixed_dictionaries(
    {
        "spec.model.name": st.sampled_from([*NAMES, "acme/unknown"]),
        "spec.model.weightPrecision": st.sampled_from(["Auto", "Auto", *WEIGHTS]),
        "spec.maxModelLen": optional(st.integers(1, 200_000)),
        "spec.kvCache.precision": st.sampled_from(["Auto", "Auto", *KV]),
        "spec.kvCache.pageTokens": st.sampled_from([16, 32, 64, 128]),
        "spec.kvCache.memoryPercent": st.integers(1, 100),
        "spec.gpu.tensorParallel": st.sampled_from([1, 1, 1, 2, 3, 4, 8]),
        "spec.gpu.pipelineParallel": st.sampled_from([1, 1, 1, 2, 3]),
        "spec.engine.maxSequences": st.integers(1, 1024),
        "spec.engine.maxBatchedTokens": st.integers(16, 16_384),
        "spec.admission.maxInputTokens": optional(st.integers(1, 50_000)),
        "spec.admission.maxOutputTokens": optional(st.integers(600, 50_000)),
        "spec.admission.defaultOutputTokens": optional(st.integers(1, 600)),
        "spec.traffic": optional(
            st.fixed_dictionaries(
                {
                    "inputTokens": st.integers(1, 9000),
                    "outputTokens": st.integers(1, 9000),
                    "concurrentRequests": st.integers(1, 500),
                }
            )
        ),
    }
)
CLASSES = st.fixed_dictionaries(
    {
        "spec.memory": st.integers(1, 100 * 2**30).map(str),
        "spec.resourceName": st.sampled_from(["nvidia.com/gpu", "cpu"]),
        "spec.weightPrecisions": st.lists(st.sampled_from(WEIGHTS), min_size=1, unique=True),
        "spec.kvPrecisions": st.lists(st.sampled_from(KV), min_size=1, unique=True),
    }
)


@given(SERVICES, CLASSES, st.booleans())
def test_evaluating_twice_gives_equal_verdicts_and_a_plan_exactly_without_errors(
    make_service: MakeService, make_class: MakeClass, spec: dict[str, Any], cls: dict[str, Any], apply: bool
) -> None:
    service, gpu_class = make_service(spec), make_class(cls)
    verdict = evaluate(service, gpu_class, apply=apply)
    assert verdict == evaluate(service, gpu_class, apply=apply)
    assert (verdict.plan is None) == bool(verdict.errors)
    assert (verdict.sizing is None) == bool(verdict.errors)
    assert explain(verdict, service, gpu_class).endswith("\n")
    assert json.loads(json.dumps(as_json(verdict, service, gpu_class)))["fits"] == (verdict.errors == ())


@given(SERVICES, CLASSES)
def test_every_remedy_that_is_named_does_fit_when_it_is_applied(
    changed: Changed,
    service_manifest: dict[str, Any],
    class_manifest: dict[str, Any],
    spec: dict[str, Any],
    cls: dict[str, Any],
) -> None:
    service, gpu_class = changed(service_manifest, spec), changed(class_manifest, cls)
    verdict = evaluate(parse_service(service), parse_gpu_class(gpu_class), apply=False)
    others = {e.check for e in verdict.errors} - {"BudgetTooSmall"}
    for remedy in verdict.remedies:
        cured_service = changed(service, {p: v for p, v in remedy.changes if not p.startswith("class:")})
        cured_class = changed(gpu_class, {p[6:]: v for p, v in remedy.changes if p.startswith("class:")})
        cured = evaluate(parse_service(cured_service), parse_gpu_class(cured_class), apply=False)
        assert {e.check for e in cured.errors} <= others, (remedy, cured.errors)


@given(SERVICES, CLASSES)
def test_a_remedy_that_is_said_to_be_served_leads_to_no_new_refusal_in_the_cluster(
    changed: Changed,
    service_manifest: dict[str, Any],
    class_manifest: dict[str, Any],
    spec: dict[str, Any],
    cls: dict[str, Any],
) -> None:
    service, gpu_class = changed(service_manifest, spec), changed(class_manifest, cls)
    verdict = evaluate(parse_service(service), parse_gpu_class(gpu_class))
    others = {(e.check, e.path) for e in verdict.errors if e.check != "BudgetTooSmall"}
    for remedy in (r for r in verdict.remedies if r.served):
        cured_service = changed(service, {p: v for p, v in remedy.changes if not p.startswith("class:")})
        cured_class = changed(gpu_class, {p[6:]: v for p, v in remedy.changes if p.startswith("class:")})
        cured = evaluate(parse_service(cured_service), parse_gpu_class(cured_class))
        assert {(e.check, e.path) for e in cured.errors} <= others, (remedy, cured.errors)


@share(0.5)
@given(SERVICES, CLASSES)
def test_a_plan_is_a_fixed_point(
    changed: Changed,
    service_manifest: dict[str, Any],
    class_manifest: dict[str, Any],
    spec: dict[str, Any],
    cls: dict[str, Any],
) -> None:
    """A service that spells out what its plan chose for it gets the same plan."""
    service, gpu_class = changed(service_manifest, spec), parse_gpu_class(changed(class_manifest, cls))
    plan = evaluate(parse_service(service), gpu_class, apply=False).plan
    if plan is None:
        return
    chosen = {
        "spec.maxModelLen": plan.limits.max_model_len,
        "spec.admission.maxInputTokens": plan.limits.max_input_tokens,
        "spec.admission.maxOutputTokens": plan.limits.max_output_tokens,
        "spec.admission.defaultOutputTokens": plan.limits.default_output_tokens,
        "spec.model.weightPrecision": plan.model.weight_precision,
        "spec.model.shape": plan.model.shape.model_dump(by_alias=True, exclude_none=True),
    }
    if plan.kv.precision != "FP32":
        chosen["spec.kvCache.precision"] = plan.kv.precision
    again = evaluate(parse_service(changed(service, chosen)), gpu_class, apply=False).plan
    assert again == plan
    assert again.hash() == plan.hash()
    assert Plan.model_validate_json(plan.to_json()) == plan


@given(SERVICES, CLASSES)
def test_an_update_that_changes_nothing_is_never_refused(
    make_service: MakeService, make_class: MakeClass, spec: dict[str, Any], cls: dict[str, Any]
) -> None:
    service = make_service(spec)
    assert evaluate(service, make_class(cls), old=service).errors == ()
    assert evaluate(service, None, old=service).errors == ()
