"""What is admitted with a warning, and what an update lets pass that a new object would not."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.api import GPUClass, LLMService
from kvbudget.checks import Verdict, evaluate
from support.problems import told

MakeService = Callable[..., LLMService]
MakeClass = Callable[..., GPUClass]

TRAFFIC = {"requestsPerMinute": 60, "outputTokensPerSecond": 40, "inputTokens": 1000, "outputTokens": 800}


@pytest.mark.parametrize(
    ("changes", "expected", "said"),
    [
        pytest.param(
            {"spec.maxModelLen": 20000},
            ("FewSequences", "spec.maxModelLen"),
            "with maxModelLen ≤ 14528 two would",
            id="one sequence at full length",
        ),
        pytest.param(
            {"spec.replicas": 2, "spec.scaling": {"maxReplicas": 3}},
            ("ReplicasAndScaling", "spec.replicas"),
            "until scaling (1 to 3) changes it",
            id="replicas and scaling",
        ),
        pytest.param(
            {"spec.traffic": TRAFFIC, "spec.replicas": 1},
            ("ReplicasBelowTraffic", "spec.replicas"),
            "20 sequences (60 requests per minute × 800 output tokens ÷ 40 per second) × 29 pages (1800 tokens) ÷ "
            "(455 pages per replica × 75%) = 2 replicas",
            id="replicas below traffic",
        ),
        pytest.param(
            {"spec.traffic": TRAFFIC, "spec.scaling": {"maxReplicas": 1}},
            ("ReplicasBelowTraffic", "spec.scaling.maxReplicas"),
            "1 is below what the traffic needs",
            id="maximum below traffic",
        ),
        pytest.param(
            {"spec.traffic": {"concurrentRequests": 1_000_000, "inputTokens": 6000, "outputTokens": 800}},
            ("ReplicasBelowTraffic", "spec.traffic"),
            "needs more than the 10000 replicas that one service can have",
            id="traffic above what a service can have",
        ),
        pytest.param(
            {"spec.traffic": TRAFFIC, "spec.admission.queue": {"maxTokens": 50000, "maxWaitSeconds": 30}},
            ("QueueTooLong", "spec.admission.queue.maxTokens"),
            "29120 tokens × 30 s ÷ (800 tokens ÷ 40 per second) = 43680; set 43680 or less",
            id="queue too long",
        ),
        pytest.param(
            {"spec.traffic": TRAFFIC, "spec.drain.timeoutSeconds": 60, "spec.admission.maxOutputTokens": 4000},
            ("DrainTooShort", "spec.drain.timeoutSeconds"),
            "4000 tokens ÷ 40 per second = 100 s",
            id="drain too short",
        ),
        pytest.param(
            {"spec.traffic": {**TRAFFIC, "inputTokens": 9000}, "spec.maxModelLen": 8192},
            ("TrafficAboveLimits", "spec.traffic.inputTokens"),
            "9000 is above maxInputTokens 8191",
            id="traffic above the limits",
        ),
        pytest.param(
            {"spec.model.source": {"hostPath": {"path": "/w"}}},
            ("HostPathNeedsPrivileged", "spec.model.source.hostPath"),
            "Pod Security level is privileged",
            id="host path",
        ),
        pytest.param(
            {"spec.model.shape": {"weightBytes": 4_000_000_000}},
            ("CheckpointSizeIgnored", "spec.model.shape.weightBytes"),
            "4000000000 bytes are no BF16 checkpoint of this shape; the budget counts 16060522496 bytes instead",
            id="checkpoint of another precision",
        ),
        pytest.param(
            {"spec.maxModelLen": 140000, "spec.model.shape": {"ropeScaling": True}, "class:spec.memory": "80Gi"},
            ("StretchedLength", "spec.maxModelLen"),
            "140000 is above the 131072 tokens that the model was made for",
            id="stretched",
        ),
        pytest.param(
            {"spec.podTemplate": {"nodeSelector": {"gpu": "b"}}, "class:spec.nodeSelector": {"gpu": "a", "zone": "c"}},
            ("PodTemplateReplaced", "spec.podTemplate.nodeSelector.gpu"),
            "b is replaced by a, which class l4-24gb needs; remove it, or name another class",
            id="a node label that the class sets otherwise",
        ),
        pytest.param(
            {"spec.podTemplate": {"resources": {"limits": {"nvidia.com/gpu": 2}}}},
            ("PodTemplateReplaced", "spec.podTemplate.resources.limits.nvidia.com/gpu"),
            "2 is replaced by 1",
            id="more devices than the plan has",
        ),
        pytest.param(
            {"spec.podTemplate": {"resources": {"requests": {"memory": "4Gi"}}}, "class:spec.resourceName": "cpu"},
            ("PodTemplateReplaced", "spec.podTemplate.resources.requests.memory"),
            f"4Gi is replaced by {(22478 + 1024) << 20}",
            id="memory that is the class's",
        ),
    ],
)
def test_each_warning_admits_and_says_why(
    verdict: Callable[..., Verdict], changes: dict[str, Any], expected: tuple[str, str], said: str
) -> None:
    found = verdict(changes)
    assert found.errors == ()
    assert found.plan is not None
    texts = {(p.check, p.path): p.message for p in found.warnings}
    assert expected in texts
    assert said in texts[expected]


def test_a_sound_service_has_no_warnings(verdict: Callable[..., Verdict]) -> None:
    found = verdict({
        "spec.maxModelLen": 8192,
        "spec.traffic": TRAFFIC,
        "spec.replicas": 2,
        "spec.admission.queue": {"maxTokens": 40000},
        "spec.drain.timeoutSeconds": 600,
        "spec.podTemplate": {
            "nodeSelector": {"gpu": "a", "zone": "b"},
            "resources": {"requests": {"memory": "40Gi", "cpu": "4"}, "limits": {"nvidia.com/gpu": "1000m"}},
        },
        "class:spec.nodeSelector": {"gpu": "a"},
    })  # fmt: skip
    assert (found.errors, found.warnings) == ((), ())


# --- updates ----------------------------------------------------------------------------------------------------------


def test_an_invalid_field_that_is_unchanged_passes_an_update_as_a_warning(
    make_service: MakeService, make_class: MakeClass
) -> None:
    broken = {"spec.maxModelLen": 131072, "spec.admission.mode": "Shadow"}
    old, new = make_service(broken), make_service({**broken, "spec.replicas": 3})
    found = evaluate(new, make_class(), old=old)
    assert found.errors == ()
    assert told(found.warnings) == [
        ("NotSupportedYet", "spec.admission.mode"),
        ("BudgetTooSmall", "spec.maxModelLen"),
    ]
    assert found.plan is None


@pytest.mark.parametrize(
    "change",
    [{"spec.maxModelLen": 131000}, {"spec.kvCache.memoryPercent": 80}, {"spec.engine.maxSequences": 512}],
    ids=lambda change: next(iter(change)),
)
def test_a_change_of_what_the_check_reads_is_refused(
    make_service: MakeService, make_class: MakeClass, change: dict[str, Any]
) -> None:
    broken = {"spec.maxModelLen": 131072}
    found = evaluate(make_service({**broken, **change}), make_class(), old=make_service(broken))
    assert told(found.errors) == [("BudgetTooSmall", "spec.maxModelLen")]


def test_a_service_whose_class_was_deleted_can_still_be_scaled(make_service: MakeService) -> None:
    found = evaluate(make_service({"spec.replicas": 3}), None, old=make_service())
    assert found.errors == ()
    assert told(found.warnings) == [("UnknownGPUClass", "spec.gpu.class")]


def test_an_update_that_breaks_something_else_is_refused_for_that_alone(
    make_service: MakeService, make_class: MakeClass
) -> None:
    broken = {"spec.maxModelLen": 131072}
    found = evaluate(make_service({**broken, "spec.router": {}}), make_class(), old=make_service(broken))
    assert told(found.errors) == [("NotSupportedYet", "spec.router")]


def test_an_object_under_deletion_always_passes(make_service: MakeService, make_class: MakeClass) -> None:
    leaving = make_service({"spec.maxModelLen": 131072, "metadata.deletionTimestamp": "2026-01-01T00:00:00Z"})
    found = evaluate(leaving, make_class())
    assert found.errors == ()
    assert told(found.warnings) == [("BudgetTooSmall", "spec.maxModelLen")]


def test_a_smaller_budget_is_a_warning_with_before_and_after(make_service: MakeService, make_class: MakeClass) -> None:
    old, new = make_service({"spec.maxModelLen": 4096}), make_service({"spec.kvCache.memoryPercent": 85})
    (warning,) = evaluate(new, make_class(), old=old).warnings
    assert (warning.check, warning.path) == ("BudgetShrinks", "spec")
    assert "from 29120 to 20160 tokens per replica (maxModelLen 4096 → 20160)" in warning.message


def test_a_smaller_class_is_compared_with_the_class_before(make_service: MakeService, make_class: MakeClass) -> None:
    service = make_service()
    found = evaluate(
        service, make_class({"spec.memory": "22000Mi"}), old=service, old_gpu_class=make_class({"spec.memory": "24Gi"})
    )
    assert [w.check for w in found.warnings] == ["BudgetShrinks"]


def test_replicas_beside_scaling_are_no_warning_on_an_update(make_service: MakeService, make_class: MakeClass) -> None:
    both = make_service({"spec.replicas": 2, "spec.scaling": {"maxReplicas": 3}})
    assert evaluate(both, make_class(), old=both).warnings == ()
