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
     ("FP16", 1, 68, 16, "head_dim"), ("FP16", 1, 8, 16, "head_dim"), ("FP16", 1, 264, 16, "head_dim"),
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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_number_stands_where_the_table_of_the_layout_says(precision: str) -> None:
    """Bytes of one page, looked up by hand: K [heads, tokens, channels], then V, whose 8- and 4-bit codes lie along
    tokens, then a token's and head's scales. One number is 1 (or the largest code) among zeros."""
    heads, head_dim, tokens, head, token, channel = 3, 64, 32, 2, 21, 37
    layout = Layout.of(precision, heads, head_dim, tokens)
    storage = allocate(layout, 1, CPU)
    key = torch.zeros(1, heads, head_dim)
    key[0, head, channel] = 1.0
    kv_write(PagedKV.over(layout, storage), key, -key, torch.tensor([token]))
    page = storage[0]
    bits = {"FP32": 32, "FP16": 16, "BF16": 16, "FP8E4M3": 8, "INT8": 8, "INT4": 4}[precision]
    row, column = (head_dim // 2, channel - head_dim // 2) if bits == 4 else (head_dim, channel)
    row_bytes, size = head_dim * bits // 8, max(1, bits // 8)
    k_at = ((head * tokens + token) * row + column) * size
    v_at = heads * tokens * row_bytes
    v_at += ((head * tokens + token) * row + column) * size if bits > 8 else (head * row + column) * tokens + token
    one = {"FP32": 0x3F800000, "FP16": 0x3C00, "BF16": 0x3F80, "FP8E4M3": 0x38, "INT8": 127, "INT4": 15 << 4}
    minus = {"FP32": 0xBF800000, "FP16": 0xBC00, "BF16": 0xBF80, "FP8E4M3": 0xB8, "INT8": 256 - 127, "INT4": 0}
    assert int.from_bytes(bytes(page[k_at : k_at + size].tolist()), "little") == one[precision]
    assert int.from_bytes(bytes(page[v_at : v_at + size].tolist()), "little") == minus[precision]
    if bits <= 8 and precision != "FP8E4M3":
        per_token = 1 if precision == "INT8" else 2 * head_dim // 32
        words = page[2 * heads * tokens * row_bytes :].view(torch.int32)
        word = words[(head * tokens + token) * per_token + (2 if precision == "INT4" else 0)]
        low, high = (float(each) for each in word.view(1).view(torch.float16))
        expected = (1 / 127, 1 / 127) if precision == "INT8" else (1 / 15, 0.0)
        assert (low, high) == pytest.approx(expected, rel=1e-3)
    assert layout.v_transposed == (bits <= 8)


def test_storage_of_another_size_is_refused() -> None:
    layout = Layout.of("FP16", 2, 64, 16)
    with pytest.raises(KernelInputError, match="storage"):
        PagedKV.over(layout, allocate(layout, 4, CPU)[:, :-16])
