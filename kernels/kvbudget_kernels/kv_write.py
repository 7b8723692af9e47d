"""Stores a step's K and V in their pages, in one pass: largest value, scale, codes, and RoPE on K if asked for."""

import torch
import triton

from kvbudget_kernels.device.write import kv_write_kernel
from kvbudget_kernels.errors import require
from kvbudget_kernels.launch import launch
from kvbudget_kernels.quantise import LARGEST, SMALLEST_SCALE
from kvbudget_kernels.storage import PagedKV
from kvbudget_kernels.tune import interpreted


def new_counters(device: torch.device) -> torch.Tensor:
    """int32 [2]: numbers that were not finite, slots behind the last page. ``kv_write`` adds to them."""
    return torch.zeros(2, dtype=torch.int32, device=device)


def kv_write(
    cache: PagedKV,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    counters: torch.Tensor,
    *,
    rope: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """``key``, ``value``: [tokens, kv_heads, head_dim] fp16, bf16 or fp32, last dimension contiguous. ``slots``: int64
    [tokens], page · page_tokens + offset; a negative one is padding, whose K and V may be anything; one behind the last
    page is counted and not written (with TRITON_DEBUG=1 it traps). No slot may occur twice.

    What is not finite is stored as :func:`kvbudget_kernels.quantise.finite` says and counted. ``rope``: cos and sin
    [tokens, head_dim/2] that turn K first. Source of the one-pass form: vLLM's reshape_and_cache, extended to INT4.
    """
    layout = cache.layout
    tokens = slots.shape[0]
    for name, given in (("key", key), ("value", value)):
        require(
            given.shape == (tokens, layout.kv_heads, layout.head_dim) and given.stride(-1) == 1,
            name,
            f"shape {tuple(given.shape)}, strides {given.stride()}",
            f"give [{tokens}, {layout.kv_heads}, {layout.head_dim}], contiguous along the head",
        )
    require(slots.dtype == torch.int64, "slots", f"dtype {slots.dtype}", "give int64")
    if tokens == 0:
        return
    cos, sin = rope if rope is not None else (key, key)
    scales = cache.scales if cache.scales is not None else slots
    scale_strides = cache.scales.stride()[:3] if cache.scales is not None else (0, 0, 0)
    rows = tokens * layout.kv_heads
    block = min(256, triton.next_power_of_2(rows)) if interpreted(key.device) else 8
    launch(
        kv_write_kernel,
        triton.cdiv(rows, block),
        key,
        value,
        slots,
        cos,
        sin,
        cache.key,
        cache.value,
        scales,
        cache.k_scale,
        cache.v_scale,
        counters,
        cache.pages * layout.page_tokens,
        tokens,
        layout.kv_heads,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        cos.stride(0),
        *cache.key.stride()[:3],
        *cache.value.stride()[:3],
        *scale_strides,
        D=layout.head_dim,
        HALF_PAD=triton.next_power_of_2(layout.head_dim // 2),
        ROWS=block,
        PAGE=layout.page_tokens,
        MODE=layout.precision,
        V_T=layout.v_transposed,
        ROPE=rope is not None,
        LARGEST=LARGEST[layout.precision],
        SMALLEST=SMALLEST_SCALE,
    )
