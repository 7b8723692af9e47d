"""The worker over our kernels: the same tokens as over torch, and no word where a kernel is wrong."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvbudget.errors import InputError
from kvbudget_kernels.kv_write import kv_write
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.self_check import check_decode
from kvbudget_kernels.storage import PRECISIONS, Layout, PagedKV
from kvbudget_worker.attention import AttentionBackend, PagedCache, TorchAttention, choose_backend
from kvbudget_worker.attention.choose import triton_backend
from kvbudget_worker.attention.triton_backend import TritonAttention
from kvbudget_worker.batch import Chunk, SamplingParams
from kvbudget_worker.model.parameters import load_parameters
from kvbudget_worker.runner import ChooseBackend, Runner
from kvbudget_worker.weights import open_checkpoint
from support.kernel_cases import REL_L2, rel_l2
from support.stepping import alone, together
from support.tinymodel import TinyModel, make_tiny_model, tiny_plan

CPU = torch.device("cpu")


def by_kernels(cache: PagedCache, heads: int, compute_dtype: torch.dtype) -> AttentionBackend[Any]:
    cache.layout.check_kernels()
    return triton_backend(cache, heads, compute_dtype)


def small_cache(precision: str, kv_heads: int = 1, head_dim: int = 16, pages: int = 2) -> PagedCache:
    return PagedCache(Layout.of(precision, kv_heads, head_dim, 16), layers=1, pages=pages, device=CPU)


@pytest.fixture
def runners(tmp_path: Path) -> Callable[..., tuple[Runner, Runner]]:
    """The same model over torch and over the kernels."""

    def make(model: TinyModel, **changes: Any) -> tuple[Runner, Runner]:
        plan = tiny_plan(make_tiny_model(tmp_path / "model", model), model, **changes)
        return Runner.load(plan, "cpu"), Runner.load(plan, "cpu", choose=by_kernels)

    return make


@pytest.mark.parametrize("precision", PRECISIONS)
def test_both_backends_store_the_same_bytes_and_attend_alike(precision: str) -> None:
    """Decodes and prefill chunks over scattered pages, step by step: what one backend writes the other could read."""
    heads, kv_heads, head_dim = 6, 2, 64
    generator = torch.Generator().manual_seed(0)
    caches = [small_cache(precision, kv_heads, head_dim, pages=12) for _ in range(2)]
    torchs = TorchAttention(caches[0], heads, torch.float32)
    kernels = by_kernels(caches[1], heads, torch.float32)
    params = SamplingParams(temperature=0.0)
    pages = [(7, 2, 9), (0, 11), (5, 3, 1, 8)]
    for step in ([(0, 0, 33), (1, 0, 16)], [(0, 33, 1), (1, 16, 1), (2, 0, 5)], [(2, 5, 44), (0, 34, 1)]):
        chunks = [Chunk(seq, (0,) * count, start, pages[seq], True, params) for seq, start, count in step]
        tokens = sum(count for _, _, count in step)
        query = torch.randn(tokens, heads, head_dim, generator=generator)
        key_value = torch.randn(tokens, 2, kv_heads, head_dim, generator=generator)
        want, got = (each.attend(0, query, key_value, each.plan(chunks)) for each in (torchs, kernels))
        assert torch.equal(caches[0].storage[0], caches[1].storage[0])
        assert rel_l2(got, want.double()) <= REL_L2[precision]


@pytest.mark.parametrize("precision", ["FP32", "BF16", "FP8E4M3", "INT8", "INT4"])
def test_one_sequence_gets_the_tokens_that_torch_gives(precision: str, runners: Callable[..., Any]) -> None:
    model = TinyModel(attention_heads=6, kv_heads=2, hidden_size=96)
    torchs, kernels = runners(model, precision=precision)
    prompt = [3, 141, 59, 26, 5, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79, 50, 28]
    assert alone(kernels, prompt, 6) == alone(torchs, prompt, 6)


def test_a_mixed_batch_gets_the_tokens_that_torch_gives(runners: Callable[..., Any]) -> None:
    """Prompts in chunks beside decodes, through the real scheduler, with a shared prefix."""
    torchs, kernels = runners(TinyModel(kv_heads=1, head_dim=32), precision="FP32")
    shared = list(range(40, 60))
    prompts = [[*shared, 1, 2], [*shared, 7], [9, 8, 7]]
    ours, theirs = (together(each, prompts, 3, max_batched_tokens=16) for each in (kernels, torchs))
    assert [[t.token_id for t in row] for row in ours] == [[t.token_id for t in row] for row in theirs]


@pytest.mark.weights
def test_a_real_model_gets_the_tokens_that_torch_gives() -> None:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbudget" / "weights" / "smollm2"
    if not folder.is_dir():
        pytest.fail(f"{folder} is missing: run `make weights`")
    checkpoint = open_checkpoint(folder)
    parameters = load_parameters(checkpoint, torch.float32, CPU)

    def runner(choose: ChooseBackend) -> Runner:
        return Runner(
            checkpoint.config, parameters, pages=4, page_tokens=16, precision="BF16", max_model_len=64,
            compute_dtype=torch.float32, choose=choose,
        )  # fmt: skip

    prompt = [504, 3575, 282, 4649, 314]  # "The capital of France is"
    assert alone(runner(by_kernels), prompt, 3) == alone(runner(choose_backend), prompt, 3)


def test_on_a_processor_torch_attends() -> None:
    cache = small_cache("FP32")
    assert isinstance(choose_backend(cache, 2, torch.float32), TorchAttention)
    assert isinstance(by_kernels(cache, 2, torch.float32), TritonAttention)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_check_at_start_passes_where_the_kernels_are_right(precision: str) -> None:
    dtype = torch.float32 if precision in ("FP32", "BF16") else torch.float16
    found = check_decode(Layout.of(precision, 2, 80, 16), 6, dtype, CPU)
    assert found.passed
    assert found.error > 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_check_at_start_notices_small_mistakes_of_decode_and_of_write(precision: str) -> None:
    """Out by a twentieth, the longest sequence alone, and V stored as K, or a token's neighbour in its place."""
    layout = Layout.of(precision, 2, 64, 16)
    dtype = torch.float32 if precision in ("FP32", "BF16") else torch.float16

    def louder(*args: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = paged_decode(*args, **named)
        return out * 1.05, lse

    def unmerged(*args: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = paged_decode(*args, **named)
        out[3] = 0
        return out, lse

    def swapped(cache: PagedKV, key: torch.Tensor, value: torch.Tensor, *more: Any) -> None:
        kv_write(cache, value, key, *more)

    def late(cache: PagedKV, key: torch.Tensor, value: torch.Tensor, *more: Any) -> None:
        kv_write(cache, key.roll(1, dims=0), value, *more)

    for decode in (louder, unmerged):
        assert not check_decode(layout, 4, dtype, CPU, decode=decode).passed
    for write in (swapped, late):
        assert not check_decode(layout, 4, dtype, CPU, write=write).passed


@pytest.mark.parametrize("wrong", ["doubled", "nan", "shifted"])
def test_a_kernel_that_computes_wrong_numbers_is_not_served(wrong: str) -> None:
    def broken(*args: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = paged_decode(*args, **named)
        return {"doubled": out * 2, "nan": out * float("nan"), "shifted": out.roll(1, dims=2)}[wrong], lse

    with pytest.raises(InputError, match="wrong numbers on this cpu device"):
        triton_backend(small_cache("FP32", kv_heads=2), 4, torch.float32, decode=broken)
