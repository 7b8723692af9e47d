"""How many bytes a decode step moves, and how evenly a plan shares the work: on paper, without a device.

Moved are the K, V and scales of live tokens, the queries, the outputs, the table's cells, and for sequences in pieces
the partial results, which are written and read again. K and V are read once, for all heads of a group.

>>> from kvbudget_kernels.plan import SplitPolicy
>>> from kvbudget_kernels.storage import Layout
>>> layout, policy = Layout.of("BF16", 8, 128, 64), SplitPolicy(tile_tokens=64, units=66)
>>> moved = traffic(layout, [32768] * 8, attention_heads=32, policy=policy)
>>> moved.kv, moved.total
(1073741824, 1076382720)
>>> round(balance(policy, [32768] * 8), 3)
1.015
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate, pairwise

from kvbudget_kernels.plan import SplitPolicy
from kvbudget_kernels.storage import Layout


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one layer's step. ``partials``: as often as they are moved (twice)."""

    kv: int
    scales: int
    queries: int
    outputs: int
    partials: int
    table: int

    @property
    def total(self) -> int:
        return sum(astuple(self))

    def least_us(self, bytes_per_s: float) -> float:
        """Microseconds at that rate: no step can be faster."""
        return self.total / bytes_per_s * 1e6


def traffic(
    layout: Layout, lengths: Sequence[int], *, attention_heads: int, policy: SplitPolicy, q_len: int = 1,
    io_bytes: int = 2,
) -> Traffic:  # fmt: skip
    """``lengths``: tokens of each sequence, the queries' included. ``io_bytes``: of an element of query and out."""
    tokens = sum(lengths)
    rows = len(lengths) * q_len * attention_heads
    split = sum(count for count in pieces(policy, lengths) if count > 1)
    partial_row = 4 * (layout.head_dim + 1)
    return Traffic(
        kv=tokens * layout.kv_heads * 2 * layout.row_codes * layout.code_dtype.itemsize,
        scales=tokens * layout.kv_heads * 4 * layout.scale_words,
        queries=rows * layout.head_dim * io_bytes,
        outputs=rows * (layout.head_dim * io_bytes + 4),
        partials=2 * split * q_len * attention_heads * partial_row,
        table=layout.kv_heads * 4 * sum(-(-n // layout.page_tokens) for n in lengths),
    )


def pieces(policy: SplitPolicy, lengths: Sequence[int]) -> list[int]:
    """Pieces of each sequence, as :func:`kvbudget_kernels.plan.plan` makes them (without a window)."""
    tiles = [-(-n // policy.tile_tokens) for n in lengths]
    if policy.fixed_tiles:
        return [-(-n // policy.fixed_tiles) for n in tiles]
    total, used = _shared(policy, tiles)
    ends = list(accumulate(tiles))
    return [
        (end * used - 1) // total - ((end - n + 1) * used - 1) // total + 1 if n else 0
        for n, end in zip(tiles, ends, strict=True)
    ]


def balance(policy: SplitPolicy, lengths: Sequence[int]) -> float:
    """Tiles of the busiest unit over the mean of those that have work; 1.0 without work."""
    tiles = [-(-n // policy.tile_tokens) for n in lengths]
    if policy.fixed_tiles:
        fixed = policy.fixed_tiles
        work = [min(fixed, n - at) for n in tiles for at in range(0, n, fixed)]
        cuts = [unit * len(work) // policy.units for unit in range(policy.units + 1)]
        busy = [sum(work[a:b]) for a, b in pairwise(cuts) if a < b]
    else:
        total, used = _shared(policy, tiles)
        busy = [(unit + 1) * total // used - unit * total // used for unit in range(used)] if any(tiles) else []
    return max(busy) * len(busy) / sum(busy) if busy else 1.0


def _shared(policy: SplitPolicy, tiles: Sequence[int]) -> tuple[int, int]:
    """Tiles in all, and units that share them."""
    total = max(1, sum(tiles))
    return total, min(max(total // policy.min_tiles, 1), policy.units)
