"""Attention of the last few tokens of each sequence over its pages, by the plan's pieces."""

import triton
import triton.language as tl

from kvbudget_kernels.device.attend import attend_tiles
from kvbudget_kernels.device.merge import finish

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_scales(k_scale_ptr, v_scale_ptr, h, MODE: tl.constexpr, FP8_NATIVE: tl.constexpr):
    """Factors of scores and of outputs that are the same for a head's whole page."""
    k_scale = 1.0
    v_scale = 1.0
    if MODE == "FP8E4M3":
        k_scale = tl.load(k_scale_ptr + h)
        v_scale = tl.load(v_scale_ptr + h)
        if not FP8_NATIVE:
            k_scale *= 256.0
            v_scale *= 256.0
    return k_scale, v_scale


@triton.jit
def store_rows(at, acc, acc_hi, od, mask, D: tl.constexpr, MODE: tl.constexpr):
    """Rows of D channels; ``at``: [R], where each begins."""
    dtype: tl.constexpr = at.dtype.element_ty
    if MODE == "INT4":
        real = mask[:, None] & (od < D // 2)[None, :]
        tl.store(at[:, None] + od[None, :], acc.to(dtype), mask=real)
        tl.store(at[:, None] + D // 2 + od[None, :], acc_hi.to(dtype), mask=real)
    else:
        tl.store(at[:, None] + od[None, :], acc.to(dtype), mask=mask[:, None] & (od < D)[None, :])


@triton.jit
def load_query(at, od, mask, D: tl.constexpr, MODE: tl.constexpr, MATH: tl.constexpr):
    """Query rows as MATH, and for INT4 their upper halves."""
    if MODE == "INT4":
        real = mask[:, None] & (od < D // 2)[None, :]
        q = tl.load(at[:, None] + od[None, :], mask=real, other=0.0).to(MATH)
        q_hi = tl.load(at[:, None] + D // 2 + od[None, :], mask=real, other=0.0).to(MATH)
    else:
        q = tl.load(at[:, None] + od[None, :], mask=mask[:, None] & (od < D)[None, :], other=0.0).to(MATH)
        q_hi = tl.zeros([1], tl.float32)
    return q, q_hi


# What differs from step to step, or between models of one head size, is not specialised: one kernel serves them all.
@triton.jit(do_not_specialize=["kv_heads", "q_len", "row_tiles", "table_row", "lse_seq", "lse_token", "G"])
def paged_decode_kernel(
    q_ptr, key_ptr, value_ptr, scales_ptr, k_scale_ptr, v_scale_ptr, table_ptr, lens_ptr, work_ptr, unit_ptr,
    sinks_ptr, slopes_ptr, out_ptr, lse_ptr, part_o_ptr, part_lse_ptr,
    sm_scale, kv_heads, q_len, row_tiles, table_row,
    q_seq, q_token, q_head, out_seq, out_token, out_head, lse_seq, lse_token,
    key_page, key_head, key_row: tl.constexpr, value_page, value_head, value_row: tl.constexpr,
    scales_page, scales_head, scales_row: tl.constexpr,
    G, R: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    MODE: tl.constexpr, V_T: tl.constexpr, FP8_NATIVE: tl.constexpr, MATH: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program per (unit of the plan, KV head, tile of rows)."""
    pid = tl.program_id(0)
    tile = pid % row_tiles
    h = (pid // row_tiles) % kv_heads
    unit = pid // (row_tiles * kv_heads)
    r = tile * R + tl.arange(0, R)
    rows = q_len * G
    live = r < rows
    token = r // G
    head = (h * G + r % G).to(tl.int64)
    od = tl.arange(0, D_PAD)
    h64 = h.to(tl.int64)
    k_scale, v_scale = load_scales(k_scale_ptr, v_scale_ptr, h, MODE, FP8_NATIVE)
    slopes = tl.zeros([R], tl.float32)
    if ALIBI:
        slopes = tl.load(slopes_ptr + head, mask=live, other=0.0)
    for item in range(tl.load(unit_ptr + unit), tl.load(unit_ptr + unit + 1)):
        seq = tl.load(work_ptr + 4 * item).to(tl.int64)
        begin = tl.load(work_ptr + 4 * item + 1)
        end = tl.load(work_ptr + 4 * item + 2)
        part = tl.load(work_ptr + 4 * item + 3).to(tl.int64)
        n = tl.load(lens_ptr + seq)
        q, q_hi = load_query(
            q_ptr + seq * q_seq + token.to(tl.int64) * q_token + head * q_head, od, live, D, MODE, MATH
        )
        row_pos = tl.where(live, n - q_len + token, -1)
        live_from = 0
        if WINDOW > 0:
            live_from = n - q_len - WINDOW + 1
        acc, acc_hi, m, l = attend_tiles(  # noqa: E741
            q, q_hi, row_pos, slopes,
            key_ptr + h64 * key_head, value_ptr + h64 * value_head, scales_ptr + h64 * scales_head,
            table_ptr + seq * table_row, begin, end, live_from, sm_scale * k_scale,
            key_page, key_row, value_page, value_row, scales_page, scales_row,
            D, D_PAD, PAGE, TILE, MODE, V_T, FP8_NATIVE, MATH, WINDOW, SOFTCAP, ALIBI, STAGES,
        )  # fmt: skip
        if part < 0:
            sink = tl.zeros([R], tl.float32)
            if SINKS:
                sink = tl.load(sinks_ptr + head, mask=live, other=float("-inf"))
            if MODE == "INT4":
                acc_hi, _ = finish(acc_hi, m, l, sink, SINKS)
            acc, lse = finish(acc * v_scale, m, l, sink, SINKS)
            at = seq * out_seq + token.to(tl.int64) * out_token + head * out_head
            store_rows(out_ptr + at, acc, acc_hi, od, live, D, MODE)
            tl.store(lse_ptr + seq * lse_seq + token.to(tl.int64) * lse_token + head, lse, mask=live)
        else:
            scale = tl.where(l > 0, v_scale / l, 0.0)[:, None]
            row = (part * kv_heads + h) * rows + r
            acc = acc * scale
            if MODE == "INT4":
                acc_hi = acc_hi * scale
            store_rows(part_o_ptr + row * D, acc, acc_hi, od, live, D, MODE)
            lse2 = tl.where(l > 0, tl.where(m == float("-inf"), 0.0, m) + tl.log2(l), float("-inf"))
            tl.store(part_lse_ptr + row, lse2, mask=live)
