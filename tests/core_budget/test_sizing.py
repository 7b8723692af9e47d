"""Replicas from traffic: Little's law and pages, and who decides where there is no traffic."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.api import GPUClass, LLMService
from kvbudget.checks import evaluate
from kvbudget.sizing import Sizing

MakeService = Callable[..., LLMService]
MakeClass = Callable[..., GPUClass]

CONCURRENT = {"concurrentRequests": 40, "inputTokens": 6000, "outputTokens": 800}
RATE = {"requestsPerMinute": 240, "outputTokensPerSecond": 40, "inputTokens": 6000, "outputTokens": 800}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, Sizing(1, "Default", None), id="no traffic"),
        pytest.param(
            {"spec.scaling": {"minReplicas": 2, "maxReplicas": 4}}, Sizing(2, "MinReplicas", None), id="scaling alone"
        ),
        pytest.param(
            {"spec.traffic": CONCURRENT},
            Sizing(
                13,
                "Traffic",
                "40 sequences × 107 pages (6800 tokens) ÷ (455 pages per replica × 75%) = 13 replicas",
                13,
            ),
            id="concurrent requests",
        ),
        pytest.param(
            {"spec.traffic": RATE},
            Sizing(
                26,
                "Traffic",
                "80 sequences (240 requests per minute × 800 output tokens ÷ 40 per second) × 107 pages (6800 tokens) "
                "÷ (455 pages per replica × 75%) = 26 replicas",
                26,
            ),
            id="Little's law",
        ),
        pytest.param(
            {"spec.traffic": CONCURRENT, "spec.scaling": {"minReplicas": 3, "maxReplicas": 20, "targetPercent": 100}},
            Sizing(
                3,
                "MinReplicas",
                "40 sequences × 107 pages (6800 tokens) ÷ (455 pages per replica × 100%) = 10 replicas",
                10,
            ),
            id="scaling begins at its minimum and knows what the traffic needs",
        ),
    ],
)
def test_replicas_to_begin_with(
    make_service: MakeService, make_class: MakeClass, changes: dict[str, Any], expected: Sizing
) -> None:
    assert evaluate(make_service(changes), make_class()).sizing == expected


@given(st.integers(1, 10_000), st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 1_000), st.integers(1, 100))
def test_the_size_is_the_least_that_keeps_the_fill_at_or_below_the_target(
    make_service: MakeService,
    make_class: MakeClass,
    per_minute: int,
    input_tokens: int,
    output_tokens: int,
    speed: int,
    target: int,
) -> None:
    traffic = {
        "requestsPerMinute": per_minute,
        "outputTokensPerSecond": speed,
        "inputTokens": input_tokens,
        "outputTokens": output_tokens,
    }
    scaling = {"maxReplicas": 1, "targetPercent": target}
    verdict = evaluate(make_service({"spec.traffic": traffic, "spec.scaling": scaling}), make_class())
    assert verdict.plan is not None
    assert verdict.sizing is not None
    replicas = verdict.sizing.traffic_replicas
    assert replicas is not None
    sequences = max(1, -(-per_minute * output_tokens // (60 * speed)))
    pages = sequences * -(-(input_tokens + output_tokens) // 64)
    assert pages * 100 <= replicas * verdict.plan.kv.pages * target
    assert pages * 100 > (replicas - 1) * verdict.plan.kv.pages * target
