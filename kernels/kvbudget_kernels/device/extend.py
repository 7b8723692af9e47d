"""Chunked prefill: many new tokens of each sequence over its pages, their own included."""

import triton
import triton.language as tl

from kvbudget_kernels.device.attend import attend_tiles
from kvbudget_kernels.device.decode import load_query, load_scales, store_rows
from kvbudget_kernels.device.merge import finish


@triton.jit(do_not_specialize=["batch", "kv_heads", "table_row", "lse_token", "G"])
def paged_extend_kernel(
    q_ptr, key_ptr, value_ptr, scales_ptr, k_scale_ptr, v_scale_ptr, table_ptr, lens_ptr, cu_ptr, sinks_ptr, slopes_ptr,
    out_ptr, lse_ptr,
    sm_scale, batch, kv_heads, table_row, q_token, q_head, out_token, out_head, lse_token,
    key_page, key_head, key_row: tl.constexpr, value_page, value_head, value_row: tl.constexpr,
    scales_page, scales_head, scales_row: tl.constexpr,
    G, R: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    MODE: tl.constexpr, V_T: tl.constexpr, FP8_NATIVE: tl.constexpr, MATH: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program per (block of R rows, KV head). Sequence b owns the blocks from ``cu[b]·G // R + b`` on: as many as
    it needs and at most one more, so the host needs no lengths to know the grid."""
    pid = tl.program_id(0)
    h = pid % kv_heads
    block = pid // kv_heads
    SEQUENCES: tl.constexpr = 128  # looked at together; no constant grows with the batch, which would compile anew
    seq = -1
    for at in range(0, batch, SEQUENCES):
        b = at + tl.arange(0, SEQUENCES)
        owned_from = tl.load(cu_ptr + b, mask=b < batch, other=0) * G // R + b
        seq += tl.sum(((owned_from <= block) & (b < batch)).to(tl.int32), 0)
    first = tl.load(cu_ptr + seq)
    q_len = tl.load(cu_ptr + seq + 1) - first
    begin_row = (block - first * G // R - seq) * R
    if begin_row < q_len * G:
        n = tl.load(lens_ptr + seq)
        r = begin_row + tl.arange(0, R)
        live = r < q_len * G
        token = (first + r // G).to(tl.int64)
        head = (h * G + r % G).to(tl.int64)
        od = tl.arange(0, D_PAD)
        h64 = h.to(tl.int64)
        k_scale, v_scale = load_scales(k_scale_ptr, v_scale_ptr, h, MODE, FP8_NATIVE)
        slopes = tl.zeros([R], tl.float32)
        if ALIBI:
            slopes = tl.load(slopes_ptr + head, mask=live, other=0.0)
        q, q_hi = load_query(q_ptr + token * q_token + head * q_head, od, live, D, MODE, MATH)
        row_pos = tl.where(live, n - q_len + r // G, -1)
        begin = 0
        live_from = 0
        if WINDOW > 0:
            live_from = n - q_len + begin_row // G - WINDOW + 1
            begin = tl.maximum(live_from, 0) // TILE * TILE
        end = tl.minimum(n - q_len + (begin_row + R - 1) // G + 1, n)
        acc, acc_hi, m, l = attend_tiles(  # noqa: E741
            q, q_hi, row_pos, slopes,
            key_ptr + h64 * key_head, value_ptr + h64 * value_head, scales_ptr + h64 * scales_head,
            table_ptr + seq.to(tl.int64) * table_row, begin, end, live_from, sm_scale * k_scale,
            key_page, key_row, value_page, value_row, scales_page, scales_row,
            D, D_PAD, PAGE, TILE, MODE, V_T, FP8_NATIVE, MATH, WINDOW, SOFTCAP, ALIBI, STAGES,
        )  # fmt: skip
        sink = tl.zeros([R], tl.float32)
        if SINKS:
            sink = tl.load(sinks_ptr + head, mask=live, other=float("-inf"))
        if MODE == "INT4":
            acc_hi, _ = finish(acc_hi, m, l, sink, SINKS)
        acc, lse = finish(acc * v_scale, m, l, sink, SINKS)
        store_rows(out_ptr + token * out_token + head * out_head, acc, acc_hi, od, live, D, MODE)
        tl.store(lse_ptr + token * lse_token + head, lse, mask=live)
