"""The real model on the node that has the GPUs: budget, truth of the budget, and tokens."""

import pytest
import yaml

from harness.cluster import REPOSITORY, Cluster
from harness.objects import CLAIM
from harness.serving import stream_chat, wait_answers

EXAMPLE = REPOSITORY / "examples" / "smollm2.yaml"
GOLDEN = "The capital of France is Paris."


@pytest.mark.weights
def test_smollm2_answers_and_its_workers_measure_what_was_planned(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("apply", "-f", str(REPOSITORY / "examples" / "gpuclass.yaml"))
    service = yaml.safe_load(EXAMPLE.read_text())
    service["metadata"]["namespace"] = namespace
    service["spec"]["model"]["source"]["pvc"]["claimName"] = CLAIM
    cluster.apply(service)
    cluster.kubectl("wait", "--for=condition=Ready", "llm/smollm2", "-n", namespace, "--timeout=180s", timeout_s=200)

    (pod,) = cluster.pods_of("smollm2", namespace)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    url = cluster.open_service("smollm2", namespace)
    wait_answers(url)
    texts = list(stream_chat(url, "SmolLM2-135M-Instruct", "What is the capital of France?"))
    assert "".join(texts) == GOLDEN
    assert len(texts) > 1

    cluster.wait_condition("smollm2", namespace, "BudgetMatchesEngine", "True", 60)
    status = (cluster.get("llmservices", "smollm2", namespace) or {})["status"]
    budget = status["budget"]
    parts = ("weightBytes", "activationBytes", "graphBytes", "runtimeBytes", "kvBytes")
    assert int(budget["usableBytes"]) == sum(int(budget[part]) for part in parts)
    assert int(budget["kvBytes"]) == (
        (budget["pages"] + budget["reservedPages"]) * int(budget["pageBytes"]) + int(budget["remainderBytes"])
    )
    assert status["measured"]["pages"] == budget["pages"]
    assert cluster.metrics(pod["metadata"]["name"], namespace)["kvbudget_kv_tokens"] == budget["tokens"]
