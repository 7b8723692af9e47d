"""Counted parameters equal the published numbers; weight bytes per rank are those that engines log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget import parameters
from kvbudget.served import named
from kvbudget.shape import ModelShape

GIB = 2**30


def shape(
    layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, head_dim: int, vocab: int, *, tied: bool = False
) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden_size=hidden,
        intermediate_size=ffn,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        max_position_embeddings=4096,
        tied_embeddings=tied,
    )


EXACT = {
    "Llama-3.1-8B": (shape(32, 4096, 14336, 32, 8, 128, 128256), 8_030_261_248),
    "Llama-3.1-70B": (shape(80, 8192, 28672, 64, 8, 128, 128256), 70_553_706_496),
    "Llama-3.1-405B": (shape(126, 16384, 53248, 128, 8, 128, 128256), 405_853_388_800),
    "Llama-3.2-1B": (shape(16, 2048, 8192, 32, 8, 64, 128256, tied=True), 1_235_814_400),
    "Llama-3.2-3B": (shape(28, 3072, 8192, 24, 8, 128, 128256, tied=True), 3_212_749_824),
    "Mistral-7B-v0.3": (shape(32, 4096, 14336, 32, 8, 128, 32768), 7_248_023_552),
    "TinyLlama-1.1B": (shape(22, 2048, 5632, 32, 4, 64, 32000), 1_100_048_384),
    "SmolLM2-135M": (shape(30, 576, 1536, 9, 3, 64, 49152, tied=True), 134_515_008),
    "SmolLM2-1.7B": (shape(24, 2048, 8192, 32, 32, 64, 49152, tied=True), 1_711_376_384),
}


@pytest.mark.parametrize(("model", "expected"), EXACT.values(), ids=EXACT)
def test_parameters_are_exactly_the_published_number(model: ModelShape, expected: int) -> None:
    assert parameters.count(model).total == expected


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param(shape(28, 3584, 18944, 28, 4, 128, 152064), 7_615_616_512, id="Qwen2.5-7B has biases"),
        pytest.param(shape(64, 5120, 25600, 64, 8, 128, 151936), 32_762_123_264, id="Qwen3-32B has query norms"),
    ],
)
def test_what_is_not_counted_is_below_a_hundredth_of_a_percent(model: ModelShape, expected: int) -> None:
    assert 0 < expected - parameters.count(model).total < expected // 10_000


# What vLLM 0.19 logged on H100, in GiB.
@pytest.mark.parametrize(
    ("name", "precision", "ranks", "logged_gib"),
    [
        ("meta-llama/Llama-3.1-8B", "BF16", 1, 14.99),
        ("meta-llama/Llama-3.1-8B", "BF16", 2, 7.51),
        ("meta-llama/Llama-3.1-8B", "BF16", 4, 3.77),
        ("Qwen/Qwen2.5-7B", "BF16", 1, 14.25),
        ("Qwen/Qwen2.5-7B", "BF16", 2, 7.12),
        ("Qwen/Qwen2.5-7B", "BF16", 4, 3.55),
        ("meta-llama/Llama-3.1-70B", "FP8", 2, 33.88),
        ("meta-llama/Llama-3.1-70B", "FP8", 4, 16.96),
    ],
)
def test_weights_per_rank_are_within_one_percent_of_the_log(
    name: str, precision: str, ranks: int, logged_gib: float
) -> None:
    predicted = parameters.weight_bytes(named(name), precision, tensor_parallel=ranks)
    assert predicted / GIB == pytest.approx(logged_gib, rel=0.01)


@pytest.mark.parametrize(("stage", "logged_gib"), [(0, 4.26), (1, 3.28), (2, 3.28), (3, 4.26)])
def test_weights_per_stage_are_within_one_percent_of_the_log(stage: int, logged_gib: float) -> None:
    model = named("meta-llama/Llama-3.1-8B")
    predicted = parameters.weight_bytes(model, "BF16", pipeline_parallel=4, stage=stage)
    assert predicted / GIB == pytest.approx(logged_gib, rel=0.01)


def test_int4_is_within_one_percent_of_a_real_awq_checkpoint() -> None:
    qwen3_8b = shape(36, 4096, 12288, 32, 8, 128, 151936)
    assert parameters.weight_bytes(qwen3_8b, "INT4") / GIB == pytest.approx(5.68, rel=0.01)


def test_tied_embeddings_lie_on_the_first_and_on_the_last_stage() -> None:
    model = named("SmolLM2-135M-Instruct")
    table = model.vocab_size * model.hidden_size
    stages = [parameters.count(model, pipeline_parallel=3, stage=stage).total for stage in range(3)]
    ten_layers, last_norm = stages[1], model.hidden_size
    assert stages == [table + ten_layers, ten_layers, table + ten_layers + last_norm]


@pytest.mark.parametrize(
    ("weight_bytes", "precision", "used"),
    [
        pytest.param(16_060_522_496 + 12345, "BF16", True, id="checkpoint of this precision"),
        pytest.param(16_060_522_496, "FP8", False, id="checkpoint twice as large"),
        pytest.param(5_000_000_000, "BF16", False, id="checkpoint of four bits"),
        pytest.param(9_080_000_000, "FP8", True, id="FP8 checkpoint"),
        pytest.param(None, "BF16", False, id="unknown"),
    ],
)
def test_the_checkpoints_bytes_are_used_only_for_the_precision_that_they_can_be(
    weight_bytes: int | None, precision: str, used: bool
) -> None:
    model = EXACT["Llama-3.1-8B"][0].model_copy(update={"weight_bytes": weight_bytes})
    counted = parameters.count(model).bytes_at(precision)
    assert parameters.weight_bytes(model, precision) == (weight_bytes if used else counted)


@given(st.sampled_from(sorted(EXACT)), st.sampled_from(parameters.WEIGHT_PRECISIONS), st.integers(1, 32))
def test_more_ranks_never_make_a_rank_hold_more(name: str, precision: str, ranks: int) -> None:
    model = EXACT[name][0]
    fewer = parameters.weight_bytes(model, precision, tensor_parallel=ranks)
    more = parameters.weight_bytes(model, precision, tensor_parallel=ranks + 1)
    assert more <= fewer
    assert fewer * ranks >= parameters.weight_bytes(model, precision)
