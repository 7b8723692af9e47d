"""The examples are valid, fit together, and show what their comments say."""

from pathlib import Path
from typing import Any

import yaml

from kvbudget.api import parse_gpu_class, parse_service
from kvbudget.checks import Verdict, evaluate

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def objects(kind: str) -> dict[str, dict[str, Any]]:
    """Objects of all examples of one kind, by name."""
    found = [each for path in sorted(EXAMPLES.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def verdict(service: str) -> Verdict:
    parsed = parse_service(objects("LLMService")[service])
    return evaluate(parsed, parse_gpu_class(objects("GPUClass")[parsed.spec.gpu.class_]))


def test_smollm2_fits_with_a_pool_of_about_twenty_thousand_tokens() -> None:
    found = verdict("smollm2")
    assert found.errors == ()
    assert found.warnings == ()
    assert found.plan is not None
    assert 19_500 <= found.plan.budget.tokens <= 20_500


def test_smollm2_in_int8_has_almost_twice_the_tokens_of_the_same_memory() -> None:
    wide, narrow = verdict("smollm2").plan, verdict("smollm2-int8").plan
    assert wide is not None
    assert narrow is not None
    assert (wide.kv.precision, narrow.kv.precision) == ("BF16", "INT8")
    assert narrow.budget.kv_bytes == wide.budget.kv_bytes
    assert (wide.kv.page_bytes, narrow.kv.page_bytes) == (64 * 30 * 3 * 64 * 2 * 2, 64 * 30 * 3 * (64 * 2 + 4))
    assert 1.93 * wide.budget.tokens <= narrow.budget.tokens <= 2 * wide.budget.tokens


def test_impossible_is_refused_with_its_arithmetic_and_what_would_fit() -> None:
    (error,) = verdict("impossible").errors
    assert error.path == "spec.maxModelLen"
    assert error.message.startswith("131072 tokens need")
    assert "Fits: maxModelLen ≤" in error.message


def test_smollm2_and_its_volume_name_each_other() -> None:
    service = objects("LLMService")["smollm2"]
    (claim,) = objects("PersistentVolumeClaim").values()
    (volume,) = objects("PersistentVolume").values()
    (namespace,) = objects("Namespace").values()
    place = claim["metadata"]["namespace"]
    assert service["metadata"]["namespace"] == place == namespace["metadata"]["name"]
    assert service["spec"]["model"]["source"]["pvc"]["claimName"] == claim["metadata"]["name"]
    assert volume["spec"]["claimRef"] == {"namespace": place, "name": claim["metadata"]["name"]}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
