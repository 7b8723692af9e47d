"""A shared prefix that is read once gives what reading it for each sequence gives."""

import pytest
import torch

from kvbudget_kernels import reference
from kvbudget_kernels.cascade import PrefixGroups, cascade_decode
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout
from support.kernel_cases import Case, assert_close, make_case, make_query, make_workspace


def _cascade(
    layout: Layout,
    prefixes: list[int],
    members: list[list[int]],
    suffixes: list[int],
    q_len: int,
    rules: ScoreRules,
    splits: int,
) -> None:
    """Suffix tables and prefix tables share one cache; the flat tables join them page by page."""
    page = layout.page_tokens
    filled = make_case(layout, prefixes + suffixes)
    groups = len(prefixes)
    suffix_lens = filled.seq_lens[groups:].contiguous()
    table, suffix_table = filled.table[:groups].contiguous(), filled.table[groups:].contiguous()
    indptr = torch.tensor([0, *torch.tensor([len(m) for m in members]).cumsum(0).tolist()], dtype=torch.int32)
    flat = torch.tensor([each for group in members for each in group], dtype=torch.int32)
    heads = 3 * layout.kv_heads
    prefix_groups = PrefixGroups(table, filled.seq_lens[:groups].contiguous(), indptr, flat, max(map(len, members)))
    suffix_case = Case(filled.cache, suffix_table, suffix_lens, [], [])
    query = make_query(suffix_case, heads, q_len)
    got = cascade_decode(
        query, filled.cache, prefix_groups, suffix_table, suffix_lens, rules,
        make_workspace(suffix_case, heads, q_len), splits=splits,
    )  # fmt: skip
    owner = {each: g for g, group in enumerate(members) for each in group}
    rows, lens = [], []
    for b, n in enumerate(suffixes):
        g = owner.get(b)
        pages = [] if g is None else table[g, : -(-prefixes[g] // page)].tolist()
        rows.append(pages + suffix_table[b, : -(-n // page)].tolist())
        lens.append(n + (0 if g is None else prefixes[g]))
    width = max(map(len, rows))
    flat_table = torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.int32)
    want = reference.paged_decode(query, filled.cache, flat_table, torch.tensor(lens, dtype=torch.int32), rules)
    assert_close(got, want, layout.precision)


@pytest.mark.parametrize("precision", ["FP16", "FP8E4M3", "INT8", "INT4"])
@pytest.mark.parametrize("splits", [1, 3])
def test_cascade_is_flat_attention(precision: str, splits: int) -> None:
    layout = Layout.of(precision, 2, 64, 16)
    _cascade(layout, [96, 32], [[0, 2, 3], [1]], [5, 17, 33, 2, 20], 2, ScoreRules(0.125), splits)


@pytest.mark.parametrize("prefix", [0, 16, 48])
def test_a_prefix_of_any_number_of_pages_and_one_member(prefix: int) -> None:
    _cascade(Layout.of("FP16", 1, 64, 16), [prefix], [[1]], [4, 9], 1, ScoreRules(0.125), 2)


def test_a_query_whose_suffix_is_empty_is_the_prefix_s_last_token() -> None:
    layout = Layout.of("FP16", 2, 64, 16)
    _cascade(layout, [40], [[0]], [0], 1, ScoreRules(0.125), 2)


def test_window_softcap_alibi_and_sinks_count_once_over_prefix_and_suffix() -> None:
    rules = ScoreRules(
        0.125, window_tokens=30, softcap=20.0, alibi_slopes=torch.logspace(-3, -1, 6), sinks=torch.linspace(-1, 3, 6)
    )
    _cascade(Layout.of("FP16", 2, 64, 16), [64], [[0, 1, 2]], [3, 40, 12], 2, rules, 2)
