"""What is refused, warned of and let pass, with the text that the user reads."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.api import GPUClass, LLMService
from kvbudget.checks import Verdict, evaluate
from kvbudget.facts import SERVED_KV, splits
from kvbudget.served import named
from support.problems import told

MakeService = Callable[..., LLMService]
MakeClass = Callable[..., GPUClass]


def test_the_refusal_has_the_arithmetic_and_what_would_fit(verdict: Callable[..., Verdict]) -> None:
    found = verdict({"spec.maxModelLen": 131072})
    assert [str(p) for p in found.errors] == [
        "spec.maxModelLen: 131072 tokens need 2048 pages (16.00 GiB at 131072 B per token); class l4-24gb gives 21.95 "
        "GiB × 90% − weights 14.96 − activations 0.45 − runtime 0.78 = 3.57 GiB = 455 pages after 1 held back. Fits: "
        "maxModelLen ≤ 29120; or kvCache.precision FP8E4M3 with ≤ 58368; or kvCache.precision INT4 with ≤ 93440; or a "
        "class with ≥ 35.78 GiB of memory. Can be planned (kvbudget plan) but not served yet: gpu.tensorParallel 4."
    ]
    assert (found.plan, found.sizing) == (None, None)


def test_the_planner_tells_what_would_fit_in_one_list(verdict: Callable[..., Verdict]) -> None:
    (error,) = verdict({"spec.maxModelLen": 131072}, apply=False).errors
    assert error.message.endswith(
        "Fits: maxModelLen ≤ 29120; or kvCache.precision FP8E4M3 with ≤ 58368; or kvCache.precision INT4 with ≤ 93440; "
        "or gpu.tensorParallel 4; or a class with ≥ 35.78 GiB of memory."
    )


def test_what_fits_has_a_plan_whose_terms_add_up(verdict: Callable[..., Verdict]) -> None:
    found = verdict({"spec.maxModelLen": 8192})
    assert (found.errors, found.warnings, found.notes) == ((), (), ())
    assert found.plan is not None
    budget = found.plan.budget
    fixed = budget.weight_bytes + budget.activation_bytes + budget.graph_bytes + budget.runtime_bytes
    assert budget.usable_bytes == fixed + budget.kv_bytes
    assert budget.kv_bytes == (budget.pages + budget.reserved_pages) * budget.page_bytes + budget.remainder_bytes
    assert budget.sequences_at_max_len == 455 // 128


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"spec.model.name": "acme/x"}, [("ShapeUnknown", "spec.model.shape")], id="unknown shape"),
        pytest.param(
            {"spec.kvCache.precision": "NVFP4"},
            [("PrecisionNotOffered", "spec.kvCache.precision")],
            id="kv not offered",
        ),
        pytest.param(
            {"spec.model.weightPrecision": "FP8", "class:spec.weightPrecisions": ["BF16"]},
            [("PrecisionNotOffered", "spec.model.weightPrecision")],
            id="weights not offered",
        ),
        pytest.param(
            {"class:spec.weightPrecisions": ["INT4"]},
            [("PrecisionNotOffered", "spec.model.weightPrecision")],
            id="auto finds no weights",
        ),
        pytest.param(
            {"class:spec.kvPrecisions": ["INT8"]},
            [("PrecisionNotOffered", "spec.kvCache.precision")],
            id="auto finds no kv",
        ),
        pytest.param(
            {"spec.kvCache.precision": "NVFP4", "class:spec.kvPrecisions": ["BF16", "NVFP4"]},
            [("NotSupportedYet", "spec.kvCache.precision")],
            id="kv not served",
        ),
        pytest.param(
            {"spec.model.weightPrecision": "FP8"},
            [("NotSupportedYet", "spec.model.weightPrecision")],
            id="weights not served",
        ),
        pytest.param(
            {"spec.gpu.tensorParallel": 3},
            [
                ("NotSupportedYet", "spec.gpu.tensorParallel"),
            ],
            id="ranks that do not divide",
        ),
        pytest.param(
            {"spec.gpu.pipelineParallel": 33},
            [("NotSupportedYet", "spec.gpu.pipelineParallel")],
            id="more stages than layers",
        ),
        pytest.param(
            {"spec.gpu.tensorParallel": 2}, [("NotSupportedYet", "spec.gpu.tensorParallel")], id="ranks not served"
        ),
        pytest.param({"spec.engine.type": "VLLM"}, [("NotSupportedYet", "spec.engine.type")], id="other engine"),
        pytest.param(
            {"spec.maxModelLen": 200000, "class:spec.memory": "40Gi"},
            [("AboveModelLimit", "spec.maxModelLen")],
            id="above the model's limit, which itself fits",
        ),
        pytest.param(
            {"spec.maxModelLen": 200000},
            [("AboveModelLimit", "spec.maxModelLen"), ("BudgetTooSmall", "spec.maxModelLen")],
            id="above the limit and too large",
        ),
        pytest.param(
            {"spec.maxModelLen": 1024, "spec.admission.maxInputTokens": 1024},
            [("NoRoomForOutput", "spec.admission.maxInputTokens")],
            id="input leaves no output",
        ),
        pytest.param(
            {"spec.maxModelLen": 1024, "spec.admission.maxOutputTokens": 1024},
            [("NoRoomForInput", "spec.admission.maxOutputTokens")],
            id="output leaves no input",
        ),
        pytest.param(
            {"spec.maxModelLen": 1024, "spec.admission.defaultOutputTokens": 4096},
            [("NoRoomForInput", "spec.admission.defaultOutputTokens")],
            id="default output leaves no input",
        ),
        pytest.param(
            {"spec.admission.maxInputTokens": 40000},
            [("NoRoomForOutput", "spec.admission.maxInputTokens")],
            id="input above the length that was chosen",
        ),
        pytest.param({"spec.maxModelLen": 1}, [("NoRoomForOutput", "spec.maxModelLen")], id="one token"),
        pytest.param(
            {"class:spec.memory": "8Gi"}, [("BudgetTooSmall", "spec.gpu.class")], id="weights alone too large"
        ),
    ],
)
def test_each_error_names_its_field(
    verdict: Callable[..., Verdict], changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    found = verdict(changes)
    assert told(found.errors) == expected
    assert found.plan is None


def test_all_errors_come_in_one_answer(verdict: Callable[..., Verdict]) -> None:
    found = verdict({
        "spec.maxModelLen": 140000,
        "spec.kvCache.precision": "NVFP4",
        "class:spec.kvPrecisions": ["BF16", "INT4", "NVFP4"],
        "spec.admission.maxOutputTokens": 150000,
        "spec.router": {"replicas": 1},
    })  # fmt: skip
    assert told(found.errors) == [
        ("NotSupportedYet", "spec.router"),
        ("NotSupportedYet", "spec.kvCache.precision"),
        ("AboveModelLimit", "spec.maxModelLen"),
        ("NoRoomForInput", "spec.admission.maxOutputTokens"),
        ("BudgetTooSmall", "spec.maxModelLen"),
    ]


def test_an_unknown_class_is_an_error_that_names_it(make_service: MakeService) -> None:
    (error,) = evaluate(make_service(), None).errors
    assert (error.check, error.path) == ("UnknownGPUClass", "spec.gpu.class")
    assert "l4-24gb" in error.message


@pytest.mark.parametrize(
    ("name", "hint"), [("l4", "did you mean l4-24gb?"), ("l4-24gb", "(kubectl get gpuclasses)"), ("qq", "gpuclasses)")]
)
def test_an_unknown_class_has_a_near_name(make_service: MakeService, name: str, hint: str) -> None:
    (error,) = evaluate(make_service({"spec.gpu.class": name}), None).errors
    assert error.message.endswith(hint)


def test_the_planner_plans_what_the_cluster_would_refuse_and_notes_it(verdict: Callable[..., Verdict]) -> None:
    changes = {"spec.gpu.tensorParallel": 2, "spec.kvCache.precision": "NVFP4", "spec.maxModelLen": 131072}
    found = verdict({**changes, "class:spec.kvPrecisions": ["BF16", "NVFP4"]}, apply=False)
    assert found.errors == ()
    assert told(found.notes) == [
        ("NotSupportedYet", "spec.gpu.tensorParallel"),
        ("NotSupportedYet", "spec.kvCache.precision"),
    ]
    assert found.plan is not None
    assert (found.plan.gpu.count, found.plan.kv.precision) == (2, "NVFP4")


@pytest.mark.parametrize("precision", [p for p in SERVED_KV if p != "FP32"])
def test_the_class_alone_decides_which_served_kv_precision_is_offered(
    verdict: Callable[..., Verdict], precision: str
) -> None:
    wanted = {"spec.kvCache.precision": precision}
    served = verdict({**wanted, "class:spec.kvPrecisions": [precision]})
    assert served.errors == ()
    assert served.plan is not None
    assert served.plan.kv.precision == served.plan.budget.precision == precision
    other = "BF16" if precision != "BF16" else "FP16"
    (refused,) = verdict({**wanted, "class:spec.kvPrecisions": [other]}).errors
    assert str(refused) == f"spec.kvCache.precision: class l4-24gb cannot do {precision}; it offers {other}"


def test_a_precision_that_only_the_planner_knows_is_refused_with_those_that_class_and_worker_have(
    verdict: Callable[..., Verdict],
) -> None:
    changes = {"spec.kvCache.precision": "NVFP4", "class:spec.kvPrecisions": ["NVFP4", "FP8E4M3", "INT4"]}
    (error,) = verdict(changes).errors
    assert error.message.endswith("NVFP4 can be planned (kvbudget plan) but not served; use FP8E4M3 or INT4")
    (alone,) = verdict({**changes, "class:spec.kvPrecisions": ["NVFP4"]}).errors
    assert "name a class that offers one of BF16, FP16, FP32, FP8E4M3" in alone.message


def test_smaller_kv_gives_more_tokens_of_the_same_memory(verdict: Callable[..., Verdict]) -> None:
    tokens = {}
    for precision in ("BF16", "FP8E4M3", "INT8", "INT4"):
        plan = verdict({"spec.kvCache.precision": precision}).plan
        assert plan is not None
        tokens[precision] = plan.budget.tokens
    assert tokens == {"BF16": 29120, "FP8E4M3": 58368, "INT8": 57472, "INT4": 93440}


def test_the_planner_does_not_plan_another_engine_as_if_it_were_the_bundled_one(
    verdict: Callable[..., Verdict],
) -> None:
    assert told(verdict({"spec.engine.type": "VLLM"}, apply=False).errors) == [("NotSupportedYet", "spec.engine.type")]


# --- precision Auto ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "weights", "kv"),
    [
        pytest.param({}, "BF16", "BF16", id="the class's best that is served"),
        pytest.param({"class:spec.weightPrecisions": ["FP8", "FP16", "BF16"]}, "FP16", "FP16", id="kv as the weights"),
        pytest.param(
            {"class:spec.weightPrecisions": ["FP16"], "class:spec.kvPrecisions": ["BF16"]},
            "FP16",
            "BF16",
            id="kv falls back",
        ),
        pytest.param({"spec.model.weightPrecision": "FP32", "class:spec.memory": "80Gi"}, "FP32", "FP32", id="fp32"),
    ],
)
def test_auto_follows_the_class_and_the_weights(
    verdict: Callable[..., Verdict], changes: dict[str, Any], weights: str, kv: str
) -> None:
    plan = verdict(changes).plan
    assert plan is not None
    assert (plan.model.weight_precision, plan.kv.precision) == (weights, kv)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_length_that_is_left_out_is_the_largest_that_fits_and_is_told(verdict: Callable[..., Verdict]) -> None:
    found = verdict()
    assert found.plan is not None
    assert found.plan.limits.max_model_len == found.plan.budget.tokens == 29120
    assert [str(p) for p in found.notes] == ["spec.maxModelLen: left out; 29120 tokens, the largest that fits"]


def test_a_length_that_is_left_out_is_never_above_what_the_model_can_do(verdict: Callable[..., Verdict]) -> None:
    found = verdict({"class:spec.memory": "80Gi"})
    assert found.plan is not None
    assert found.plan.limits.max_model_len == 131072
    assert "the largest of the model" in found.notes[0].message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, (4095, 4095, 512), id="all left out"),
        pytest.param({"spec.admission.maxOutputTokens": 100}, (4095, 100, 100), id="default below the maximum"),
        pytest.param({"spec.admission.defaultOutputTokens": 64}, (4095, 4095, 64), id="default given"),
        pytest.param({"spec.maxModelLen": 256}, (255, 255, 255), id="a short model"),
        pytest.param(
            {"spec.admission.maxInputTokens": 3000, "spec.admission.maxOutputTokens": 2000},
            (3000, 2000, 512),
            id="both given, and together above the length",
        ),
    ],
)
def test_limits_in_tokens(
    verdict: Callable[..., Verdict], changes: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    plan = verdict({"spec.maxModelLen": 4096, **changes}).plan
    assert plan is not None
    limits = plan.limits
    assert (limits.max_input_tokens, limits.max_output_tokens, limits.default_output_tokens) == expected
    assert limits.tokens_in_flight == plan.kv.pages * plan.kv.page_tokens
    assert (limits.queue_tokens, limits.queue_max_wait_seconds) == (0, 0)


def test_the_queue_is_carried_into_the_plan(verdict: Callable[..., Verdict]) -> None:
    plan = verdict({"spec.admission.queue": {"maxTokens": 5000, "maxWaitSeconds": 7}}).plan
    assert plan is not None
    assert (plan.limits.queue_tokens, plan.limits.queue_max_wait_seconds) == (5000, 7)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"pvc": {"claimName": "w", "path": "/smollm2"}}, "/models/smollm2"),
        ({"pvc": {"claimName": "w"}}, "/models"),
        ({"pvc": {"claimName": "w", "path": "/a/b.gguf"}}, "/models/a/b.gguf"),
        ({"hostPath": {"path": "/var/lib/weights/llama/"}}, "/models/llama"),
        ({"hostPath": {"path": "/data/x.gguf"}}, "/models/x.gguf"),
    ],
)
def test_weights_lie_below_the_models_folder(
    verdict: Callable[..., Verdict], source: dict[str, Any], expected: str
) -> None:
    plan = verdict({"spec.model.source": source}).plan
    assert plan is not None
    assert plan.model.weights_path == expected


# --- warnings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [29120, 100_000])
def test_a_shorter_length_takes_limits_that_it_has_no_room_for_along(
    verdict: Callable[..., Verdict], limit: int
) -> None:
    found = verdict({"spec.maxModelLen": 131072, "spec.admission.maxInputTokens": limit})
    assert found.remedies[0].text == "maxModelLen ≤ 29120 (and admission.maxInputTokens ≤ 29119)"
    assert dict(found.remedies[0].changes) == {"spec.maxModelLen": 29120, "spec.admission.maxInputTokens": 29119}


def test_a_remedy_never_asks_for_less_headroom_than_is_safe(verdict: Callable[..., Verdict]) -> None:
    at_90 = {"spec.maxModelLen": 36000}
    assert "spec.kvCache.memoryPercent" in {r.changes[0][0] for r in verdict(at_90).remedies}
    for remedy in verdict({"spec.maxModelLen": 60000}).remedies:
        assert remedy.changes[0][0] != "spec.kvCache.memoryPercent"


@pytest.mark.parametrize(
    ("heads", "kv_heads", "expected"),
    [
        pytest.param(32, 8, [1, 2, 4, 8, 16], id="GQA"),
        pytest.param(12, 4, [1, 2, 4, 12], id="6 ranks neither divide nor are divided by 4 KV heads"),
        pytest.param(9, 3, [1, 3, 9], id="SmolLM2"),
        pytest.param(16, 1, [1, 2, 4, 8, 16], id="MQA is replicated"),
    ],
)
def test_ranks_over_which_heads_can_be_split(heads: int, kv_heads: int, expected: list[int]) -> None:
    shape = named("SmolLM2-135M-Instruct").model_copy(update={"attention_heads": heads, "kv_heads": kv_heads})
    assert [n for n in range(1, 17) if splits(shape, n)] == expected
