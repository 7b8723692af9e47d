"""Whole pages move byte by byte, and read as the reference reads them."""

import pytest
import torch

from kvbudget_kernels import reference
from kvbudget_kernels.errors import KernelInputError
from kvbudget_kernels.pages import dequant_pages, page_copy, page_gather, page_scatter
from kvbudget_kernels.storage import PRECISIONS, Layout, PagedKV
from support.kernel_cases import far_pages, make_case


def _storage(pages: int, page_bytes: int) -> torch.Tensor:
    """One of three layers that alternate."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (pages, 3, page_bytes), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_copied_page_is_equal_and_no_other_changes(precision: str) -> None:
    layout = Layout.of(precision, 2, 80, 16)
    whole = _storage(9, layout.page_bytes)
    before = whole.clone()
    page_copy(whole[:, 1], [0, 8, 3], [5, 1, 7])
    for source, target in ((0, 5), (8, 1), (3, 7)):
        assert torch.equal(whole[target, 1], before[source, 1])
        before[target, 1] = before[source, 1]
    assert torch.equal(whole, before)


@pytest.mark.parametrize(
    ("source", "target", "field"),
    [([1], [1], "target"), ([1, 2], [2, 3], "target"), ([1, 2], [3, 3], "target"), ([1], [9], "target"),
     ([-1], [2], "source"), ([1, 2], [3], "target")],
)  # fmt: skip
def test_a_copy_that_depends_on_its_order_or_leaves_the_cache_is_refused(
    source: list[int], target: list[int], field: str
) -> None:
    storage = _storage(9, 64)[:, 1]
    before = storage.clone()
    with pytest.raises(KernelInputError) as refused:
        page_copy(storage, source, target)
    assert refused.value.field == field
    assert torch.equal(storage, before)


def test_pages_come_back_from_a_packed_buffer_to_other_places() -> None:
    layout = Layout.of("INT4", 2, 128, 32)
    layers = [_storage(6, layout.page_bytes)[:, layer] for layer in range(3)]
    before = [layer.clone() for layer in layers]
    buffer = torch.full((2, 3, layout.page_bytes), 255, dtype=torch.uint8)
    for number, layer in enumerate(layers):
        page_gather(layer, [4, 0], buffer[:, number])
        page_scatter(buffer[:, number], [2, 5], layer)
    for layer, old in zip(layers, before, strict=True):
        old[[2, 5]] = old[[4, 0]]
        assert torch.equal(layer, old)


def test_pages_gibibytes_apart_move_to_where_they_should() -> None:
    """#1. Copy, gather and scatter count in words of 4 bytes: 2³¹ of them are eight pages."""
    storage = far_pages(11, 64, 1)
    storage[10], storage[3] = 7, 5
    page_copy(storage, [10], [9])
    packed = torch.zeros(2, 64, dtype=torch.uint8)
    page_gather(storage, [9, 3], packed)
    page_scatter(packed, [0, 8], storage)
    assert [set(storage[page].tolist()) for page in range(11)] == [{7}, {0}, {0}, {5}, *[{0}] * 4, {5}, {7}, {7}]


def test_the_last_word_of_a_page_and_of_a_block_is_moved() -> None:
    """Blocks of words that do not divide a page."""
    storage = torch.arange(3 * 4 * 40_001, dtype=torch.int64).to(torch.uint8).view(3, -1).clone()
    want = storage[0].clone()
    page_copy(storage, [0], [2])
    assert torch.equal(storage[2], want)


def test_a_buffer_of_other_rows_is_refused() -> None:
    storage = _storage(4, 64)[:, 0]
    for packed in (torch.zeros(1, 64, dtype=torch.uint8), torch.zeros(2, 60, dtype=torch.uint8), torch.zeros(2, 64)):
        with pytest.raises(KernelInputError, match="packed"):
            page_gather(storage, [0, 1], packed)
    with pytest.raises(KernelInputError, match="twice"):
        page_scatter(torch.zeros(2, 64, dtype=torch.uint8), [1, 1], storage)


def test_moving_nothing_changes_nothing() -> None:
    storage = _storage(3, 64)[:, 0]
    before = storage.clone()
    page_copy(storage, [], [])
    page_gather(storage, [], torch.empty(0, 64, dtype=torch.uint8))
    assert torch.equal(storage, before)


def test_a_page_id_above_16_bits_is_that_page() -> None:
    layout = Layout.of("INT4", 1, 16, 16)
    storage = torch.zeros(70_001, layout.page_bytes, dtype=torch.uint8)
    storage[70_000] = 1
    storage[65_536] = 2
    page_copy(storage, [70_000, 65_536], [65_535, 4])
    assert set(storage[65_535].tolist()) == {1}
    assert set(storage[4].tolist()) == {2}
    assert not storage[70_000 - 65_536].sub(2 * (70_000 - 65_536 == 4)).any()


@pytest.mark.parametrize("head_dim", [64, 80, 192])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_pages_read_as_the_reference_reads_them(precision: str, head_dim: int) -> None:
    case = make_case(Layout.of(precision, 3, head_dim, 16), [40], form="far" if head_dim == 64 else "interleaved")
    pages = case.table[0, :2].long()
    got = dequant_pages(case.cache, pages, torch.float32)
    assert torch.equal(got, reference.dequantise(case.cache, pages))


def test_a_page_without_tokens_reads_as_zero() -> None:
    layout = Layout.of("INT8", 2, 64, 16)
    cache = PagedKV.over(layout, torch.zeros(2, layout.page_bytes, dtype=torch.uint8))
    assert not dequant_pages(cache, torch.tensor([1]), torch.float16).any()
