"""A prefix that many sequences share is read once for all of them."""

import triton
import triton.language as tl

from kvbudget_kernels.device.attend import attend_tiles
from kvbudget_kernels.device.decode import load_query, load_scales, store_rows
from kvbudget_kernels.device.merge import finish


@triton.jit(do_not_specialize=["kv_heads", "q_len", "splits", "row_blocks", "batch", "table_row", "G"])
def prefix_kernel(
    q_ptr, key_ptr, value_ptr, scales_ptr, k_scale_ptr, v_scale_ptr, table_ptr, prefix_ptr, indptr_ptr, members_ptr,
    suffix_ptr, slopes_ptr, part_o_ptr, part_lse_ptr,
    sm_scale, kv_heads, q_len, splits, row_blocks, batch, table_row, q_seq, q_token, q_head,
    key_page, key_head, key_row: tl.constexpr, value_page, value_head, value_row: tl.constexpr,
    scales_page, scales_head, scales_row: tl.constexpr,
    G, R: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    MODE: tl.constexpr, V_T: tl.constexpr, FP8_NATIVE: tl.constexpr, MATH: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program per (group, split of the prefix, block of rows, KV head); rows are (member, token, head in its
    group). ``part_o``: fp32 [splits, batch, q_len, heads, D]; ``part_lse``: [splits, batch, q_len, heads], natural
    log."""
    pid = tl.program_id(0)
    h = pid % kv_heads
    block = (pid // kv_heads) % row_blocks
    split = (pid // (kv_heads * row_blocks)) % splits
    group = pid // (kv_heads * row_blocks * splits)
    first = tl.load(indptr_ptr + group)
    rows = (tl.load(indptr_ptr + group + 1) - first) * q_len * G
    prefix = tl.load(prefix_ptr + group)
    tiles = (prefix + TILE - 1) // TILE
    begin = (split * tiles // splits) * TILE
    end = tl.minimum(((split + 1) * tiles // splits) * TILE, prefix)
    if (block * R < rows) & (begin < end):
        r = block * R + tl.arange(0, R)
        live = r < rows
        seq = tl.load(members_ptr + first + r // (q_len * G), mask=live, other=0).to(tl.int64)
        token = (r // G) % q_len
        head = (h * G + r % G).to(tl.int64)
        od = tl.arange(0, D_PAD)
        h64 = h.to(tl.int64)
        k_scale, v_scale = load_scales(k_scale_ptr, v_scale_ptr, h, MODE, FP8_NATIVE)
        slopes = tl.zeros([R], tl.float32)
        if ALIBI:
            slopes = tl.load(slopes_ptr + head, mask=live, other=0.0)
        q, q_hi = load_query(
            q_ptr + seq * q_seq + token.to(tl.int64) * q_token + head * q_head, od, live, D, MODE, MATH
        )
        suffix = tl.load(suffix_ptr + seq, mask=live, other=0)
        row_pos = tl.where(live, prefix + suffix - q_len + token, -1)
        live_from = 0
        if WINDOW > 0:
            live_from = tl.min(tl.where(live, row_pos, 2147483647), 0) - WINDOW + 1
            begin = tl.maximum(begin, tl.maximum(live_from, 0) // TILE * TILE)
        acc, acc_hi, m, l = attend_tiles(  # noqa: E741
            q, q_hi, row_pos, slopes,
            key_ptr + h64 * key_head, value_ptr + h64 * value_head, scales_ptr + h64 * scales_head,
            table_ptr + group.to(tl.int64) * table_row, begin, end, live_from, sm_scale * k_scale,
            key_page, key_row, value_page, value_row, scales_page, scales_row,
            D, D_PAD, PAGE, TILE, MODE, V_T, FP8_NATIVE, MATH, WINDOW, SOFTCAP, ALIBI, STAGES,
        )  # fmt: skip
        sink = tl.zeros([R], tl.float32)
        if MODE == "INT4":
            acc_hi, _ = finish(acc_hi, m, l, sink, False)
        acc, lse = finish(acc * v_scale, m, l, sink, False)
        row = ((split.to(tl.int64) * batch + seq) * q_len + token) * (kv_heads * G) + head
        store_rows(part_o_ptr + row * D, acc, acc_hi, od, live, D, MODE)
        tl.store(part_lse_ptr + row, lse, mask=live)
