"""What holds for any lengths, masks, cuts and company: the laws of decode, extend and cascade."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbudget_kernels import reference
from kvbudget_kernels.paged_extend import paged_extend
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout, PagedKV
from kvbudget_kernels.tune import Tiles
from support.cascades import check_cascade
from support.kernel_cases import Case, assert_close, decode, make_case, make_query
from support.laws import share

Both = tuple[torch.Tensor, torch.Tensor]
PRECISION = st.sampled_from(["FP16", "FP8E4M3", "INT8", "INT4"])
LENGTHS = st.lists(st.integers(0, 70), min_size=1, max_size=3)
TILES = Tiles(16, 16, 4, 3)


@st.composite
def rules(draw: st.DrawFn, heads: int) -> ScoreRules:
    """Any masks and biases for so many heads."""
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return ScoreRules(
        sm_scale=0.125,
        window_tokens=draw(st.sampled_from([None, 1, 7, 16, 40])),
        softcap=draw(st.sampled_from([None, 3.0])),
        sinks=torch.randn(heads, generator=numbers) * 3 if draw(st.booleans()) else None,
        alibi_slopes=torch.rand(heads, generator=numbers) / 2 if draw(st.booleans()) else None,
    )


def _same(a: Both, b: Both) -> bool:
    return torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def _moved(case: Case, seed: int) -> Case:
    """The same sequences with their pages elsewhere."""
    order = torch.randperm(case.cache.pages, generator=torch.Generator().manual_seed(seed))
    cache = case.cache
    moved = PagedKV(
        cache.layout, cache.key[order], cache.value[order], None if cache.scales is None else cache.scales[order],
        cache.k_scale, cache.v_scale,
    )  # fmt: skip
    where = torch.argsort(order).to(torch.int32)
    table = torch.where(case.table < 0, -1, where[case.table.clamp(min=0).long()]).to(torch.int32)
    return replace(case, cache=moved, table=table)


@given(LENGTHS, PRECISION, st.integers(1, 3), st.integers(1, 30), st.integers(0, 3), st.data())
@share(0.06)
def test_other_splits_give_the_same_within_tolerance(
    lengths: list[int], precision: str, q_len: int, units: int, fixed: int, data: st.DataObject
) -> None:
    case = make_case(Layout.of(precision, 2, 64, 16), [n and max(n, q_len) for n in lengths])
    chosen, query = data.draw(rules(6)), make_query(case, 6, q_len)
    want = reference.paged_decode(query, case.cache, case.table, case.seq_lens, chosen)
    for cut in ((1, 0), (units, 0), (units, fixed)):
        got = decode(case, query, chosen, tiles=TILES, units=cut[0], fixed_tiles=cut[1])
        assert_close(got, want, precision)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=3), PRECISION, st.integers(0, 9), st.data())
@share(0.05)
def test_where_pages_lie_changes_no_bit(lengths: list[int], precision: str, seed: int, data: st.DataObject) -> None:
    """#30."""
    case = make_case(Layout.of(precision, 1, 64, 16), lengths)
    chosen, query = data.draw(rules(3)), make_query(case, 3)
    assert _same(decode(_moved(case, seed), query, chosen), decode(case, query, chosen))
    cu = torch.arange(len(lengths) + 1, dtype=torch.int32)
    extended = [
        paged_extend(query[:, 0], cu, each.cache, each.table, each.seq_lens, chosen)
        for each in (case, _moved(case, seed))
    ]
    assert _same(*extended)


@given(st.lists(st.integers(1, 70), min_size=2, max_size=4), PRECISION, st.integers(1, 3), st.data())
@share(0.05)
def test_in_batch_invariant_mode_company_changes_no_bit(
    lengths: list[int], precision: str, q_len: int, data: st.DataObject
) -> None:
    """#27. Alone, and in a batch of any others, with any number of programs."""
    case = make_case(Layout.of(precision, 1, 64, 16), [max(n, q_len) for n in lengths])
    chosen, query = data.draw(rules(3)), make_query(case, 3, q_len)
    b = data.draw(st.integers(0, len(lengths) - 1))
    whole = decode(case, query, chosen, tiles=TILES, fixed_tiles=2, units=data.draw(st.integers(1, 9)))
    one = slice(b, b + 1)
    alone = Case(case.cache, case.table[one].contiguous(), case.seq_lens[one].contiguous(), [], [])
    got = decode(alone, query[one], chosen, tiles=TILES, fixed_tiles=2, units=data.draw(st.integers(1, 9)))
    assert _same(got, (whole[0][one], whole[1][one]))


@given(st.integers(1, 60), st.integers(1, 4), st.data())
@share(0.05)
def test_queries_at_once_are_queries_one_by_one(tokens: int, q_len: int, data: st.DataObject) -> None:
    """#16."""
    case = make_case(Layout.of("FP16", 1, 64, 16), [tokens + q_len, q_len])
    chosen, query = data.draw(rules(3)), make_query(case, 3, q_len)
    out, lse = decode(case, query, chosen)
    for i in range(q_len):
        shorter = replace(case, seq_lens=case.seq_lens - (q_len - 1 - i))
        one = decode(shorter, query[:, i : i + 1], chosen)
        assert_close((out[:, i : i + 1], lse[:, i : i + 1]), (one[0].double(), one[1].double()), "FP16")


@given(st.integers(2, 60), PRECISION, st.lists(st.integers(1, 59), max_size=3, unique=True), st.data())
@share(0.06)
def test_a_prompt_in_chunks_is_the_prompt_at_once(
    tokens: int, precision: str, cuts: list[int], data: st.DataObject
) -> None:
    """Each chunk with another prompt beside it: whose rows stand before its own must not matter."""
    case = make_case(Layout.of(precision, 1, 64, 16), [tokens, 23])
    chosen, query = data.draw(rules(3)), make_query(case, 3, tokens)[0]
    beside = make_query(case, 3, 23, seed=1)[1]
    bounds = [0, *sorted(cut for cut in cuts if cut < tokens), tokens]
    want = reference.attend(query, *reference.gather(case.cache, case.table[0], tokens), torch.arange(tokens), chosen)
    outs, lses = [], []
    for first, last in pairwise(bounds):
        order = [1, 0] if data.draw(st.booleans()) else [0, 1]
        rows, counts = [query[first:last], beside], [last - first, 23]
        lens = torch.tensor([last, 23], dtype=torch.int32)[order]
        cu = torch.tensor([0, counts[order[0]], sum(counts)], dtype=torch.int32)
        both = torch.cat([rows[o] for o in order])
        out, lse = paged_extend(both, cu, case.cache, case.table[order].contiguous(), lens, chosen, tiles=TILES)
        mine = slice(0, last - first) if order[0] == 0 else slice(23, None)
        outs.append(out[mine])
        lses.append(lse[mine])
    assert_close((torch.cat(outs), torch.cat(lses)), want, precision)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=2), st.lists(st.integers(1, 30), min_size=1, max_size=4),
    PRECISION, st.integers(1, 2), st.integers(1, 4), st.data(),
)  # fmt: skip
@share(0.06)
def test_cascade_is_flat_attention(
    prefixes: list[int], suffixes: list[int], precision: str, q_len: int, splits: int, data: st.DataObject
) -> None:
    """Any groups, prefixes that end anywhere, sequences without one."""
    owner = [data.draw(st.integers(-1, len(prefixes) - 1)) for _ in suffixes]
    members = [[b for b, g in enumerate(owner) if g == group] for group in range(len(prefixes))]
    lens = [max(n, q_len) for n in suffixes]
    check_cascade(Layout.of(precision, 1, 64, 16), prefixes, members, lens, q_len, data.draw(rules(3)), splits)


@pytest.mark.parametrize("precision", ["FP16", "INT8"])
def test_a_sequence_s_result_has_the_same_bits_whoever_is_prefilled_beside_it(precision: str) -> None:
    case = make_case(Layout.of(precision, 1, 64, 16), [40, 7, 33])
    chosen = ScoreRules(0.125)
    query = [make_query(case, 3, n, seed=n)[b] for b, n in enumerate((20, 7, 1))]
    cu = torch.tensor([0, 20, 27, 28], dtype=torch.int32)
    out, _ = paged_extend(torch.cat(query), cu, case.cache, case.table, case.seq_lens, chosen, tiles=TILES)
    for b in range(3):
        alone = torch.tensor([0, len(query[b])], dtype=torch.int32)
        one = slice(b, b + 1)
        got, _ = paged_extend(
            query[b], alone, case.cache, case.table[one], case.seq_lens[one], chosen, tiles=TILES
        )  # fmt: skip
        assert torch.equal(got, out[int(cu[b]) : int(cu[b + 1])])
