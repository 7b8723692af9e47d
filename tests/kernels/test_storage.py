"""Pages have the bytes that the budget counts, and codes mean what the reference says."""

import pytest
import torch

from kvbudget import layout as core
from kvbudget.served import named, served_names
from kvbudget_kernels.errors import KernelInputError
from kvbudget_kernels.quantise import decode, encode
from kvbudget_kernels.reference import dequantise, kv_write
from kvbudget_kernels.storage import PAGE_TOKENS, PRECISIONS, Layout, PagedKV, allocate

CPU = torch.device("cpu")


@pytest.mark.parametrize("page_tokens", PAGE_TOKENS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_page_has_the_bytes_that_the_budget_counts(precision: str, page_tokens: int) -> None:
    for shape in map(named, served_names()):
        layout = Layout.of(precision, shape.kv_heads, shape.head_dim, page_tokens)
        cache = PagedKV.over(layout, allocate(layout, 3, CPU))
        tensors = [cache.key, cache.value, *([] if cache.scales is None else [cache.scales])]
        counted = core.page_bytes(shape, precision, page_tokens, layers=1)
        assert sum(each.numel() * each.element_size() for each in tensors) == 3 * counted
        assert layout.page_bytes == counted


def test_every_precision_of_the_api_but_nvfp4_has_a_layout() -> None:
    assert set(PRECISIONS) == set(core.KV_PRECISIONS) - {"NVFP4"}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_two_elements_of_a_page_share_a_byte(precision: str) -> None:
    layout = Layout.of(precision, 2, 80, 16)
    storage = allocate(layout, 2, CPU)
    cache = PagedKV.over(layout, storage)
    for tensor in (cache.key, cache.value, cache.scales):
        if tensor is not None:
            assert not tensor.any()
            tensor.fill_(1)
    assert bool((storage.view(torch.int32) != 0).all())


@pytest.mark.parametrize(
    ("precision", "heads", "head_dim", "page", "field"),
    [("NVFP4", 1, 64, 16, "precision"), ("FP16", 0, 64, 16, "kv_heads"), ("FP16", 1, 63, 16, "head_dim"),
     ("FP16", 1, 512, 16, "head_dim"), ("FP16", 1, 64, 256, "page_tokens"), ("FP16", 1, 64, 24, "page_tokens")],
)  # fmt: skip
def test_what_no_kernel_handles_is_refused(precision: str, heads: int, head_dim: int, page: int, field: str) -> None:
    with pytest.raises(KernelInputError) as refused:
        Layout.of(precision, heads, head_dim, page)
    assert refused.value.field == field
    assert refused.value.fix


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_read_back_and_stored_again_has_the_same_codes(precision: str) -> None:
    layout = Layout.of(precision, 3, 96, 16)
    head = torch.tensor([0.01, 0.02, 0.5]) if precision == "FP8E4M3" else None
    x = torch.randn(50, 3, 96, generator=torch.Generator().manual_seed(1)) * 2
    once = encode(x, layout, head)
    again = encode(decode(once, layout, head), layout, head)
    assert torch.equal(decode(again, layout, head), decode(once, layout, head)) or precision == "INT4"
    if precision == "INT4":  # the range's ends may round to other scales
        torch.testing.assert_close(decode(again, layout, head), decode(once, layout, head), rtol=0, atol=0.02)


RELATIVE_ERRORS = {"FP16": 3e-4, "BF16": 2.4e-3, "FP32": 1e-7, "FP8E4M3": 0.03, "INT8": 0.0092, "INT4": 0.115}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_stored_values_are_as_close_as_their_bits_allow(precision: str) -> None:
    layout = Layout.of(precision, 2, 128, 16)
    cache = PagedKV.over(layout, allocate(layout, 4, CPU), torch.full((2,), 0.02), torch.full((2,), 0.02))
    generator = torch.Generator().manual_seed(2)
    key, value = torch.randn(64, 2, 128, generator=generator), torch.randn(64, 2, 128, generator=generator)
    kv_write(cache, key, value, torch.arange(64))
    stored = dequantise(cache, torch.arange(4)).permute(1, 0, 3, 2, 4).reshape(2, 64, 2, 128)
    for got, want in zip(stored, (key, value), strict=True):
        assert float((got - want).norm() / want.norm()) <= 1.3 * RELATIVE_ERRORS[precision]
