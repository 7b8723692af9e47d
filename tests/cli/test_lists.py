"""``kvbudget explain``, ``models`` and ``gpus``."""

import pytest

from kvbudget.gpu import CATALOGUE
from kvbudget.shapes.table import known_names
from support.commands import Data, Run

EXPLAINED = {
    "gqa": ("Qwen/Qwen3-8B", [("full", 36, 147456, None, 0)]),
    "window": ("google/gemma-3-27b-it", [("sliding", 52, 425984, 1024, 0), ("full", 10, 81920, None, 0)]),
    "latent": ("deepseek-ai/DeepSeek-V3", [("mla", 61, 70272, None, 0)]),
    "states": ("Qwen/Qwen3.6-27B", [("gdn", 48, 0, None, 153944064), ("full", 16, 65536, None, 0)]),
}


@pytest.mark.parametrize(("model", "groups"), EXPLAINED.values(), ids=EXPLAINED)
def test_a_model_is_explained_group_by_group(
    data: Data, model: str, groups: list[tuple[str, int, int, int | None, int]]
) -> None:
    found = data("explain", "explain", model)["groups"]
    keys = ("kind", "layers", "bytesPerToken", "boundTokens", "stateBytes")
    assert [tuple(group[key] for key in keys) for group in found] == groups


def test_a_window_bounds_what_a_long_sequence_keeps(data: Data) -> None:
    """52 layers keep 1024 tokens of 8192 B, 10 keep all 131072."""
    found = data("explain", "explain", "google/gemma-3-27b-it", "--context", "131072")
    assert found["sequences"] == [{"tokens": 131072, "bytes": (52 * 1024 + 10 * 131072) * 8192}]


def test_ranks_and_precision_halve_the_bytes_until_heads_are_replicated(data: Data) -> None:
    def size(*options: str) -> int:
        group = data("explain", "explain", "Qwen/Qwen3-8B", *options)["groups"][0]
        return int(group["bytesPerToken"])

    whole = size()
    assert (size("--tp", "2") * 2, size("--kv-precision", "fp8") * 2, size("--tp", "8") * 8) == (whole,) * 3
    assert size("--tp", "16") == size("--tp", "8")


def test_the_kind_of_attention_and_the_states_are_named(run: Run) -> None:
    text = run("explain", "Qwen/Qwen3.6-27B").stdout
    assert "GQA: 24 query, 4 KV of 256" in text
    assert "146.81 MiB" in text


def test_every_known_model_is_listed_and_a_word_or_a_kind_narrows(data: Data) -> None:
    assert [m["name"] for m in data("models", "models")["models"]] == list(known_names())
    some = data("models", "models", "deepseek", "--kind", "mla-dsa")["models"]
    assert {m["name"] for m in some} >= {"deepseek-ai/DeepSeek-V3.2"}
    assert all("deepseek" in m["name"].lower() and "mla-dsa" in m["kind"] for m in some)


def test_every_gpu_is_listed_and_may_be_narrowed(data: Data, run: Run) -> None:
    assert [g["name"] for g in data("gpus", "gpus")["gpus"]] == list(CATALOGUE)
    large = data("gpus", "gpus", "--min-memory", "100", "--kv-precision", "nvfp4")["gpus"]
    assert "b200-180gb" in {g["name"] for g in large}
    assert "h200-141gb" not in {g["name"] for g in large}
    assert "l4-24gb" in {g["name"] for g in data("gpus", "gpus", "NVIDIA-L4")["gpus"]}
    assert "h100-80gb-mig-3g.40gb" in run("gpus", "h100", "--mig").stdout


def test_a_list_without_a_match_says_so(run: Run) -> None:
    for name in ("models", "gpus"):
        result = run(name, "no such thing")
        assert result.exit_code == 0
        assert "listed" in result.stderr
