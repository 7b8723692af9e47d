"""Whole pages as bytes, and pages as numbers."""

import triton
import triton.language as tl

from kvbudget_kernels.device.codecs import e4m3_over_256, high_half, low_half


@triton.jit(do_not_specialize=["words"])
def move_pages_kernel(
    source_ptr, target_ptr, source_ids_ptr, target_ids_ptr, words, source_stride, target_stride, WORDS: tl.constexpr
):
    """Words of page ``source_ids[i]`` to page ``target_ids[i]``; both may be counters (0, 1, …) of a packed buffer."""
    blocks = (words + WORDS - 1) // WORDS
    pid = tl.program_id(0)
    source = tl.load(source_ids_ptr + pid // blocks)
    target = tl.load(target_ids_ptr + pid // blocks)
    at = (pid % blocks) * WORDS + tl.arange(0, WORDS)
    data = tl.load(source_ptr + source * source_stride + at, mask=at < words)
    tl.store(target_ptr + target * target_stride + at, data, mask=at < words)


@triton.jit
def _value(codes, word, head_scale, high, MODE: tl.constexpr):
    """fp32 from codes; ``word``: the scales' words, broadcast; ``high``: V's half of an INT8 word."""
    if MODE == "FP8E4M3":
        x = e4m3_over_256(codes).to(tl.float32) * (256.0 * head_scale)
    elif MODE == "INT8":
        x = codes.to(tl.float32) * tl.where(high, high_half(word), low_half(word))
    elif MODE == "INT4":
        x = codes.to(tl.float32) * low_half(word) + high_half(word)
    else:
        x = codes.to(tl.float32)
    return x


@triton.jit(do_not_specialize=["heads"])
def dequant_pages_kernel(
    key_ptr, value_ptr, scales_ptr, k_scale_ptr, v_scale_ptr, pages_ptr, out_ptr, heads,
    key_page, key_head, key_row, value_page, value_head, value_row, scales_page, scales_head, scales_row,
    D: tl.constexpr, D_PAD: tl.constexpr, PAGE: tl.constexpr, MODE: tl.constexpr, V_T: tl.constexpr,
):  # fmt: skip
    """One program per (page, K or V, head). ``out``: [n, 2, heads, PAGE, D], contiguous."""
    pid = tl.program_id(0).to(tl.int64)
    h = pid % heads
    side = (pid // heads) % 2
    page = tl.load(pages_ptr + pid // (2 * heads)).to(tl.int64)
    tok = tl.arange(0, PAGE)[:, None]
    od = tl.arange(0, D_PAD)[None, :]
    mask = tl.broadcast_to(od < D, (PAGE, D_PAD))
    column = od % (D // 2) if MODE == "INT4" else od
    if side == 0:
        codes = tl.load(key_ptr + page * key_page + h * key_head + tok * key_row + column, mask=mask, other=0)
    elif V_T:
        codes = tl.load(value_ptr + page * value_page + h * value_head + column * value_row + tok, mask=mask, other=0)
    else:
        codes = tl.load(value_ptr + page * value_page + h * value_head + tok * value_row + column, mask=mask, other=0)
    word = tl.zeros([PAGE, D_PAD], tl.int32)
    head_scale = 1.0
    if MODE == "FP8E4M3":
        head_scale = tl.where(side == 0, tl.load(k_scale_ptr + h), tl.load(v_scale_ptr + h))
    if MODE == "INT8":
        word = tl.load(
            scales_ptr + page * scales_page + h * scales_head + tok * scales_row + od * 0, mask=mask, other=0
        )
    if MODE == "INT4":
        at = scales_ptr + page * scales_page + h * scales_head + tok * scales_row + 2 * (od // 32) + side
        word = tl.load(at, mask=mask, other=0)
        codes = tl.where(od < D // 2, codes & 15, codes >> 4)
    x = _value(codes, word, head_scale, side == 1, MODE)
    tl.store(out_ptr + (pid * PAGE + tok) * D + od, x.to(out_ptr.dtype.element_ty), mask=mask)
