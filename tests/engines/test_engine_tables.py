"""Engines' rules one by one: versions, ranks, stages, formats, refusals and verdicts."""

from dataclasses import replace
from typing import Any

import pytest

from kvbudget import budget as bundled
from kvbudget.engines import Card, EngineBudget, Settings, budget
from kvbudget.engines.bundled import bundled_budget
from kvbudget.engines.pages import layer_token_bytes
from kvbudget.engines.result import GIB, gib
from kvbudget.layers import Architecture, AttentionCache, LatentCache, uniform
from kvbudget.served import named
from kvbudget.shapes.config import from_config
from kvbudget.shapes.table import facts
from support.architectures import FULL, SLIDING, STATE, decoder

H100 = Card(name="H100", memory_bytes=gib(79.19), compute_capability=(9, 0))
LLAMA = from_config(facts("meta-llama/Meta-Llama-3.1-8B"))


def known(name: str) -> Architecture:
    return from_config(facts(name), name=name)


def vllm(shape: Architecture = LLAMA, version: str = "0.19", card: Card = H100, **told: object) -> EngineBudget:
    return budget(shape, card, "vllm", version, Settings(**told))  # type: ignore[arg-type]


def in_gib(size: int) -> float:
    return round(size / GIB, 2)


@pytest.mark.parametrize(
    ("version", "share", "activation", "line"),
    [("0.10", 0.90, 4.76, "groups"), ("0.16", 0.90, 4.76, "groups"), ("0.17", 0.90, 1.89, "groups"),
     ("0.20", 0.90, 1.89, "groups"), ("0.21", 0.90, 1.89, "concurrency"), ("0.33", 0.92, 1.89, "concurrency")],
)  # fmt: skip
def test_versions_differ_in_share_sampler_and_token_line(
    version: str, share: float, activation: float, line: str
) -> None:
    made = vllm(version=version, max_model_len=8192)
    assert made.worst.usable_bytes == pytest.approx(H100.memory_bytes * share, abs=2)
    assert in_gib(made.worst.term("activation").expected) == activation
    assert made.token_line == line


def test_graphs_are_taken_off_since_0_21_and_live_outside_before() -> None:
    old, new = vllm(version="0.19").worst, vllm(version="0.21").worst
    assert "graphs" in {t.name for t in old.outside}
    assert "graphs" in {t.name for t in new.terms}
    assert "graphs" not in {t.name for t in (*vllm(version="0.21", eager=True).worst.terms, *new.outside)}


def test_a_version_outside_the_table_is_planned_and_said() -> None:
    assert any("outside 0.10 to 0.33" in note for note in vllm(version="0.9.1").assumptions)
    with pytest.raises(ValueError, match="is no version"):
        vllm(version="latest")


def test_the_token_line_of_a_hybrid_model_changes_with_the_version_and_the_pool_does_not() -> None:
    shape = decoder([SLIDING] * 5 + [FULL])
    old, new = (vllm(shape, version, kv_cache_bytes=gib(10), max_model_len=100_000) for version in ("0.20", "0.21"))
    assert old.pages == new.pages
    assert old.kv_tokens.expected == old.pages.expected // 6 * 16
    assert new.kv_tokens.expected == int(new.max_concurrency() * 100_000)


@pytest.mark.parametrize(
    ("cache", "form", "ranks", "size"),
    [
        (FULL, "BF16", 1, 4096),
        (FULL, "BF16", 8, 512),
        (FULL, "BF16", 16, 512),
        (FULL, "FP8E4M3", 1, 2048),
        (FULL, "INT8", 1, 2048 + 8 * 8),
        (FULL, "INT4", 1, 1024 + 8 * 8),
        (FULL, "NVFP4", 1, 1024 + 8 * 16),
        (LatentCache(latent_dim=512, rope_dim=64), "BF16", 8, 1152),
        (LatentCache(latent_dim=512, rope_dim=64), "FP8E4M3", 8, 576),
        (LatentCache(latent_dim=512, rope_dim=64), "NVFP4", 1, 352),
        (LatentCache(latent_dim=512, rope_dim=64, index_dim=128), "FP8E4M3", 1, 656 + 132),
        (LatentCache(latent_dim=512, rope_dim=64, index_dim=128), "BF16", 1, 1152 + 132),
        (AttentionCache(kv_heads=4, head_dim=192, v_head_dim=128), "BF16", 1, 4 * 320 * 2),
        (AttentionCache(kv_heads=4, head_dim=128, v_head_dim=128, index_dim=64), "BF16", 4, 512 + 128),
        (STATE, "BF16", 1, 0),
    ],
)
def test_bytes_of_one_token_in_one_layer(cache: AttentionCache, form: str, ranks: int, size: int) -> None:
    assert layer_token_bytes(cache, form, tensor_parallel=ranks) == size


def test_fp32_weights_mean_fp32_kv_and_a_checkpoint_may_ask_for_fp8() -> None:
    assert vllm(replace(LLAMA, dtype="FP32")).kv_bytes_per_token == 2 * vllm().kv_bytes_per_token
    assert vllm(replace(LLAMA, kv_dtype="FP8E4M3")).kv_precision == "FP8E4M3"
    assert vllm(replace(LLAMA, kv_dtype="FP8E4M3"), kv_format="BF16").kv_precision == "BF16"


def test_a_latent_is_whole_on_every_rank_and_context_parallelism_multiplies_its_tokens() -> None:
    shape = known("deepseek-ai/DeepSeek-V3")
    one, eight = (
        vllm(shape, tensor_parallel=8, kv_format="BF16", kv_cache_bytes=gib(46.8), context_parallel=n) for n in (1, 8)
    )
    assert one.kv_bytes_per_token == 61 * 576 * 2 == 70272
    assert eight.kv_tokens.expected == 8 * one.kv_tokens.expected
    assert eight.kv_bytes_per_token == 70272 / 8


def test_pipeline_stages_the_last_decides_where_the_sampler_lives() -> None:
    """vLLM 0.19 logged 2,257,264 tokens for Llama-3.1-8B on four stages; the first alone would hold more."""
    made = vllm(memory_fraction=0.95, pipeline_parallel=4, max_model_len=8192)
    assert made.worst.stage == 3
    assert made.kv_tokens.expected == pytest.approx(2_257_264, rel=0.005)
    assert [in_gib(s.term("weights").expected) for s in made.stages] == [4.26, 3.28, 3.28, 4.26]
    assert in_gib(made.stages[1].term("activation").expected) == 1.03


def test_an_uneven_partition_is_decided_by_the_stage_with_more_layers() -> None:
    shape = known("Qwen/Qwen3-30B-A3B")
    made = vllm(shape, pipeline_parallel=2, stage_layers=(16, 32), kv_cache_bytes=gib(3.18))
    assert [s.layers for s in made.stages] == [16, 32]
    assert made.worst.stage == 1
    assert made.kv_bytes_per_token == 32 * 2048


def test_draft_layers_keep_kv_only_where_speculation_is_on() -> None:
    shape = known("deepseek-ai/DeepSeek-V3")
    assert shape.drafts is not None
    plain, drafted = vllm(shape, kv_format="BF16"), vllm(shape, kv_format="BF16", draft_tokens=1)
    assert drafted.kv_bytes_per_token == plain.kv_bytes_per_token * 62 / 61


@pytest.mark.parametrize(
    ("shape", "told", "reason"),
    [
        (LLAMA, {"tensor_parallel": 3}, "does not divide the 32 attention heads"),
        (LLAMA, {"pipeline_parallel": 33}, "more than the 32 layers"),
        (LLAMA, {"pipeline_parallel": 10**12}, "more than the 32 layers"),
        (decoder([FULL], vocab=151936, heads=40), {"tensor_parallel": 5}, "neither divides the 8 KV heads"),
        (decoder([AttentionCache(kv_heads=5, head_dim=64, v_head_dim=64)], vocab=151936, heads=40),
         {"tensor_parallel": 5}, "does not divide the padded vocabulary of 151936"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_what_cannot_be_split_is_refused(engine: str, shape: Architecture, told: dict[str, int], reason: str) -> None:
    made = budget(shape, H100, engine, None, Settings(**told))  # type: ignore[arg-type]
    assert (made.verdict, reason in made.reason) == ("refused", True), made.reason


def test_too_little_memory_names_need_and_pool() -> None:
    made = vllm(card=Card(name="L4", memory_bytes=gib(21.95)), max_model_len=131072)
    assert made.verdict == "KV too small"
    assert made.reason.startswith("one request of 131072 tokens needs 8192 pages (16.00 GiB); there are ")
    assert made.longest_len() < 131072
    assert (
        vllm(card=Card(name="L4", memory_bytes=gib(21.95)), max_model_len=made.longest_len()).verdict != "KV too small"
    )


@pytest.mark.parametrize(
    ("share", "ranks", "verdict"), [(0.90, 1, "fits"), (0.95, 1, "at risk"), (0.95, 2, "at risk"), (0.90, 2, "fits")]
)
def test_gpt_oss_is_at_risk_where_the_share_leaves_its_unpacking_no_room(
    share: float, ranks: int, verdict: str
) -> None:
    made = vllm(known("openai/gpt-oss-20b"), memory_fraction=share, tensor_parallel=ranks, max_model_len=8192)
    assert made.verdict == verdict
    assert ("outside the engine's share" in made.reason) == (verdict == "at risk")


@pytest.mark.parametrize("share", [0.90, 0.95])
def test_large_vocabularies_alone_are_no_risk(share: float) -> None:
    for name in ("google/gemma-2-27b-it", "google/gemma-3-12b-it", "meta-llama/Meta-Llama-3.1-8B"):
        assert vllm(known(name), memory_fraction=share, max_model_len=8192).verdict == "fits"


def test_a_pool_that_only_the_expected_end_fills_is_at_risk() -> None:
    made = vllm(memory_fraction=0.95, max_model_len=8192)
    between = (made.pages.low + made.pages.expected) // 2
    told = Settings(memory_fraction=0.95, max_model_len=between * 16)
    assert budget(replace(LLAMA, max_position_embeddings=None), H100, "vllm", "0.19", told).verdict == "at risk"


def test_sglang_counts_a_share_of_what_was_free_weights_included() -> None:
    """SGLang logged 63.72 - 0.12 * 78.81 = 54.26 GiB and 444,500 tokens."""
    card = Card(name="H100 (free)", memory_bytes=gib(78.81))
    told = Settings(memory_fraction=0.88, weight_bytes=(gib(15.09),), max_model_len=131072)
    made = budget(LLAMA, card, "sglang", "0.4.1", told)
    assert in_gib(made.worst.kv.expected) == 54.26
    assert made.kv_tokens.expected == pytest.approx(444_500, rel=1e-3)


def test_sglang_fails_with_a_lower_fraction_where_weights_are_big() -> None:
    shape = known("meta-llama/Meta-Llama-3.1-70B")
    card = Card(name="GB10", memory_bytes=gib(179))
    high, low = (
        budget(shape, card, "sglang", None, Settings(memory_fraction=f, max_model_len=1024)) for f in (0.9, 0.3)
    )
    assert (high.verdict, low.verdict) == ("fits", "KV too small")
    assert low.worst.kv.expected < 0


def test_sglang_counts_windowed_layers_by_their_share_and_compressed_ones_by_what_they_keep() -> None:
    shape = decoder([SLIDING] * 5 + [FULL])
    made = budget(shape, H100, "sglang", None, Settings(memory_fraction=0.8))
    assert made.kv_bytes_per_token == 4096 + 0.8 * 5 * 4096
    pro = known("deepseek-ai/DeepSeek-V4-Pro")
    told = Settings(memory_fraction=0.9, mlp_ranks=8)
    v4 = budget(pro, Card(name="B300", memory_bytes=gib(268)), "sglang", None, told)
    assert v4.kv_bytes_per_token == pytest.approx(23749.84, rel=1e-4)


def test_tensorrt_llm_takes_a_share_of_what_is_free() -> None:
    told = Settings(memory_fraction=0.85, weight_bytes=(gib(60),), max_model_len=4096)
    stage = budget(LLAMA, Card(name="H200", memory_bytes=gib(139.81)), "tensorrt_llm", "1.0", told).worst
    free = stage.memory_bytes - sum(
        stage.term(n).expected for n in ("weights", "activation", "runtime", "reserve", "nccl")
    )
    assert stage.kv.expected == pytest.approx(free * 0.85, abs=2)
    assert stage.pool.groups[0].block_tokens == 32
    assert budget(LLAMA, H100, "tensorrt_llm", "0.8", told).worst.pool.groups[0].block_tokens == 64


def test_measured_weights_replace_the_prediction_and_a_given_pool_the_whole_budget() -> None:
    stage = vllm(weight_bytes=(gib(20),)).worst
    assert stage.term("weights").low == stage.term("weights").high == gib(20)
    given = vllm(kv_cache_bytes=gib(5))
    assert given.worst.kv.low == given.worst.kv.expected == given.worst.kv.high == gib(5)
    assert given.pages.expected == 5 * GIB // (16 * 131072)


def test_gemma_3_states_its_stretched_length_and_engines_make_rotary_tables_for_eight_times_it() -> None:
    """vLLM logged weights of 8.58 GiB for gemma-3-4b-it, whose checkpoint has 8.01."""
    shape = known("google/gemma-3-4b-it")
    assert (shape.max_position_embeddings, shape.rotary_positions) == (131072, 8 * 131072)
    assert in_gib(vllm(shape).worst.term("weights").expected) == pytest.approx(8.58, rel=0.01)


def test_quantised_weights_are_smaller_and_kv_is_not() -> None:
    eight = replace(LLAMA, weights=uniform("FP8", 8000))
    assert in_gib(vllm(eight).worst.term("weights").expected) == 8.49
    assert vllm(eight).kv_bytes_per_token == vllm().kv_bytes_per_token


def test_the_bundled_budget_is_that_of_the_operator_to_the_byte() -> None:
    shape = named("meta-llama/Llama-3.1-8B")
    for fraction, ranks, stages in ((0.9, 1, 1), (0.85, 2, 1), (0.9, 1, 4)):
        told = Settings(memory_fraction=fraction, tensor_parallel=ranks, pipeline_parallel=stages, max_model_len=8192)
        own = bundled.compute(bundled.BudgetInput(
            shape=shape, memory_bytes=gib(79), memory_percent=round(100 * fraction), device="gpu", kv_precision="BF16",
            weight_precision="BF16", page_tokens=64, tensor_parallel=ranks, pipeline_parallel=stages,
            max_batched_tokens=2048, max_sequences=256,
        ))  # fmt: skip
        made = bundled_budget(shape, Card(name="any", memory_bytes=gib(79)), told)
        assert made.grantable_pages.expected == own.pages
        assert [s.kv.expected for s in made.stages] == [s.kv_bytes for s in own.stages]
        assert made.max_concurrency(8192) >= own.sequences(8192)


def test_the_bundled_worker_serves_dense_decoders_alone() -> None:
    with pytest.raises(ValueError, match="dense decoders"):
        budget(known("google/gemma-2-27b-it"), H100, "bundled", None, Settings())
    with pytest.raises(ValueError, match="is not an engine"):
        budget(LLAMA, H100, "ollama", None, Settings())
    assert budget(LLAMA, H100, "bundled", None, Settings(max_model_len=8192)).verdict == "fits"
    assert budget(LLAMA, H100, "bundled", None, Settings(pipeline_parallel=10**12)).verdict == "refused"


@pytest.mark.parametrize(
    ("told", "experts"),
    [
        ({"data_parallel": 8, "expert_parallel": True}, 32.0),
        ({"data_parallel": 8}, 32.0),
        ({"tensor_parallel": 2, "data_parallel": 4, "expert_parallel": True}, 32.0),
        ({"data_parallel": 3, "expert_parallel": True}, 86.0),  # 85 1/3, whole ones
        ({"data_parallel": 3}, 256 / 3),
        ({"tensor_parallel": 8, "expert_parallel": True}, 32.0),
    ],
)
def test_copies_share_the_experts_and_nothing_else(told: dict[str, Any], experts: float) -> None:
    """DeepSeek-V3: 58 layers of 256 experts of 3 x 7168 x 2048 in 8 bits; the rest is that of its tensor ranks."""
    shape = known("deepseek-ai/DeepSeek-V3")
    ranks = told.get("tensor_parallel", 1)
    plain, dealt = vllm(shape, tensor_parallel=ranks).worst, vllm(shape, **told).worst
    away = plain.term("weights").expected - dealt.term("weights").expected
    assert away == pytest.approx(58 * (256 / ranks - experts) * 3 * 7168 * 2048 * 8.002 / 8, rel=1e-3, abs=2**20)
    assert dealt.pool.page_bytes == plain.pool.page_bytes == 16 * 70272


def test_copies_of_a_dense_model_are_replicas() -> None:
    one, two = vllm(), vllm(data_parallel=2)
    assert one.stages == two.stages
    assert not any("all-to-all" in note for note in two.assumptions)
    moe = vllm(known("Qwen/Qwen3-30B-A3B"), data_parallel=2)
    assert any("all-to-all" in note for note in moe.assumptions)
