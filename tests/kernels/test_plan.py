"""Every live token is in exactly one piece, and the pieces are shared out evenly."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbudget_kernels.errors import KernelInputError
from kvbudget_kernels.plan import SplitPolicy, Workspace, plan
from support.laws import share

CPU = torch.device("cpu")


def _plan(
    policy: SplitPolicy, lengths: list[int], *, q_len: int = 1, window: int | None = None, max_batch: int | None = None
) -> Workspace:
    workspace = Workspace.allocate(
        policy,
        max_batch=max_batch or len(lengths),
        max_tokens=max([*lengths, 1]),
        kv_heads=1,
        rows=1,
        head_dim=1,
        device=CPU,
    )
    for ints in (workspace.work, workspace.o_indptr, workspace.unit_indptr, workspace.n_work):
        ints.fill_(2**30)
    plan(workspace, torch.tensor(lengths, dtype=torch.int32), q_len=q_len, window_tokens=window)
    return workspace


def _pieces(workspace: Workspace) -> list[list[int]]:
    rows: list[list[int]] = workspace.work[: int(workspace.n_work)].tolist()
    return rows


@given(
    lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=12),
    units=st.integers(1, 40),
    tile=st.sampled_from([16, 64]),
    least=st.integers(1, 8),
    fixed=st.sampled_from([0, 0, 2, 8]),
    q_len=st.integers(1, 8),
    window=st.one_of(st.none(), st.integers(1, 3001)),
)
@share(0.3)
def test_a_plan_covers_each_live_token_once_and_stays_within_its_capacity(
    lengths: list[int], units: int, tile: int, least: int, fixed: int, q_len: int, window: int | None
) -> None:
    lengths = [n and max(n, q_len) for n in lengths]
    workspace = _plan(SplitPolicy(tile, units, least, fixed), lengths, q_len=q_len, window=window)
    pieces = _pieces(workspace)
    assert len(pieces) <= workspace.cap
    if not fixed:
        tiles = sum(-(-n // tile) for n in lengths)
        assert len(pieces) <= max(1, tiles // least) + len(lengths), "a range is shorter than it may be"
    indptr, unit = workspace.o_indptr.tolist(), workspace.unit_indptr.tolist()
    assert (unit[0], unit[-1]) == (0, len(pieces))
    assert unit == sorted(unit)
    for b, n in enumerate(lengths):
        own = pieces[indptr[b] : indptr[b + 1]]
        assert all(seq == b and start % tile == 0 and start < end for seq, start, end, _ in own)
        assert all(before[2] == after[1] for before, after in pairwise(own))
        assert (own[-1][2] if own else 0) == n
        live_from = 0 if window is None else max(0, n - q_len - window + 1)
        if own:
            assert live_from - tile < own[0][1] <= live_from
        rows = [-1] if len(own) == 1 else list(range(indptr[b], indptr[b + 1]))
        assert [row for *_, row in own] == (rows if own else [])
        if fixed:
            assert all(start // (fixed * tile) == (end - 1) // (fixed * tile) for _, start, end, _ in own)


def test_a_short_last_piece_has_its_place() -> None:
    """Three sequences of a whole piece and one token: nothing is to spare."""
    workspace = _plan(SplitPolicy(16, 3, 1, fixed_tiles=2), [33, 33, 33])
    assert _pieces(workspace) == [[b, *piece] for b in range(3) for piece in ((0, 32, 2 * b), (32, 33, 2 * b + 1))]


def _lengths(kind: int) -> list[int]:
    """Twenty distributions: alike, one giant, powers, random, tiny and many."""
    rng = random.Random(kind)
    match kind % 5:
        case 0:
            return [4096 << (kind // 5)] * 8
        case 1:
            return [65_536, *[1024] * (15 << (kind // 5))]
        case 2:
            return [2**e for e in range(8, 17)] * (1 + kind // 5)
        case 3:
            return [rng.randint(1, 8192) for _ in range(32 * (1 + kind // 5))]
        case _:
            return [int(rng.lognormvariate(7, 1.5)) + 1 for _ in range(64 * (1 + kind // 5))]


@pytest.mark.parametrize("kind", range(20))
@pytest.mark.parametrize("kv_heads", [1, 8])
def test_no_program_has_much_more_work_than_the_mean(kind: int, kv_heads: int) -> None:
    policy = SplitPolicy.balanced(tile_tokens=64, kv_heads=kv_heads, group=4, element_bytes=2, sms=132)
    workspace = _plan(policy, _lengths(kind))
    pieces, unit = _pieces(workspace), workspace.unit_indptr.tolist()
    work = [sum(-(-(end - start) // 64) for _, start, end, _ in pieces[a:b]) for a, b in pairwise(unit)]
    busy = [each for each in work if each]
    mean = sum(busy) / len(busy)
    assert max(busy) <= max(1.10 * mean, mean + 1), "one tile is the smallest step"
    assert len(busy) == policy.units or mean < 2 * policy.min_tiles


def test_pieces_depend_on_live_lengths_and_not_on_the_table_s_width() -> None:
    """#25. A plan for the same lengths in a workspace for far longer sequences is the same."""
    policy = SplitPolicy(16, 7)
    narrow, wide = _plan(policy, [100, 30]), _plan(policy, [100, 30], max_batch=64)
    assert _pieces(narrow) == _pieces(wide)


def test_entries_of_an_earlier_larger_plan_are_out_of_reach() -> None:
    """#23. A padded graph: planned for 8 sequences, replayed with 3 live ones and shrinking lengths."""
    workspace = _plan(SplitPolicy(16, 5), [200] * 8)
    for longest in (180, 33, 1):
        lengths = torch.tensor([longest, 0, 17, 0, 5, 0, 0, 0], dtype=torch.int32)
        plan(workspace, lengths)
        assert {seq for seq, *_ in _pieces(workspace)} == {0, 2, 4}
        assert int(workspace.unit_indptr[-1]) == int(workspace.n_work)
        assert int(workspace.o_indptr[-1]) == int(workspace.n_work)


@pytest.mark.parametrize(
    ("group", "element_bytes", "tile", "tiles"), [(1, 2, 64, 2), (8, 2, 64, 2), (16, 2, 64, 4), (8, 0.5, 32, 16)]
)
def test_a_range_is_long_enough_for_its_partial_results(
    group: int, element_bytes: float, tile: int, tiles: int
) -> None:
    """max(128, 32·G/e) tokens: partial results then cost at most an eighth of the KV's traffic."""
    policy = SplitPolicy.balanced(
        tile_tokens=tile, kv_heads=8, group=group, element_bytes=element_bytes, sms=132, ctas_per_sm=4
    )
    assert (policy.units, policy.min_tiles, policy.fixed_tiles) == (66, tiles, 0)
    invariant = SplitPolicy.batch_invariant(tile_tokens=tile, kv_heads=8, sms=132)
    assert invariant.fixed_tiles * tile == 512


def test_longer_sequences_than_the_workspace_is_for_write_nothing_outside_it() -> None:
    """#24. The interpreter is made to refuse what leaves a tensor (tests/support/checked_memory.py)."""
    workspace = Workspace.allocate(
        SplitPolicy(16, 3, 1, fixed_tiles=1), max_batch=2, max_tokens=40, kv_heads=1, rows=1, head_dim=1, device=CPU
    )
    plan(workspace, torch.tensor([4000, 70], dtype=torch.int32))
    assert int(workspace.n_work) == workspace.cap == 6
    assert workspace.o_indptr.tolist() == [0, 6, 6]


def test_long_sequences_do_not_overflow_a_product() -> None:
    lengths = [2_000_000_000, 100_000_000]
    pieces = _pieces(_plan(SplitPolicy(16, 500), lengths))
    assert sum(end - start for _, start, end, _ in pieces) == sum(lengths)
    assert max(end - start for _, start, end, _ in pieces) <= sum(lengths) // 500 + 32


def test_a_larger_batch_than_the_workspace_s_is_refused() -> None:
    workspace = _plan(SplitPolicy(16, 2), [5])
    with pytest.raises(KernelInputError, match="2 sequences for a workspace of 1"):
        plan(workspace, torch.tensor([1, 1], dtype=torch.int32))
