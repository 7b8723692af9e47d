"""Bytes and balance on paper are those of the real pages and of the real plan."""

import doctest
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbudget_kernels import traffic as module
from kvbudget_kernels.plan import SplitPolicy, Workspace, plan
from kvbudget_kernels.storage import HEAD_DIMS, PAGE_TOKENS, PRECISIONS, Layout
from kvbudget_kernels.traffic import balance, pieces, traffic
from support.laws import share


def test_the_example_holds() -> None:
    assert doctest.testmod(module).failed == 0


@given(
    lengths=st.lists(st.integers(0, 2000), min_size=1, max_size=8),
    units=st.integers(1, 30),
    least=st.integers(1, 4),
    fixed=st.sampled_from([0, 0, 3]),
)
@share(0.2)
def test_pieces_and_balance_are_those_of_the_plan(lengths: list[int], units: int, least: int, fixed: int) -> None:
    policy = SplitPolicy(64, units, least, fixed)
    workspace = Workspace.allocate(
        policy, max_batch=len(lengths), max_tokens=2000, kv_heads=1, rows=1, head_dim=1, device=torch.device("cpu")
    )
    plan(workspace, torch.tensor(lengths, dtype=torch.int32))
    starts, unit = workspace.o_indptr.tolist(), workspace.unit_indptr.tolist()
    assert pieces(policy, lengths) == [b - a for a, b in pairwise(starts)]
    tiles = [-(-(end - start) // 64) for _, start, end, _ in workspace.work[: int(workspace.n_work)].tolist()]
    busy = [sum(tiles[a:b]) for a, b in pairwise(unit) if a < b]
    assert balance(policy, lengths) == pytest.approx(max(busy) * len(busy) / sum(busy) if busy else 1.0)


@given(
    precision=st.sampled_from(PRECISIONS),
    head_dim=st.sampled_from(HEAD_DIMS),
    page=st.sampled_from(PAGE_TOKENS),
    used=st.lists(st.integers(0, 50), min_size=1, max_size=9),
    kv_heads=st.integers(1, 8),
)
@share(0.5)
def test_whole_pages_are_read_once_and_nothing_else_grows_with_them(
    precision: str, head_dim: int, page: int, used: list[int], kv_heads: int
) -> None:
    layout = Layout.of(precision, kv_heads, head_dim, page)
    policy = SplitPolicy(page, units=4)
    moved = traffic(layout, [n * page for n in used], attention_heads=kv_heads * 3, policy=policy)
    assert moved.kv + moved.scales == sum(used) * layout.page_bytes
    longer = traffic(layout, [(n + 1) * page for n in used], attention_heads=kv_heads * 3, policy=policy)
    assert longer.total > moved.total
    assert (longer.queries, longer.outputs) == (moved.queries, moved.outputs)


@given(
    precision=st.sampled_from(["BF16", "FP8E4M3", "INT4"]),
    group=st.sampled_from([1, 4, 8, 16]),
    kv_heads=st.sampled_from([1, 8]),
    tiles=st.integers(1, 4000),
)
@share(0.5)
def test_partial_results_cost_at_most_an_eighth_of_the_pages(
    precision: str, group: int, kv_heads: int, tiles: int
) -> None:
    layout = Layout.of(precision, kv_heads, 128, 64)
    element_bytes = {"BF16": 2.0, "FP8E4M3": 1.0, "INT4": 0.5}[precision]
    policy = SplitPolicy.balanced(tile_tokens=64, kv_heads=kv_heads, group=group, element_bytes=element_bytes, sms=132)
    moved = traffic(layout, [64 * tiles], attention_heads=kv_heads * group, policy=policy)
    assert moved.partials <= moved.kv / 8 * 129 / 128
