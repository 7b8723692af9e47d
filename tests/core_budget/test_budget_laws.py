"""Laws of the budget: terms add up exactly, more memory never hurts, the worst stage decides."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from kvbudget import budget as b
from kvbudget import layout, parameters
from kvbudget.budget import Budget, BudgetInput
from kvbudget.served import named, served_names
from kvbudget.shape import ModelShape

GIB = 2**30
LLAMA = named("meta-llama/Llama-3.1-8B")


def shape(layers: int, kv: int, group: int, dim: int, vocab: int, ffn: int, tied: bool) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden_size=kv * group * dim,
        intermediate_size=ffn,
        attention_heads=kv * group,
        kv_heads=kv,
        head_dim=dim,
        vocab_size=vocab,
        max_position_embeddings=8192,
        tied_embeddings=tied,
    )


SHAPES = st.sampled_from(served_names()).map(named) | st.builds(
    shape,
    st.integers(1, 80),
    st.integers(1, 16),
    st.integers(1, 12),
    st.sampled_from([16, 64, 80, 128]),
    st.integers(1, 300_000),
    st.integers(1, 40_000),
    st.booleans(),
)
INPUTS = st.builds(
    BudgetInput,
    shape=SHAPES,
    memory_bytes=st.integers(1, 300 * GIB),
    memory_percent=st.integers(1, 100),
    device=st.sampled_from(["cpu", "gpu"]),
    kv_precision=st.sampled_from(layout.KV_PRECISIONS),
    weight_precision=st.sampled_from(parameters.WEIGHT_PRECISIONS),
    page_tokens=st.sampled_from([16, 32, 64, 128]),
    tensor_parallel=st.integers(1, 16),
    pipeline_parallel=st.integers(1, 8),
    max_batched_tokens=st.integers(16, 20_000),
    max_sequences=st.integers(1, 1024),
).filter(lambda i: i.pipeline_parallel <= i.shape.layers)


def llama_on(memory_bytes: int, **changes: object) -> Budget:
    inputs = BudgetInput(
        shape=LLAMA,
        memory_bytes=memory_bytes,
        memory_percent=90,
        device="gpu",
        kv_precision="BF16",
        weight_precision="BF16",
        page_tokens=64,
        tensor_parallel=1,
        pipeline_parallel=1,
        max_batched_tokens=2048,
        max_sequences=256,
    )
    return b.compute(replace(inputs, **changes))  # type: ignore[arg-type]


@given(INPUTS)
def test_terms_add_up_exactly_on_every_stage(inputs: BudgetInput) -> None:
    budget = b.compute(inputs)
    assert budget.usable_bytes == inputs.memory_bytes * inputs.memory_percent // 100
    assert budget.usable_bytes + budget.headroom_bytes == inputs.memory_bytes
    for s in budget.stages:
        parts = s.weight_bytes + s.activation_bytes + s.graph_bytes + s.runtime_bytes + s.kv_bytes
        assert parts == budget.usable_bytes
        assert s.kv_bytes == (s.pages + s.reserved_pages) * s.page_bytes + s.remainder_bytes
        assert s.pages >= 0
        if s.kv_bytes >= s.page_bytes:
            assert s.reserved_pages == 1
            assert 0 <= s.remainder_bytes < s.page_bytes
        else:
            assert (s.pages, s.reserved_pages) == (0, 0)


@given(INPUTS, st.integers(0, 300 * GIB))
def test_more_memory_never_gives_fewer_tokens(inputs: BudgetInput, more: int) -> None:
    larger = replace(inputs, memory_bytes=inputs.memory_bytes + more)
    assert b.compute(larger).tokens >= b.compute(inputs).tokens


@given(INPUTS)
def test_a_larger_share_never_gives_fewer_tokens(inputs: BudgetInput) -> None:
    assume(inputs.memory_percent < 100)
    assert b.compute(replace(inputs, memory_percent=inputs.memory_percent + 1)).tokens >= b.compute(inputs).tokens


@given(INPUTS, st.integers(1, 100_000), st.integers(0, GIB))
def test_halving_the_bytes_of_a_page_gives_twice_the_pages_and_one_or_two(
    inputs: BudgetInput, tokens: int, more: int
) -> None:
    one_stage = replace(inputs, kv_precision="FP16", pipeline_parallel=1)
    enough = replace(one_stage, memory_bytes=b.compute(one_stage).memory_to_hold(tokens) + more)
    whole, half = b.compute(enough), b.compute(replace(enough, kv_precision="FP8E4M3"))
    assert half.worst.page_bytes * 2 == whole.worst.page_bytes
    assert half.pages - 2 * whole.pages in (1, 2)


@given(INPUTS)
def test_the_stage_with_the_fewest_pages_decides(inputs: BudgetInput) -> None:
    budget = b.compute(inputs)
    assert budget.pages == min(s.pages for s in budget.stages)
    assert budget.tokens == budget.pages * inputs.page_tokens
    assert budget.tokens % inputs.page_tokens == 0


@given(INPUTS, st.integers(1, 200_000))
def test_the_memory_said_to_hold_a_sequence_holds_it_and_one_byte_of_usable_less_does_not(
    inputs: BudgetInput, tokens: int
) -> None:
    needed = b.compute(inputs).memory_to_hold(tokens)
    assert b.compute(replace(inputs, memory_bytes=needed)).holds(tokens)
    assert not b.compute(replace(inputs, memory_bytes=needed - 1)).holds(tokens)


@given(INPUTS)
def test_the_budget_is_a_function_of_its_inputs(inputs: BudgetInput) -> None:
    assert b.compute(inputs) == b.compute(inputs)


@given(INPUTS, st.integers(1, 100_000))
def test_sequences_at_once_are_those_whose_pages_fit(inputs: BudgetInput, tokens: int) -> None:
    budget = b.compute(inputs)
    count, pages = budget.sequences(tokens), budget.pages_for(tokens)
    assert count * pages <= budget.pages < (count + 1) * pages
    assert budget.holds(tokens) == (count >= 1)


def test_the_last_stage_decides_where_the_sampler_weighs_more_than_a_layer() -> None:
    budget = llama_on(80 * GIB, pipeline_parallel=4, max_sequences=1024)
    assert [s.sampler_bytes > 0 for s in budget.stages] == [False, False, False, True]
    assert budget.worst.stage == 3


def test_an_uneven_split_is_decided_by_the_stage_with_more_layers() -> None:
    uneven = b.compute(replace(llama_on(80 * GIB).inputs, shape=LLAMA.model_copy(update={"layers": 31}),
                               pipeline_parallel=2, max_sequences=1))  # fmt: skip
    assert [s.layers for s in uneven.stages] == [16, 15]
    assert uneven.worst.stage == 0


def test_nothing_fits_on_a_gpu_smaller_than_the_weights_and_the_terms_still_add_up() -> None:
    budget = llama_on(8 * GIB)
    assert budget.worst.kv_bytes < 0
    assert (budget.pages, budget.tokens, budget.worst.remainder_bytes) == (0, 0, budget.worst.kv_bytes)


def test_a_cpu_class_pays_for_neither_runtime_nor_split_workspace() -> None:
    worst = llama_on(80 * GIB, device="cpu").worst
    assert (worst.runtime_bytes, worst.split_bytes) == (0, 0)


def test_fp32_arithmetic_doubles_the_prefill() -> None:
    gpu = llama_on(80 * GIB).worst.prefill_bytes
    assert llama_on(80 * GIB, device="cpu").worst.prefill_bytes == 2 * gpu
    assert llama_on(80 * GIB, weight_precision="FP32").worst.prefill_bytes == 2 * gpu


def test_the_activation_is_the_larger_of_sampler_and_prefill() -> None:
    sampler = llama_on(80 * GIB, max_sequences=1024, max_batched_tokens=16).worst
    prefill = llama_on(80 * GIB, max_sequences=1, max_batched_tokens=8192).worst
    assert sampler.activation_bytes == 1024 * 128256 * 14 + sampler.split_bytes
    assert prefill.activation_bytes == 8192 * (3 * 14336 * 2 + 4 * 4096 * 2) + prefill.split_bytes


def test_stages_that_are_not_last_have_the_prefill_line_that_engines_log() -> None:
    """vLLM 0.19 logged 1.05 to 1.10 GiB for Llama-3.1-8B at 8192 batched tokens; the line gives 0.91."""
    stage = llama_on(80 * GIB, pipeline_parallel=4, max_batched_tokens=8192).stages[0]
    assert 0.85 * GIB < stage.prefill_bytes < 1.1 * GIB


def test_the_demo_class_holds_about_20000_tokens() -> None:
    smollm2 = named("SmolLM2-135M-Instruct")
    budget = b.compute(replace(llama_on(0).inputs, shape=smollm2, memory_bytes=1859 * 2**20))
    assert (budget.worst.page_bytes, budget.pages, budget.tokens) == (1_474_560, 313, 20_032)
