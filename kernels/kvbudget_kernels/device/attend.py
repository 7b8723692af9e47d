"""The loop over a sequence's pages that decode, extend and cascade share."""

import triton
import triton.language as tl

from kvbudget_kernels.device.codecs import e4m3_over_256, high_half, low_half, nibble_to_fp16

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _scores(x, pos, row_pos, slopes, score_scale, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr):
    """Base-2 scores from products: scale, softcap, ALiBi."""
    if SOFTCAP > 0.0 or ALIBI:
        s = x * score_scale
        if SOFTCAP > 0.0:
            y = tl.minimum(tl.maximum(s * (1.0 / SOFTCAP), -15.0), 15.0)
            s = (1.0 - 2.0 / (1.0 + tl.exp2(y * (2.0 * LOG2E)))) * SOFTCAP
        if ALIBI:
            s += slopes[:, None] * (pos[None, :] - row_pos[:, None]).to(tl.float32)
        out = s * LOG2E
    else:
        out = x * (score_scale * LOG2E)
    return out


@triton.jit
def _page_ids(table_ptr, at, end, PAGE: tl.constexpr, TILE: tl.constexpr):
    """Page of the tile at token ``at``: one number, or one per token where a tile spans pages. Cells behind the
    sequence's last page are never read."""
    if TILE <= PAGE:
        ids = tl.load(table_ptr + at // PAGE, mask=at < end, other=0)
    else:
        pos = at + tl.arange(0, TILE)
        ids = tl.load(table_ptr + pos // PAGE, mask=pos < end, other=0)
    return ids


@triton.jit
def _int4_scales(at, ok, first, SIDE: tl.constexpr, WIDTH: tl.constexpr, D_PAD: tl.constexpr, TILE: tl.constexpr):
    """fp16 scale and zero of each (channel of a half, token). ``at``: [TILE], a token's first word; ``first``: the
    half's first channel. Where a half is whole groups, each group's word is loaded once and spread."""
    if WIDTH % 32 == 0:
        g = tl.arange(0, D_PAD // 32)
        real = (g < WIDTH // 32)[:, None] & ok[None, :]
        words = tl.load(at[None, :] + 2 * (first // 32 + g)[:, None] + SIDE, mask=real, other=0)
        scale = low_half(words).to(tl.float16)[:, None, :]
        zero = high_half(words).to(tl.float16)[:, None, :]
        scale = tl.broadcast_to(scale, (D_PAD // 32, 32, TILE)).reshape(D_PAD, TILE)
        zero = tl.broadcast_to(zero, (D_PAD // 32, 32, TILE)).reshape(D_PAD, TILE)
    else:
        od = tl.arange(0, D_PAD)
        real = (od < WIDTH)[:, None] & ok[None, :]
        words = tl.load(at[None, :] + 2 * ((first + od) // 32)[:, None] + SIDE, mask=real, other=0)
        scale = low_half(words).to(tl.float16)
        zero = high_half(words).to(tl.float16)
    return scale, zero


@triton.jit
def _int8_to_fp16(code):
    """int8 -> fp16 through the mantissa of 1024: converting would cost more than the matrix product."""
    return (((code.to(tl.uint8, bitcast=True) ^ 0x80).to(tl.uint16)) | 0x6400).to(tl.float16, bitcast=True) - 1152.0


@triton.jit
def _codes(raw, MODE: tl.constexpr, FP8_NATIVE: tl.constexpr, MATH: tl.constexpr):
    """K or V as MATH without scales (e4m3 by bits: over 256)."""
    if MODE == "FP8E4M3":
        if FP8_NATIVE:
            x = raw.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(MATH)
        else:
            x = e4m3_over_256(raw).to(MATH)
    elif MODE == "INT8":
        x = _int8_to_fp16(raw).to(MATH)
    else:
        x = raw.to(MATH)
    return x


@triton.jit
def attend_tiles(
    q, q_hi, row_pos, slopes, key_ptr, value_ptr, scales_ptr, table_ptr, begin, end, live_from, score_scale,
    key_page, key_row: tl.constexpr, value_page, value_row: tl.constexpr, scales_page, scales_row: tl.constexpr,
    D: tl.constexpr, D_PAD: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, MODE: tl.constexpr,
    V_T: tl.constexpr, FP8_NATIVE: tl.constexpr, MATH: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums over tokens ``begin`` (a multiple of TILE) … ``end`` − 1: values (INT4: of the lower half of the channels,
    and of the upper), largest base-2 score m, and weights l, relative to m.

    ``q``: [R, D_PAD] MATH (INT4: the lower half of the channels, ``q_hi`` the upper). ``row_pos``: int32 [R], a row
    sees keys at or before it; −1 sees none. ``live_from``: keys before it are seen by no row and not read. The pointers
    already point to the KV head. Rows within a page are constants: one register then addresses a whole tile of K.
    K is loaded transposed. The page id of the next tile is a loop variable: without that,
    Triton spreads its stages over the dependent loads and keeps one buffer.
    """
    tok = tl.arange(0, TILE)
    od = tl.arange(0, D_PAD)
    WIDTH: tl.constexpr = D // 2 if MODE == "INT4" else D
    R: tl.constexpr = q.shape[0]
    acc = tl.zeros([R, D_PAD], tl.float32)
    acc_hi = tl.zeros([R, D_PAD] if MODE == "INT4" else [1], tl.float32)
    m = tl.full([R], float("-inf"), tl.float32)
    l = tl.zeros([R], tl.float32)  # noqa: E741
    nxt = _page_ids(table_ptr, begin, end, PAGE, TILE)
    for at in tl.range(begin, end, TILE, num_stages=STAGES):
        pos = at + tok
        ok = (pos < end) & (pos >= live_from)
        if TILE <= PAGE:
            # One 64-bit base per tile; within a page 32-bit offsets do, and they are the same in every iteration.
            off = tl.multiple_of(at % PAGE, TILE)
            page = nxt.to(tl.int64)
            key_at = key_ptr + page * key_page + off * key_row + (tok * key_row)[None, :]
            scales_at = scales_ptr + page * scales_page + off * scales_row + tok * scales_row
            if V_T:
                value_at = value_ptr + page * value_page + off + tok[None, :]
            else:
                value_at = value_ptr + page * value_page + off * value_row + (tok * value_row)[:, None]
        else:
            off = pos % PAGE
            page = nxt.to(tl.int64)
            key_at = key_ptr + (page * key_page + off * key_row)[None, :]
            value_at = value_ptr + (page * value_page + off * value_row)[:, None]
            scales_at = scales_ptr + page * scales_page + off * scales_row
        nxt = _page_ids(table_ptr, at + TILE, end, PAGE, TILE)

        if WIDTH == D_PAD:
            raw = tl.load(key_at + od[:, None], mask=ok[None, :], other=0)
        else:
            raw = tl.load(key_at + od[:, None], mask=ok[None, :] & (od < WIDTH)[:, None], other=0)
        if V_T:
            # Unmasked along tokens, where a mask would stop the wide loads: codes are finite and their weight is 0.
            value_at = value_at + od[:, None] * value_row
            if WIDTH == D_PAD:
                raw_v = tl.load(value_at)
            else:
                raw_v = tl.load(value_at, mask=(od < WIDTH)[:, None], other=0)
            if MODE != "INT4":
                raw_v = tl.trans(raw_v)
        else:
            if WIDTH == D_PAD:
                raw_v = tl.load(value_at + od[None, :], mask=ok[:, None], other=0)
            else:
                raw_v = tl.load(value_at + od[None, :], mask=ok[:, None] & (od < WIDTH)[None, :], other=0)
            if MODE == "INT4":
                raw_v = tl.trans(raw_v)  # its scales are laid out channel by token, as for token-contiguous V

        if MODE == "INT4":
            scale, zero = _int4_scales(scales_at, ok, 0, 0, WIDTH, D_PAD, TILE)
            k_lo = nibble_to_fp16(raw & 15) * scale + zero
            scale, zero = _int4_scales(scales_at, ok, WIDTH, 0, WIDTH, D_PAD, TILE)
            k_hi = nibble_to_fp16(raw >> 4) * scale + zero
            x = tl.dot(q, k_lo) + tl.dot(q_hi, k_hi)
        else:
            x = tl.dot(q, _codes(raw, MODE, FP8_NATIVE, MATH), input_precision="ieee")
        if MODE == "INT8":
            words = tl.load(scales_at, mask=ok, other=0)
            x = x * low_half(words)[None, :]
        x = _scores(x, pos, row_pos, slopes, score_scale, SOFTCAP, ALIBI)
        keep = ok[None, :] & (pos[None, :] <= row_pos[:, None])
        if WINDOW > 0:
            keep = keep & (pos[None, :] > row_pos[:, None] - WINDOW)
        x = tl.where(keep, x, float("-inf"))

        top = tl.maximum(m, tl.max(x, 1))
        safe = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp2(x - safe[:, None])
        shrink = tl.exp2(m - safe)
        l = l * shrink + tl.sum(p, 1)  # noqa: E741
        m = top
        if MODE == "INT8":
            p = p * high_half(words)[None, :]
        weights = p.to(MATH)
        if MODE == "INT4":
            scale, zero = _int4_scales(scales_at, ok, 0, 1, WIDTH, D_PAD, TILE)
            v_lo = nibble_to_fp16(raw_v & 15) * scale + zero
            scale, zero = _int4_scales(scales_at, ok, WIDTH, 1, WIDTH, D_PAD, TILE)
            v_hi = nibble_to_fp16(raw_v >> 4) * scale + zero
            acc = acc * shrink[:, None] + tl.dot(weights, tl.trans(v_lo))
            acc_hi = acc_hi * shrink[:, None] + tl.dot(weights, tl.trans(v_hi))
        else:
            v = _codes(raw_v, MODE, FP8_NATIVE, MATH)
            acc = acc * shrink[:, None] + tl.dot(weights, v, input_precision="ieee")
    return acc, acc_hi, m, l
