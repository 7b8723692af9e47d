"""The real model on the node that has the GPUs: budget, truth of the budget, and tokens, in 16 bits and in INT8."""

from typing import Any

import pytest
import yaml

from harness.cluster import REPOSITORY, Cluster, Object
from harness.objects import CLAIM
from harness.serving import stream_chat, wait_answers
from kvbudget.api import parse_gpu_class, parse_service
from kvbudget.checks import evaluate

EXAMPLES = REPOSITORY / "examples"
GOLDEN = "The capital of France is Paris."


def served(cluster: Cluster, namespace: str, example: str) -> tuple[Object, list[str]]:
    """Applies an example with its class and waits until it is ready; its status once the workers have measured what
    was planned, and its streamed answer."""
    cluster.kubectl("apply", "-f", str(EXAMPLES / "gpuclass.yaml"))
    service = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    service["metadata"]["namespace"] = namespace
    service["spec"]["model"]["source"]["pvc"]["claimName"] = CLAIM
    cluster.apply(service)
    cluster.kubectl("wait", "--for=condition=Ready", f"llm/{example}", "-n", namespace, "--timeout=180s", timeout_s=200)
    url = cluster.open_service(example, namespace)
    wait_answers(url)
    texts = list(stream_chat(url, "SmolLM2-135M-Instruct", "What is the capital of France?"))
    cluster.wait_condition(example, namespace, "BudgetMatchesEngine", "True", 60)
    return (cluster.get("llmservices", example, namespace) or {})["status"], texts


def kv_tokens(cluster: Cluster, namespace: str, service: str) -> float:
    """As the one worker counts them."""
    (pod,) = cluster.pods_of(service, namespace)
    return cluster.metrics(pod["metadata"]["name"], namespace)["kvbudget_kv_tokens"]


@pytest.mark.weights
def test_smollm2_answers_and_its_workers_measure_what_was_planned(cluster: Cluster, namespace: str) -> None:
    status, texts = served(cluster, namespace, "smollm2")
    assert "".join(texts) == GOLDEN
    assert len(texts) > 1

    (pod,) = cluster.pods_of("smollm2", namespace)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    budget = status["budget"]
    parts = ("weightBytes", "activationBytes", "graphBytes", "runtimeBytes", "kvBytes")
    assert int(budget["usableBytes"]) == sum(int(budget[part]) for part in parts)
    assert int(budget["kvBytes"]) == (
        (budget["pages"] + budget["reservedPages"]) * int(budget["pageBytes"]) + int(budget["remainderBytes"])
    )
    assert status["measured"]["pages"] == budget["pages"]
    assert kv_tokens(cluster, namespace, "smollm2") == budget["tokens"]


@pytest.mark.weights
def test_int8_pages_hold_almost_twice_the_tokens_and_give_the_same_answer(cluster: Cluster, namespace: str) -> None:
    status, texts = served(cluster, namespace, "smollm2-int8")
    assert "".join(texts) == GOLDEN
    budget = status["budget"]
    assert budget["precision"] == "INT8"
    assert 1.93 * planned_tokens("smollm2") <= budget["tokens"] <= 2 * planned_tokens("smollm2")
    assert status["measured"]["pages"] == budget["pages"]
    assert kv_tokens(cluster, namespace, "smollm2-int8") == budget["tokens"]


def planned_tokens(example: str) -> int:
    """KV tokens of a replica, as the planner says."""
    classes = yaml.safe_load_all((EXAMPLES / "gpuclass.yaml").read_text())
    found: dict[str, dict[str, Any]] = {each["metadata"]["name"]: each for each in classes}
    service = parse_service(yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text()))
    plan = evaluate(service, parse_gpu_class(found[service.spec.gpu.class_])).plan
    assert plan is not None
    return plan.budget.tokens
