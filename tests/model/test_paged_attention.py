"""Attention over scattered pages against a plain softmax over each sequence's own keys."""

import random
from collections.abc import Sequence

import pytest
import torch

from kvbudget_kernels.quantise import decode, encode
from kvbudget_kernels.storage import PRECISIONS, Layout
from kvbudget_worker.attention import PagedCache, TorchAttention
from kvbudget_worker.batch import Chunk, SamplingParams

PARAMS = SamplingParams(temperature=0.0)


def _cache(pages: int, page_tokens: int, kv_heads: int, precision: str = "FP32") -> PagedCache:
    layout = Layout.stored(precision, kv_heads, 8, page_tokens)
    return PagedCache(layout, layers=1, pages=pages, device=torch.device("cpu"))


def _stored(cache: PagedCache, kv: torch.Tensor) -> torch.Tensor:
    """K and V [tokens, 2, kv_heads, head_dim] as they come back from pages."""
    one = torch.ones(cache.layout.kv_heads) if cache.layout.precision == "FP8E4M3" else None
    return decode(encode(kv, cache.layout, one), cache.layout, one)


def _expected(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """[n, heads, d] queries at the last n of [tokens, kv_heads, d] keys."""
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, dim=1), value.repeat_interleave(repeat, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[2] ** 0.5
    n, tokens = query.shape[0], key.shape[0]
    scores.masked_fill_(torch.ones(n, tokens, dtype=torch.bool).triu(tokens - n + 1), float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), value).reshape(n, -1)


def _attend(
    attention: TorchAttention, query: torch.Tensor, kv: torch.Tensor, chunks: Sequence[tuple[int, int, tuple[int, ...]]]
) -> torch.Tensor:
    """One layer's step; ``chunks``: (start, tokens, pages) each."""
    step = [Chunk(i, (0,) * count, start, pages, True, PARAMS) for i, (start, count, pages) in enumerate(chunks)]
    return attention.attend(0, query, kv, attention.plan(step))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "page_tokens", "precision"),
    [
        *((heads, kv_heads, page, "FP32") for heads, kv_heads in [(4, 4), (6, 2), (9, 3), (5, 1)] for page in (4, 16)),
        *((6, 2, 16, precision) for precision in PRECISIONS if precision != "FP32"),
    ],
)
def test_a_ragged_mixed_batch_matches_each_sequence_alone(
    heads: int, kv_heads: int, page_tokens: int, precision: str
) -> None:
    rng = random.Random(heads * page_tokens)
    generator = torch.Generator().manual_seed(rng.randrange(2**30))
    lengths = [(0, 1), (0, 7), (30, 1), (3, 1), (4, 1), (15, 300), (100, 1), (31, 1), (250, 1), (16, 16), (63, 1)]
    free = list(range(220))
    rng.shuffle(free)
    cache = _cache(220, page_tokens, kv_heads, precision)
    attention = TorchAttention(cache, heads, torch.float32)
    sequences = []
    for start, count in lengths:
        pages = tuple(free.pop() for _ in range(-(-(start + count) // page_tokens)))
        kv = torch.randn(start + count, 2, kv_heads, 8, generator=generator)
        if start:
            _attend(attention, torch.randn(start, heads, 8, generator=generator), kv[:start], [(0, start, pages)])
        sequences.append((start, count, pages, torch.randn(count, heads, 8, generator=generator), kv))
    got = _attend(
        attention,
        torch.cat([query for *_, query, _ in sequences]),
        torch.cat([kv[start:] for start, *_, kv in sequences]),
        [(start, count, pages) for start, count, pages, *_ in sequences],
    )
    at = 0
    for _, count, _, query, kv in sequences:
        kv = _stored(cache, kv)
        torch.testing.assert_close(got[at : at + count], _expected(query, kv[:, 0], kv[:, 1]), rtol=1e-4, atol=1e-5)
        at += count


def test_a_page_holds_each_token_in_its_slot() -> None:
    cache = _cache(5, 4, 2)
    attention = TorchAttention(cache, 2, torch.float32)
    kv = torch.arange(6 * 2 * 2 * 8, dtype=torch.float32).view(6, 2, 2, 8)
    _attend(attention, torch.zeros(6, 2, 8), kv, [(0, 6, (3, 1))])
    for side, part in enumerate((cache.layers[0].key, cache.layers[0].value)):
        for position in range(6):
            page = (3, 1)[position // 4]
            assert torch.equal(part[page, :, position % 4], kv[position, side])
        assert not part[1, :, 2:].any()
    assert not cache.storage[0][[0, 2, 4, cache.scratch_page]].any()


@pytest.mark.parametrize("precision", ["FP16", "FP8E4M3", "INT8", "INT4"])
def test_numbers_that_are_not_finite_never_reach_the_next_owner_of_a_page(precision: str) -> None:
    """The next owner is computed beside a longer sequence, so the stale slots behind its end are read and masked."""
    cache = _cache(2, 4, 1, precision)
    attention = TorchAttention(cache, 1, torch.float32)
    poison = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30]).view(4, 1, 1, 1).expand(4, 2, 1, 8)
    _attend(attention, torch.zeros(4, 1, 8), poison, [(0, 4, (0,))])
    kv = torch.randn(5, 2, 1, 8).half().float()
    query = torch.randn(2, 1, 8)
    _attend(attention, torch.randn(3, 1, 8), kv[:3], [(0, 3, (1,))])
    got = _attend(attention, query, kv[3:], [(3, 1, (1,)), (0, 1, (0,))])
    kv = _stored(cache, kv)
    torch.testing.assert_close(got[:1], _expected(query[:1], kv[:4, 0], kv[:4, 1]), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(got[1:], kv[4:, 1, 0])


def test_a_copied_page_is_a_page_of_its_own() -> None:
    cache = _cache(4, 4, 1, "INT4")
    (storage,) = cache.storage
    storage.copy_(torch.randint(256, storage.shape, dtype=torch.uint8))
    before = storage.clone()
    cache.copy_pages([(0, 3), (1, 2)])
    assert torch.equal(storage[3], before[0])
    assert torch.equal(storage[2], before[1])
    storage[3].zero_()
    assert torch.equal(storage[0], before[0])
