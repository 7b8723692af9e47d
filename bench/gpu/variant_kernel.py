# mypy: ignore-errors
"""The kernel of :mod:`gpu.variants`. What Triton compiles only looks like Python: its types are the compiler's."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["kv_heads", "table_row", "pages", "group"])
def variant_kernel(
    q_ptr, kv_ptr, table_ptr, work_ptr, unit_ptr, out_ptr, lse_ptr, part_o_ptr, part_lse_ptr,
    scale_log2, kv_heads, table_row, pages, group,
    D: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, R: tl.constexpr, MATH: tl.constexpr,
    AHEAD: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``kv``: [pages, 2, kv_heads, PAGE, D], contiguous; TILE divides PAGE. One token per sequence."""
    h = tl.program_id(0) % kv_heads
    unit = tl.program_id(0) // kv_heads
    r = tl.arange(0, R)
    od = tl.arange(0, D)
    tok = tl.arange(0, TILE)
    live = (r < group)[:, None]
    if TMA:
        rows = pages * 2 * kv_heads * PAGE
        copies = tl.make_tensor_descriptor(kv_ptr, shape=[rows, D], strides=[D, 1], block_shape=[TILE, D])
    for item in range(tl.load(unit_ptr + unit), tl.load(unit_ptr + unit + 1)):
        seq = tl.load(work_ptr + 4 * item).to(tl.int64)
        begin = tl.load(work_ptr + 4 * item + 1)
        end = tl.load(work_ptr + 4 * item + 2)
        part = tl.load(work_ptr + 4 * item + 3).to(tl.int64)
        head = (seq * kv_heads + h) * group + r
        q = tl.load(q_ptr + head[:, None] * D + od[None, :], mask=live, other=0.0).to(MATH)
        acc = tl.zeros([R, D], tl.float32)
        m = tl.full([R], float("-inf"), tl.float32)
        l = tl.zeros([R], tl.float32)  # noqa: E741
        ids = table_ptr + seq * table_row
        nxt = tl.load(ids + begin // PAGE, mask=begin < end, other=0)
        for at in tl.range(begin, end, TILE, num_stages=STAGES):
            if AHEAD:
                page = nxt
                nxt = tl.load(ids + (at + TILE) // PAGE, mask=at + TILE < end, other=0)
            else:
                page = tl.load(ids + at // PAGE)
            ok = at + tok < end
            row = (page.to(tl.int64) * 2 * kv_heads + h) * PAGE + at % PAGE
            if TMA:
                k = copies.load([row.to(tl.int32), 0])
                v = copies.load([(row + kv_heads * PAGE).to(tl.int32), 0])
            else:
                base = kv_ptr + row * D + (tok * D)[:, None] + od[None, :]
                k = tl.load(base, mask=ok[:, None], other=0.0)
                v = tl.load(base + kv_heads.to(tl.int64) * PAGE * D, mask=ok[:, None], other=0.0)
            x = tl.dot(q, tl.trans(k).to(MATH), input_precision="ieee") * scale_log2
            x = tl.where(ok[None, :], x, float("-inf"))
            top = tl.maximum(m, tl.max(x, 1))
            p = tl.exp2(x - top[:, None])
            shrink = tl.exp2(m - top)
            l = l * shrink + tl.sum(p, 1)  # noqa: E741
            acc = acc * shrink[:, None] + tl.dot(p.to(MATH), v.to(MATH), input_precision="ieee")
            m = top
        out = acc / l[:, None]
        if part < 0:
            tl.store(out_ptr + head[:, None] * D + od[None, :], out.to(out_ptr.dtype.element_ty), mask=live)
            tl.store(lse_ptr + head, (m + tl.log2(l)) * 0.6931471805599453, mask=r < group)
        else:
            row_out = (part * kv_heads + h) * group + r
            tl.store(part_o_ptr + row_out[:, None] * D + od[None, :], out, mask=live)
            tl.store(part_lse_ptr + row_out, m + tl.log2(l), mask=r < group)
