"""Moves whole pages (defragment, swap, migrate) and reads them as numbers. A page is a span of bytes; its precision
does not matter to a copy."""

from collections.abc import Sequence

import torch
import triton

from kvbudget_kernels.device.pages import dequant_pages_kernel, move_pages_kernel
from kvbudget_kernels.errors import require
from kvbudget_kernels.launch import cache_strides, launch
from kvbudget_kernels.storage import PagedKV
from kvbudget_kernels.tune import interpreted

_WORD_BYTES = 4


def page_copy(storage: torch.Tensor, source: Sequence[int], target: Sequence[int]) -> None:
    """Page ``source[i]`` to page ``target[i]`` within ``storage``, uint8 [pages, page_bytes], contiguous in a page.

    A target that is a source too, or twice a target, would depend on the order: KernelInputError."""
    require(len(source) == len(target), "target", f"{len(target)} targets for {len(source)} sources", "give pairs")
    require(
        not set(source) & set(target) and len(set(target)) == len(target),
        "target",
        "a page is a source and a target, or a target twice",
        "copy in two steps, over pages that are free",
    )
    _check_ids("source", source, storage.shape[0])
    _check_ids("target", target, storage.shape[0])
    _move(storage, storage, source, target)


def page_gather(storage: torch.Tensor, pages: Sequence[int], packed: torch.Tensor) -> None:
    """``pages`` of ``storage`` to the rows of ``packed``, uint8 [n, page_bytes]: of a layer in a buffer [n, layers,
    page_bytes] that may be pinned host memory."""
    _check_ids("pages", pages, storage.shape[0])
    _check_rows(storage, pages, packed)
    _move(storage, packed, pages, range(len(pages)))


def page_scatter(packed: torch.Tensor, pages: Sequence[int], storage: torch.Tensor) -> None:
    """The rows of ``packed`` to ``pages`` of ``storage``; the way back of :func:`page_gather`. No page may occur
    twice."""
    require(len(set(pages)) == len(pages), "pages", "a page occurs twice", "name each once")
    _check_ids("pages", pages, storage.shape[0])
    _check_rows(storage, pages, packed)
    _move(packed, storage, range(len(pages)), pages)


def dequant_pages(cache: PagedKV, pages: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """``pages``: int64 [n]. Returns [n, 2, kv_heads, page_tokens, head_dim]: for debugging and for another precision.
    Slots without a token come out as whatever stands there."""
    layout = cache.layout
    shape = (pages.shape[0], 2, layout.kv_heads, layout.page_tokens, layout.head_dim)
    out = torch.empty(shape, dtype=dtype, device=cache.key.device)
    if pages.shape[0] == 0:
        return out
    launch(
        dequant_pages_kernel,
        pages.shape[0] * 2 * layout.kv_heads,
        cache.key,
        cache.value,
        cache.scales if cache.scales is not None else pages,
        cache.k_scale,
        cache.v_scale,
        pages,
        out,
        layout.kv_heads,
        *cache_strides(cache),
        D=layout.head_dim,
        D_PAD=triton.next_power_of_2(layout.head_dim),
        PAGE=layout.page_tokens,
        MODE=layout.precision,
        V_T=layout.v_transposed,
    )
    return out


def _check_ids(field: str, ids: Sequence[int], pages: int) -> None:
    require(all(0 <= each < pages for each in ids), field, f"a page is not in 0 … {pages - 1}", "name pages that exist")


def _check_rows(storage: torch.Tensor, pages: Sequence[int], packed: torch.Tensor) -> None:
    require(
        packed.dtype == torch.uint8 and packed.shape == (len(pages), storage.shape[1]) and packed.stride(1) == 1,
        "packed",
        f"{packed.dtype} {tuple(packed.shape)}",
        f"give uint8 [{len(pages)}, {storage.shape[1]}], contiguous in a row",
    )


def _move(source: torch.Tensor, target: torch.Tensor, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
    if not source_ids:
        return
    device = source.device if source.device.type != "cpu" else target.device
    words = source.shape[1] // _WORD_BYTES
    block = 32768 if interpreted(device) else 2048
    launch(
        move_pages_kernel,
        len(source_ids) * triton.cdiv(words, block),
        source.view(torch.int32),
        target.view(torch.int32),
        torch.tensor(list(source_ids), dtype=torch.int64, device=device),
        torch.tensor(list(target_ids), dtype=torch.int64, device=device),
        words,
        source.stride(0) // _WORD_BYTES,
        target.stride(0) // _WORD_BYTES,
        WORDS=block,
    )
