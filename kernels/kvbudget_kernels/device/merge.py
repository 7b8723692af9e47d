"""Partial results over disjoint tokens become one. Neither an empty part nor what never was written counts."""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def finish(acc, m, l, sink, HAS_SINKS: tl.constexpr):  # noqa: E741
    """Normalised rows and their natural lse from sums relative to ``m`` (base 2). ``sink``: natural logit per row."""
    if HAS_SINKS:
        sink2 = sink * LOG2E
        top = tl.maximum(m, sink2)
        safe = tl.where(top == float("-inf"), 0.0, top)
        shrink = tl.exp2(m - safe)
        total = l * shrink + tl.exp2(sink2 - safe)
        acc = acc * shrink[:, None]
    else:
        safe = tl.where(m == float("-inf"), 0.0, m)
        total = l
    out = acc * tl.where(total > 0, 1.0 / total, 0.0)[:, None]
    lse = tl.where(total > 0, (safe + tl.log2(total)) * LN2, float("-inf"))
    return out, lse


@triton.jit(do_not_specialize=["kv_heads", "rows", "lse_seq", "lse_token", "G"])
def merge_splits_kernel(
    part_o_ptr, part_lse_ptr, o_indptr_ptr, sinks_ptr, out_ptr, lse_ptr,
    kv_heads, rows, out_seq, out_token, out_head, lse_seq, lse_token,
    G, D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """One program per (sequence, KV head, block of rows). A sequence of one piece is already in ``out``; one of no
    piece gets zeros. ``part_o``: [cap, kv_heads, rows, D], ``part_lse``: [cap, kv_heads, rows] in base 2."""
    pid = tl.program_id(0).to(tl.int64)
    blocks = (rows + ROWS - 1) // ROWS
    r = (pid % blocks) * ROWS + tl.arange(0, ROWS)
    h = (pid // blocks) % kv_heads
    seq = pid // (blocks * kv_heads)
    begin = tl.load(o_indptr_ptr + seq)
    end = tl.load(o_indptr_ptr + seq + 1)
    if end - begin != 1:
        od = tl.arange(0, D_PAD)
        live = r < rows
        m = tl.full([ROWS], float("-inf"), tl.float32)
        l = tl.zeros([ROWS], tl.float32)  # noqa: E741
        acc = tl.zeros([ROWS, D_PAD], tl.float32)
        for at in range(begin, end, SPLITS):
            s = at + tl.arange(0, SPLITS)
            row = (s.to(tl.int64)[:, None] * kv_heads + h) * rows + r[None, :]
            ok = (s < end)[:, None] & live[None, :]
            lse = tl.load(part_lse_ptr + row, mask=ok, other=float("-inf"))
            o = tl.load(
                part_o_ptr + row[:, :, None] * D + od[None, None, :],
                mask=ok[:, :, None] & (od < D)[None, None, :],
                other=0.0,
            )
            top = tl.maximum(m, tl.max(lse, 0))
            safe = tl.where(top == float("-inf"), 0.0, top)
            weight = tl.exp2(lse - safe[None, :])
            shrink = tl.exp2(m - safe)
            l = l * shrink + tl.sum(weight, 0)  # noqa: E741
            acc = acc * shrink[:, None] + tl.sum(o * weight[:, :, None], 0)
            m = top
        head = h * G + r % G
        sink = tl.zeros([ROWS], tl.float32)
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head, mask=live, other=float("-inf"))
            sink = tl.where(end > begin, sink, float("-inf"))
        out, lse = finish(acc, m, l, sink, HAS_SINKS)
        at = out_ptr + seq * out_seq + (r // G) * out_token + head * out_head
        mask = live[:, None] & (od < D)[None, :]
        tl.store(at[:, None] + od[None, :], out.to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(lse_ptr + seq * lse_seq + (r // G) * lse_token + head, lse, mask=live)


@triton.jit(do_not_specialize=["rows", "heads", "parts"])
def merge_states_kernel(
    a_ptr, a_lse_ptr, b_ptr, b_lse_ptr, sinks_ptr, out_ptr, lse_ptr, rows, heads, parts,
    D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Rows (token, head) of a state ``a`` and of ``parts`` states ``b`` [parts, rows, D], all contiguous."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    od = tl.arange(0, D_PAD)
    live = r < rows
    mask = live[:, None] & (od < D)[None, :]
    at = r[:, None] * D + od[None, :]
    m = tl.load(a_lse_ptr + r, mask=live, other=float("-inf")) * LOG2E
    l = tl.where(m == float("-inf"), 0.0, 1.0)  # noqa: E741
    # An empty side may hold anything, NaN too: it is not read.
    acc = tl.load(a_ptr + at, mask=mask & (m > float("-inf"))[:, None], other=0.0).to(tl.float32)
    for part in range(parts):
        row = part * rows.to(tl.int64)
        lse = tl.load(b_lse_ptr + row + r, mask=live, other=float("-inf")) * LOG2E
        b = tl.load(b_ptr + row * D + at, mask=mask & (lse > float("-inf"))[:, None], other=0.0)
        top = tl.maximum(m, lse)
        safe = tl.where(top == float("-inf"), 0.0, top)
        shrink = tl.exp2(m - safe)
        weight = tl.exp2(lse - safe)
        acc = acc * shrink[:, None] + b.to(tl.float32) * weight[:, None]
        l = l * shrink + weight  # noqa: E741
        m = top
    sink = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + r % heads, mask=live, other=float("-inf"))
    out, lse = finish(acc, m, l, sink, HAS_SINKS)
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(lse_ptr + r, lse, mask=live)
