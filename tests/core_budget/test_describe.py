"""What ``models``, ``gpus`` and ``explain`` show."""

import json
from dataclasses import asdict

import pytest

from kvbudget import describe
from kvbudget.shapes.config import from_config
from kvbudget.shapes.table import facts, known_names


def rows(name: str, **told: int) -> tuple[describe.GroupRow, ...]:
    return describe.groups_of(from_config(facts(name), name), "BF16", **told)


def test_every_known_model_has_a_row_that_json_can_hold() -> None:
    found = list(describe.models())
    assert [row.name for row in found] == list(known_names())
    json.dumps([asdict(row) for row in found])
    assert all(row.parameters > 10**8 and row.weight_bytes > 10**8 for row in found)
    assert all(row.bytes_per_token + row.window_bytes_per_token + row.bytes_per_sequence > 0 for row in found)


def test_every_gpu_has_a_row_that_json_can_hold() -> None:
    found = list(describe.gpus())
    json.dumps([asdict(row) for row in found])
    assert [row.memory_low_bytes for row in found] == sorted(row.memory_low_bytes for row in found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", [("full", 32, "0-31", "8 KV heads of 128", 131072, 0, None)]),
        (
            "google/gemma-3-27b-it",
            [
                ("sliding", 52, None, "16 KV heads of 128, last 1024 tokens", 425984, 0, 1024),
                ("full", 10, "5, 11, … 59", "16 KV heads of 128", 81920, 0, None),
            ],
        ),
        ("deepseek-ai/DeepSeek-V3", [("mla", 61, "0-60", "latent of 512+64, whole on every rank", 70272, 0, None)]),
        (
            "zai-org/GLM-5",
            [("mla-dsa", 78, "0-77", "latent of 512+64, whole on every rank, indexer key of 128", 100152, 0, None)],
        ),
        (
            "Qwen/Qwen3.5-27B",
            [
                ("gdn", 48, None, "48 heads of 16384 FP32, convolution over 4", 0, 153944064, None),
                ("full", 16, "3, 7, … 63", "4 KV heads of 256", 65536, 0, None),
            ],
        ),
    ],
)
def test_groups_say_kind_heads_and_bytes(name: str, expected: list[tuple[object, ...]]) -> None:
    found = [
        (r.kind, r.layers, r.indices, r.detail, r.bytes_per_token, r.bytes_per_sequence, r.bounded_tokens)
        for r in rows(name)
    ]
    assert [row[:2] + row[3:] for row in found] == [row[:2] + row[3:] for row in expected]
    assert [row[2] for row, told in zip(found, expected, strict=True) if told[2]] == [t[2] for t in expected if t[2]]


def test_ranks_share_what_can_be_shared() -> None:
    one, four = rows("Qwen/Qwen3.5-27B"), rows("Qwen/Qwen3.5-27B", tensor_parallel=4)
    assert [4 * row.bytes_per_token for row in four] == [row.bytes_per_token for row in one]
    assert [4 * row.bytes_per_sequence for row in four] == [row.bytes_per_sequence for row in one]


def test_a_checkpoints_own_kv_precision_is_used() -> None:
    shape = from_config(facts("nvidia/Qwen3.6-27B-NVFP4"))
    assert describe.kv_precision(shape) == "FP8E4M3"
    assert describe.describe("x", shape).bytes_per_token == 65536 // 2
