"""``kvbudget plan MODEL``: what it says is what the engines' budgets say, and every remedy that it names works."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvbudget.engines import Card, Settings, budget
from kvbudget.gpu import CATALOGUE
from kvbudget.shapes.config import from_config
from kvbudget.shapes.table import facts
from support.commands import Data, Run

QWEN = "Qwen/Qwen3-8B"
TINY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "vocab_size": 128,
}
CASES = {
    "fits": (QWEN, "h100", "fits", None),
    "too long": (QWEN, "l4", "does not fit", "RequestTooLong"),
    "many at once": (QWEN, "h100 --concurrency 100", "does not fit", "TooManyAtOnce"),
    "one at risk, many not": (
        "Qwen/Qwen3-32B",
        "h100 --max-model-len 16384 --concurrency 16",
        "does not fit",
        "TooManyAtOnce",
    ),
    "many between low and expected": (QWEN, "h100 --max-model-len 8192 --concurrency 47", "at risk", "LowEnd"),
    "weights too large": ("Qwen/Qwen3-32B", "l4 --max-model-len 2048", "does not fit", "WeightsTooLarge"),
    "no room outside": (QWEN, "h100 --engine-version 0.19 --utilization 0.995", "at risk", "NoRoomOutside"),
    "between low and expected": (QWEN, "l4 --max-model-len 16384", "at risk", "LowEnd"),
    "heads do not divide": (QWEN, "h100 --tp 3", "refused", "Refused"),
    "above the model's limit": (QWEN, "h100 --max-model-len 50000", "refused", "Refused"),
    "KV not offered": (QWEN, "a100-80gb --kv-precision fp8", "refused", "Refused"),
    "TensorRT-LLM elsewhere": (QWEN, "mi300x --engine tensorrt-llm", "refused", "Refused"),
    "hybrid": ("Qwen/Qwen3.6-27B", "h100 --max-model-len 32768", "fits", None),
    "latent on 16 GPUs": ("deepseek-ai/DeepSeek-V3", "h100 --tp 8 --pp 2 --max-model-len 32768", "fits", None),
    "sglang": (QWEN, "h100 --engine sglang", "fits", None),
    "tensorrt-llm": (QWEN, "h100 --engine tensorrt-llm", "fits", None),
    "bundled": (QWEN, "h100 --engine bundled", "fits", None),
}


@pytest.mark.parametrize(("model", "options", "verdict", "cause"), CASES.values(), ids=CASES)
def test_the_verdict_has_a_cause_and_a_code(
    data: Data, run: Run, model: str, options: str, verdict: str, cause: str | None
) -> None:
    arguments = ("plan", model, "--gpu", *options.split())
    found = data("plan", *arguments)
    assert (found["verdict"], found["fits"]) == (verdict, verdict == "fits"), found["reason"]
    assert (found["cause"] or {}).get("name") == cause
    text = run(*arguments)
    assert text.exit_code == (0 if verdict == "fits" else 1)
    assert f"\n{verdict.upper()}: {found['reason']}\n" in text.stdout


@pytest.mark.parametrize(("model", "options", "verdict", "cause"), CASES.values(), ids=CASES)
def test_every_term_is_there_and_adds_up(data: Data, model: str, options: str, verdict: str, cause: str | None) -> None:
    for stage in data("plan", "plan", model, "--gpu", *options.split())["stages"]:
        taken = sum(term["bytes"]["expected"] for term in stage["terms"])
        assert taken + stage["kvBytes"]["expected"] == stage["usableBytes"]
        pages = stage["pages"]["expected"]
        assert pages * stage["pageBytes"] + stage["remainderBytes"] == stage["kvBytes"]["expected"]
        assert all(term["source"] for term in (*stage["terms"], *stage["outside"]))


@pytest.mark.parametrize("engine", ["bundled", "vllm", "sglang", "tensorrt-llm"])
def test_the_figures_are_those_of_the_engines_budget(data: Data, engine: str) -> None:
    found = data("plan", "plan", QWEN, "--gpu", "h100-80gb", "--engine", engine, "--max-model-len", "8192")
    card = Card(name="h100-80gb", memory_bytes=CATALOGUE["h100-80gb"].memory_bytes, compute_capability=(9, 0))
    shape = from_config(facts(QWEN) or {})
    direct = budget(shape, card, engine.replace("-", "_"), None, Settings(max_model_len=8192))
    assert found["stages"][0]["kvBytes"]["low"] == direct.worst.kv.low
    assert found["capacity"]["pages"]["expected"] == direct.grantable_pages.expected
    assert found["reason"] == direct.reason


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[3]])
def test_every_remedy_that_is_said_to_fit_does(data: Data, name: str) -> None:
    model, options, _, _ = CASES[name]
    arguments = ["plan", model, "--gpu", *options.split(), "--input-tokens", "128"]
    remedies = data("plan", *arguments)["remedies"]
    assert any(remedy["fits"] for remedy in remedies)
    for remedy in remedies:
        changed = [str(part) for c in remedy["changes"] for part in (c["option"], c["value"])]
        if changed[0] == "max_tokens":
            changed = ["--max-model-len", str(128 + int(changed[1]))]
        assert data("plan", *arguments, *changed)["fits"] is remedy["fits"], remedy


def test_output_may_be_capped_instead_of_the_length(data: Data) -> None:
    arguments = ("plan", QWEN, "--gpu", "h100", "--concurrency", "32", "--input-tokens", "2000")
    remedies = {r["changes"][0]["option"]: r["changes"][0]["value"] for r in data("plan", *arguments)["remedies"]}
    assert remedies["--max-model-len"] == remedies["max_tokens"] + 2000


def test_the_lower_length_is_the_longest_that_fits(data: Data) -> None:
    arguments = ("plan", QWEN, "--gpu", "l4", "--max-model-len")
    longest = data("plan", *arguments, "32768")["remedies"][0]["changes"][0]["value"]
    assert data("plan", *arguments, str(longest))["verdict"] == "fits"
    assert data("plan", *arguments, str(longest + 1))["verdict"] == "at risk"


def test_options_reach_the_engine(data: Data) -> None:
    options = "--tp 2 --pp 2 --dp 2 --kv-precision fp8 --max-model-len 4096 --utilization 0.8"
    options += " --max-num-seqs 32 --max-batched-tokens 1024 --engine-version 0.12"
    found = data("plan", "plan", QWEN, "--gpu", "h100", *options.split())
    assert found["settings"] == {
        "tensorParallel": 2,
        "pipelineParallel": 2,
        "dataParallel": 2,
        "expertParallel": False,
        "kvPrecision": "FP8E4M3",
        "maxModelLen": 4096,
        "utilization": 0.8,
        "maxNumSeqs": 32,
        "maxBatchedTokens": 1024,
        "blockTokens": 16,
    }
    assert (found["engine"], found["gpu"]["count"]) == ({"name": "vllm", "version": "0.12"}, 8)
    assert len(found["stages"]) == 2


def test_a_folder_a_file_and_a_manifest_are_models(
    data: Data, write: Callable[..., str], service: dict[str, Any]
) -> None:
    config = write(json.dumps(TINY), "tiny/config.json")
    by_folder = data("plan", "plan", str(Path(config).parent), "--gpu", "l4")
    by_file = data("plan", "plan", config, "--gpu", "l4")
    assert by_folder["stages"] == by_file["stages"]
    assert by_file["model"]["layers"] == 2
    manifest = write([service])
    as_model = data("plan", "plan", manifest)
    as_service = data("service", "plan", "-f", manifest)
    assert as_model["engine"]["name"] == "bundled"
    assert as_model["stages"][0]["kvBytes"]["expected"] == as_service["budget"]["kvBytes"]
    assert as_model["capacity"]["pages"]["expected"] == as_service["budget"]["pages"]


def test_a_gpu_class_of_ones_own_is_a_gpu(data: Data, write: Callable[..., str], gpu_class: dict[str, Any]) -> None:
    found = data("plan", "plan", QWEN, "--gpu", "ours", "-f", write([gpu_class]))
    assert found["gpu"] == {"class": "ours", "memoryBytes": 40 * 2**30, "count": 1}


def test_a_name_without_its_organisation_is_enough_where_it_is_clear(data: Data) -> None:
    assert data("explain", "explain", "qwen3-8b")["model"]["name"] == QWEN


def test_yaml_says_the_same_as_json(run: Run, data: Data) -> None:
    arguments = ("plan", QWEN, "--gpu", "h100")
    assert yaml.safe_load(run(*arguments, "-o", "yaml").stdout) == data("plan", *arguments)


def test_the_bar_is_as_wide_as_told_and_in_proportion(run: Run) -> None:
    text = run("plan", QWEN, "--gpu", "h100").stdout
    bar = next(line for line in text.splitlines() if line.startswith("  ["))
    assert len(bar) == 98
    assert bar.count("K") == pytest.approx(94 * 54.34 / 79.19, abs=2)
    assert max(len(line) for line in text.splitlines() if line.startswith(("  GiB: ", "    eng"))) <= 100
