"""Cuts the sequences of a step into pieces of equal cost. Every program does the cheap part (sums over the batch) anew
and writes its own block of the lists, so nothing waits for anything."""

import triton
import triton.language as tl


@triton.jit
def _of(values, owners):
    """values[owners], the last value for owners behind them. By a gather: to select among all values for each owner
    takes minutes to compile where there are many."""
    return tl.gather(values, tl.minimum(owners, values.shape[0] - 1), 0)


@triton.jit(do_not_specialize=["batch", "units", "min_tiles", "fixed_tiles", "cap", "q_len"])
def plan_kernel(
    lens_ptr, work_ptr, o_indptr_ptr, unit_ptr, n_work_ptr, batch, units, min_tiles, fixed_tiles, cap, q_len,
    B_PAD: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """See :func:`kvbudget_kernels.plan.plan`. All tile counts are 64-bit: their products with ``units`` are large."""
    pid = tl.program_id(0)
    b = tl.arange(0, B_PAD)
    n = tl.load(lens_ptr + b, mask=b < batch, other=0).to(tl.int64)
    first = tl.zeros_like(n)
    if WINDOW > 0:
        first = tl.maximum(n - q_len - WINDOW + 1, 0) // TILE
    behind = (n + TILE - 1) // TILE
    tiles = behind - first
    ends = tl.cumsum(tiles, 0)
    begins = ends - tiles
    total = tl.maximum(tl.sum(tiles, 0), 1)
    used = tl.minimum(tl.maximum(total // min_tiles, 1), units)
    if fixed_tiles > 0:
        lead = first // fixed_tiles
        pieces = tl.where(tiles > 0, (behind - 1) // fixed_tiles - lead + 1, 0)
    else:
        lead = ((begins + 1) * used - 1) // total
        pieces = tl.where(tiles > 0, (ends * used - 1) // total - lead + 1, 0)
    item_ends = tl.cumsum(pieces, 0).to(tl.int32)  # fewer than the capacity
    item_begins = item_ends - pieces
    n_work = tl.minimum(tl.sum(pieces, 0), cap)
    if pid == 0:
        tl.store(o_indptr_ptr, 0)
        tl.store(o_indptr_ptr + 1 + b, tl.minimum(item_ends, cap).to(tl.int32), mask=b < batch)
        tl.store(n_work_ptr, n_work.to(tl.int32))

    item = pid * BLOCK + tl.arange(0, BLOCK)
    live = item < n_work
    seq = tl.sum((item_ends[None, :] <= item[:, None]).to(tl.int32), 1)
    part = _of(lead, seq) + item - _of(item_begins, seq)
    seq_first = _of(first, seq)
    seq_tokens = _of(n, seq)
    if fixed_tiles > 0:
        start = tl.maximum(part * fixed_tiles, seq_first)
        end = (part + 1) * fixed_tiles
    else:
        seq_begin = _of(begins, seq)
        start = tl.maximum(part * total // used, seq_begin) - seq_begin + seq_first
        end = tl.minimum((part + 1) * total // used, _of(ends, seq)) - seq_begin + seq_first
    row = tl.where(_of(pieces, seq) == 1, -1, item)
    tl.store(work_ptr + 4 * item, seq, mask=live)
    tl.store(work_ptr + 4 * item + 1, (start * TILE).to(tl.int32), mask=live)
    tl.store(work_ptr + 4 * item + 2, tl.minimum(end * TILE, seq_tokens).to(tl.int32), mask=live)
    tl.store(work_ptr + 4 * item + 3, row.to(tl.int32), mask=live)

    unit = (pid * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    if fixed_tiles > 0:
        at = unit * n_work // units
    else:
        owner = tl.sum((ends[None, :] <= (unit * total // used)[:, None]).to(tl.int32), 1)
        at = _of(item_begins, owner) + unit - _of(lead, owner)
        at = tl.where(unit < used, at, n_work)
    tl.store(unit_ptr + unit, tl.minimum(at, n_work).to(tl.int32), mask=unit <= units)
