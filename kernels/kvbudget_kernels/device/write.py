"""Stores new K and V rows in their pages, quantised in one pass."""

import triton
import triton.language as tl

from kvbudget_kernels.device.codecs import finite, is_not_finite, pack_halves, round_even, to_bf16, to_e4m3


@triton.jit
def _int8_scale(lo, hi, SMALLEST: tl.constexpr):
    largest = tl.maximum(tl.max(tl.abs(lo), 1), tl.max(tl.abs(hi), 1))
    return tl.maximum(tl.math.div_rn(largest, 127.0), SMALLEST).to(tl.float16).to(tl.float32)


@triton.jit
def _int8(x, scale):
    code = round_even(tl.math.div_rn(x, tl.broadcast_to(scale[:, None], x.shape)))
    return tl.minimum(tl.maximum(code, -127.0), 127.0).to(tl.int8)


@triton.jit
def _int4(x, zero, scale):
    code = round_even(tl.math.div_rn(x - zero, scale))
    return tl.minimum(tl.maximum(code, 0.0), 15.0).to(tl.uint8)


@triton.jit
def _store_int4(
    lo, hi, code_ptrs, scale_ptrs, mask, row_mask, od, D: tl.constexpr, SMALLEST: tl.constexpr, SIDE: tl.constexpr
):
    """Groups of 32 channels; only real channels count. ``scale_ptrs``: [rows], each row's first word."""
    HALF: tl.constexpr = D // 2
    real = (od < HALF)[None, :]
    group_lo = (od // 32)[None, :]
    group_hi = ((od + HALF) // 32)[None, :]
    zero_lo = tl.zeros_like(lo)
    zero_hi = tl.zeros_like(lo)
    scale_lo = tl.zeros_like(lo) + 1.0
    scale_hi = tl.zeros_like(lo) + 1.0
    for g in tl.static_range((D + 31) // 32):
        in_lo = real & (group_lo == g)
        in_hi = real & (group_hi == g)
        least = tl.minimum(tl.min(tl.where(in_lo, lo, float("inf")), 1), tl.min(tl.where(in_hi, hi, float("inf")), 1))
        most = tl.maximum(tl.max(tl.where(in_lo, lo, float("-inf")), 1), tl.max(tl.where(in_hi, hi, float("-inf")), 1))
        zero = least.to(tl.float16).to(tl.float32)
        scale = tl.maximum(tl.math.div_rn(most - least, 15.0), SMALLEST).to(tl.float16).to(tl.float32)
        zero_lo = tl.where(in_lo, zero[:, None], zero_lo)
        zero_hi = tl.where(in_hi, zero[:, None], zero_hi)
        scale_lo = tl.where(in_lo, scale[:, None], scale_lo)
        scale_hi = tl.where(in_hi, scale[:, None], scale_hi)
        tl.store(scale_ptrs + 2 * g + SIDE, pack_halves(scale, zero), mask=row_mask)
    codes = _int4(lo, zero_lo, scale_lo) | (_int4(hi, zero_hi, scale_hi) << 4)
    tl.store(code_ptrs, codes, mask=mask)


@triton.jit(do_not_specialize=["capacity", "tokens", "heads"])
def kv_write_kernel(
    k_ptr, v_ptr, slots_ptr, cos_ptr, sin_ptr, key_ptr, value_ptr, scales_ptr, k_scale_ptr, v_scale_ptr, counters_ptr,
    capacity, tokens, heads,
    k_token, k_head, v_token, v_head, cos_token,
    key_page, key_head, key_row, value_page, value_head, value_row, scales_page, scales_head, scales_row,
    D: tl.constexpr, HALF_PAD: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr, MODE: tl.constexpr,
    V_T: tl.constexpr, ROPE: tl.constexpr, LARGEST: tl.constexpr, SMALLEST: tl.constexpr,
):  # fmt: skip
    """Rows (token, KV head), ROWS per program. ``counters``: int32 [2], numbers that were not finite and slots behind
    the last page. A row is handled as its lower and upper half: that is what RoPE turns and INT4 packs."""
    HALF: tl.constexpr = D // 2
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token = r // heads
    h = r % heads
    slot = tl.load(slots_ptr + token, mask=token < tokens, other=-1)
    tl.device_assert(slot < capacity, "kv_write: a slot lies behind the last page")
    behind = tl.sum(((slot >= capacity) & (h == 0)).to(tl.int32), 0)
    if behind > 0:
        tl.atomic_add(counters_ptr + 1, behind)
    row_mask = (slot >= 0) & (slot < capacity)
    page = slot // PAGE
    offset = slot % PAGE
    od = tl.arange(0, HALF_PAD)
    mask = row_mask[:, None] & (od < HALF)[None, :]
    k_at = k_ptr + (token * k_token + h * k_head)[:, None] + od[None, :]
    v_at = v_ptr + (token * v_token + h * v_head)[:, None] + od[None, :]
    k_lo = tl.load(k_at, mask=mask, other=0.0).to(tl.float32)
    k_hi = tl.load(k_at + HALF, mask=mask, other=0.0).to(tl.float32)
    v_lo = tl.load(v_at, mask=mask, other=0.0).to(tl.float32)
    v_hi = tl.load(v_at + HALF, mask=mask, other=0.0).to(tl.float32)
    if ROPE:
        angle = token[:, None] * cos_token + od[None, :]
        cos = tl.load(cos_ptr + angle, mask=mask, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + angle, mask=mask, other=0.0).to(tl.float32)
        turned = k_lo * cos - k_hi * sin
        k_hi = k_hi * cos + k_lo * sin
        k_lo = turned
    bad = is_not_finite(k_lo).to(tl.int32) + is_not_finite(k_hi).to(tl.int32)
    bad += is_not_finite(v_lo).to(tl.int32) + is_not_finite(v_hi).to(tl.int32)
    count = tl.sum(tl.sum(bad, 1), 0)
    if count > 0:
        tl.atomic_add(counters_ptr, count)
    k_lo = finite(k_lo, LARGEST)
    k_hi = finite(k_hi, LARGEST)
    v_lo = finite(v_lo, LARGEST)
    v_hi = finite(v_hi, LARGEST)
    key_at = key_ptr + (page * key_page + h * key_head + offset * key_row)[:, None] + od[None, :]
    if V_T:
        value_at = value_ptr + (page * value_page + h * value_head + offset)[:, None]
        value_at += od.to(tl.int64)[None, :] * value_row
        value_half = HALF * value_row
    else:
        value_at = value_ptr + (page * value_page + h * value_head + offset * value_row)[:, None] + od[None, :]
        value_half = HALF
    scales_at = scales_ptr + page * scales_page + h * scales_head + offset * scales_row
    if MODE == "FP8E4M3":
        ks = tl.broadcast_to(tl.load(k_scale_ptr + h)[:, None], k_lo.shape)
        vs = tl.broadcast_to(tl.load(v_scale_ptr + h)[:, None], k_lo.shape)
        tl.store(key_at, to_e4m3(finite(tl.math.div_rn(k_lo, ks), 448.0)), mask=mask)
        tl.store(key_at + HALF, to_e4m3(finite(tl.math.div_rn(k_hi, ks), 448.0)), mask=mask)
        tl.store(value_at, to_e4m3(finite(tl.math.div_rn(v_lo, vs), 448.0)), mask=mask)
        tl.store(value_at + value_half, to_e4m3(finite(tl.math.div_rn(v_hi, vs), 448.0)), mask=mask)
    elif MODE == "INT8":
        ks = _int8_scale(k_lo, k_hi, SMALLEST)
        vs = _int8_scale(v_lo, v_hi, SMALLEST)
        tl.store(key_at, _int8(k_lo, ks), mask=mask)
        tl.store(key_at + HALF, _int8(k_hi, ks), mask=mask)
        tl.store(value_at, _int8(v_lo, vs), mask=mask)
        tl.store(value_at + value_half, _int8(v_hi, vs), mask=mask)
        tl.store(scales_at, pack_halves(ks, vs), mask=row_mask)
    elif MODE == "INT4":
        _store_int4(k_lo, k_hi, key_at, scales_at, mask, row_mask, od, D, SMALLEST, 0)
        _store_int4(v_lo, v_hi, value_at, scales_at, mask, row_mask, od, D, SMALLEST, 1)
    elif MODE == "BF16":
        tl.store(key_at, to_bf16(k_lo), mask=mask)
        tl.store(key_at + HALF, to_bf16(k_hi), mask=mask)
        tl.store(value_at, to_bf16(v_lo), mask=mask)
        tl.store(value_at + value_half, to_bf16(v_hi), mask=mask)
    else:
        dtype: tl.constexpr = key_ptr.dtype.element_ty
        tl.store(key_at, k_lo.to(dtype), mask=mask)
        tl.store(key_at + HALF, k_hi.to(dtype), mask=mask)
        tl.store(value_at, v_lo.to(dtype), mask=mask)
        tl.store(value_at + value_half, v_hi.to(dtype), mask=mask)
