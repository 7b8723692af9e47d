"""Decode over compressed latents (MLA): one latent per token for all heads; its first channels are the value."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["q_len", "heads", "row_tiles", "table_row", "lse_seq", "lse_token"])
def mla_decode_kernel(
    q_ptr, q_rope_ptr, latent_ptr, table_ptr, lens_ptr, work_ptr, unit_ptr, out_ptr, lse_ptr, part_o_ptr, part_lse_ptr,
    sm_scale, q_len, heads, row_tiles, table_row,
    q_seq, q_token, q_head, rope_seq, rope_token, rope_head, out_seq, out_token, out_head, lse_seq, lse_token,
    latent_page, latent_row,
    R: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    MATH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program per (unit of the plan, tile of rows); rows are (token, head)."""
    LOG2E: tl.constexpr = 1.4426950408889634
    LN2: tl.constexpr = 0.6931471805599453
    pid = tl.program_id(0)
    unit = pid // row_tiles
    r = (pid % row_tiles) * R + tl.arange(0, R)
    live = r < q_len * heads
    token = (r // heads).to(tl.int64)
    head = (r % heads).to(tl.int64)
    oc = tl.arange(0, RANK)
    orope = tl.arange(0, ROPE)
    tok = tl.arange(0, TILE)
    for item in range(tl.load(unit_ptr + unit), tl.load(unit_ptr + unit + 1)):
        seq = tl.load(work_ptr + 4 * item).to(tl.int64)
        begin = tl.load(work_ptr + 4 * item + 1)
        end = tl.load(work_ptr + 4 * item + 2)
        part = tl.load(work_ptr + 4 * item + 3).to(tl.int64)
        n = tl.load(lens_ptr + seq)
        q_at = q_ptr + seq * q_seq + token * q_token + head * q_head
        q = tl.load(q_at[:, None] + oc[None, :], mask=live[:, None], other=0.0).to(MATH)
        rope_at = q_rope_ptr + seq * rope_seq + token * rope_token + head * rope_head
        q_rope = tl.load(rope_at[:, None] + orope[None, :], mask=live[:, None], other=0.0).to(MATH)
        row_pos = tl.where(live, n - q_len + r // heads, -1)
        acc = tl.zeros([R, RANK], tl.float32)
        m = tl.full([R], float("-inf"), tl.float32)
        l = tl.zeros([R], tl.float32)  # noqa: E741
        pages = table_ptr + seq * table_row
        nxt = tl.load(pages + begin // PAGE, mask=begin < end, other=0)
        for at in tl.range(begin, end, TILE, num_stages=STAGES):
            pos = at + tok
            ok = pos < end
            base = latent_ptr + nxt.to(tl.int64) * latent_page + (at % PAGE) * latent_row + (tok * latent_row)[:, None]
            nxt = tl.load(pages + (at + TILE) // PAGE, mask=at + TILE < end, other=0)
            c = tl.load(base + oc[None, :], mask=ok[:, None], other=0.0).to(MATH)
            k_rope = tl.load(base + RANK + orope[None, :], mask=ok[:, None], other=0.0).to(MATH)
            x = tl.dot(q, tl.trans(c), input_precision="ieee")
            x += tl.dot(q_rope, tl.trans(k_rope), input_precision="ieee")
            keep = ok[None, :] & (pos[None, :] <= row_pos[:, None])
            x = tl.where(keep, x * (sm_scale * LOG2E), float("-inf"))
            top = tl.maximum(m, tl.max(x, 1))
            safe = tl.where(top == float("-inf"), 0.0, top)
            p = tl.exp2(x - safe[:, None])
            shrink = tl.exp2(m - safe)
            l = l * shrink + tl.sum(p, 1)  # noqa: E741
            m = top
            acc = acc * shrink[:, None] + tl.dot(p.to(MATH), c, input_precision="ieee")
        out = acc * tl.where(l > 0, 1.0 / l, 0.0)[:, None]
        lse2 = tl.where(l > 0, tl.where(m == float("-inf"), 0.0, m) + tl.log2(l), float("-inf"))
        if part < 0:
            out_at = out_ptr + seq * out_seq + token * out_token + head * out_head
            tl.store(out_at[:, None] + oc[None, :], out.to(out_ptr.dtype.element_ty), mask=live[:, None])
            tl.store(lse_ptr + seq * lse_seq + token * lse_token + head, lse2 * LN2, mask=live)
        else:
            row = part * (q_len * heads) + r
            tl.store(part_o_ptr + row[:, None] * RANK + oc[None, :], out, mask=live[:, None])
            tl.store(part_lse_ptr + row, lse2, mask=live)
