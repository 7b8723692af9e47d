"""The runner's facts, and what it refuses to start with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvbudget.errors import InputError, ShapeError, UnsupportedError
from kvbudget.facts import SERVED_KV
from kvbudget.layout import page_bytes
from kvbudget_kernels.storage import PRECISIONS, Layout
from kvbudget_worker.attention import PagedCache
from kvbudget_worker.batch import Chunk, SamplingParams, StepBatch
from kvbudget_worker.runner import Runner
from support.stepping import GREEDY, alone, together
from support.tinymodel import TinyModel, make_tiny_model, tiny_plan

MakeRunner = Callable[..., Runner]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("page_tokens", [16, 32, 64, 128])
def test_the_pools_real_bytes_are_the_plans(precision: str, page_tokens: int) -> None:
    model = TinyModel(kv_heads=1, head_dim=40, layers=3)
    layout = Layout.stored(precision, model.kv_heads, model.head_dim, page_tokens)
    cache = PagedCache(layout, layers=model.layers, pages=9, device=torch.device("cpu"))
    expected = page_bytes(model.shape, precision, page_tokens)
    assert sum(storage.untyped_storage().nbytes() for storage in cache.storage) == (9 + 1) * expected
    assert cache.page_bytes == expected
    # What the backends read and write is all of that, and nothing beside it (FP8's scales of a head are no page's).
    seen = [part for layer in cache.layers for part in (layer.key, layer.value, layer.scales) if part is not None]
    assert sum(part.nbytes for part in seen) == (9 + 1) * expected


def test_the_core_calls_served_what_the_worker_serves() -> None:
    assert SERVED_KV == PRECISIONS


def test_facts_are_measured(make_runner: MakeRunner) -> None:
    runner = make_runner(pages=20, page_tokens=32, precision="BF16")
    model = TinyModel()
    layer = 64 * (4 + 2 * 2) * 16 + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert runner.weight_bytes == 4 * (320 * 64 + 64 + 2 * layer)
    assert runner.page_bytes == page_bytes(model.shape, "BF16", 32)
    assert runner.pages == 20
    assert runner.device == "cpu"
    assert runner.eos_ids == (258,)
    assert 0 < runner.free_bytes < 2**48


@pytest.mark.parametrize(("precision", "width"), [("FP32", 4), ("BF16", 2), ("FP16", 2)])
def test_weights_are_held_in_the_plans_precision(precision: str, width: int, make_runner: MakeRunner) -> None:
    runner = make_runner(weight_precision=precision)
    full = make_runner(weight_precision="FP32")
    assert runner.weight_bytes * 4 == full.weight_bytes * width


def test_narrow_weights_compute_as_their_widened_selves(tmp_path: Path) -> None:
    """A bf16 checkpoint held as bf16 or as fp32: the same numbers."""
    model = TinyModel(dtype="bfloat16", family="qwen2")
    folder = make_tiny_model(tmp_path, model)
    outputs = {
        tuple(alone(Runner.load(tiny_plan(folder, model, weight_precision=p), "cpu"), [1, 2, 3], 10))
        for p in ("BF16", "FP32")
    }
    assert len(outputs) == 1


def test_a_batch_through_the_scheduler_generates_as_each_alone(make_runner: MakeRunner) -> None:
    runner = make_runner(pages=60, precision="FP32")
    prompts = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate([1, 16, 17, 40, 33, 5])]
    outputs = together(runner, prompts, 20, max_batched_tokens=24)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert [token.token_id for token in output] == alone(runner, prompt, 20)


def test_copies_happen_before_the_step(make_runner: MakeRunner) -> None:
    """A fork computes the prompt's last token in a private copy of its page, and gives the same token."""
    runner = make_runner(precision="FP32")
    prompt = tuple(range(20))
    (first,) = runner.step(StepBatch((Chunk(0, prompt, 0, (4, 5), True, GREEDY),)))
    (forked,) = runner.step(StepBatch((Chunk(1, prompt[-1:], 19, (4, 9), True, GREEDY),), copies=((5, 9),)))
    assert forked.token_id == first.token_id
    for layer in runner.cache.layers:
        for part in (layer.key, layer.value):
            assert torch.equal(part[9, :, :3], part[5, :, :3])
            torch.testing.assert_close(part[9, :, 3], part[5, :, 3])


def test_only_chunks_that_ask_for_a_token_get_one(make_runner: MakeRunner) -> None:
    runner = make_runner()
    asking = SamplingParams(temperature=0.0)
    chunks = tuple(Chunk(i, (i, i + 1), 0, (i,), i % 2 == 0, asking) for i in range(4))
    assert [result.seq_id for result in runner.step(StepBatch(chunks))] == [0, 2]
    assert runner.step(StepBatch(chunks[1:2])) == []


@pytest.mark.parametrize("field", ["layers", "hidden_size", "kv_heads", "head_dim", "vocab_size", "tied_embeddings"])
def test_weights_of_another_shape_than_the_plans_are_refused_by_fact(field: str, tiny: Path) -> None:
    plan = tiny_plan(tiny)
    shape = plan.model.shape
    wrong = shape.model_copy(update={field: not shape.tied_embeddings if field == "tied_embeddings" else 8})
    plan = plan.model_copy(update={"model": plan.model.model_copy(update={"shape": wrong})})
    with pytest.raises(ShapeError, match=rf"{tiny}: {field} is .* in the Plan.*spec\.model\.shape"):
        Runner.load(plan, "cpu")


def test_a_cache_precision_that_is_planned_but_not_served_is_refused(tiny: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"spec\.kvCache\.precision: NVFP4 is not served yet: use .*INT8, INT4"):
        Runner.load(tiny_plan(tiny, precision="NVFP4"), "cpu")
    with pytest.raises(UnsupportedError, match=r"spec\.model\.weightPrecision: INT4 is not served yet"):
        Runner.load(tiny_plan(tiny, weight_precision="INT4"), "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device is there")
def test_a_pod_with_a_device_resource_and_no_device_does_not_start_unless_told_to(tiny: Path) -> None:
    plan = tiny_plan(tiny, resource_name="nvidia.com/gpu")
    with pytest.raises(InputError, match=r"KVBUDGET_DEVICE: the pod holds nvidia\.com/gpu but no device.*=cpu"):
        Runner.load(plan, None)
    with pytest.raises(InputError, match="KVBUDGET_DEVICE: is cuda, but"):
        Runner.load(plan, "cuda")
    assert Runner.load(plan, "cpu").device == "cpu"
    assert Runner.load(tiny_plan(tiny), None).device == "cpu"


def test_an_unknown_device_is_refused(tiny: Path) -> None:
    with pytest.raises(InputError, match="'tpu' is no device: use cuda or cpu"):
        Runner.load(tiny_plan(tiny), "tpu")


def test_every_served_precision_generates(make_runner: MakeRunner) -> None:
    """Rounding the cache may flip a near tie of random weights, but never breaks the text off."""
    for precision in PRECISIONS:
        params = replace(GREEDY, temperature=0.8, seed=1)
        assert len(alone(make_runner(precision=precision), [5, 6, 7], 40, params)) == 40
