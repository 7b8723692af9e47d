"""Mistakes that other paged-attention kernels made, one test each, and the laws that decode keeps."""

import math
from dataclasses import replace

import pytest
import torch

from kvbudget_kernels import reference
from kvbudget_kernels.errors import KernelInputError
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.plan import plan
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout, PagedKV
from kvbudget_kernels.tune import Tiles, row_tile
from support.kernel_cases import (
    Case,
    assert_close,
    check_decode,
    decode,
    make_case,
    make_query,
    make_workspace,
    rel_l2,
)

SCALE = ScoreRules(0.125)
FP16 = Layout.of("FP16", 2, 64, 16)


@pytest.mark.parametrize("page", [65_535, 65_536, 70_000])
def test_page_ids_above_16_bits(page: int) -> None:
    """#2."""
    layout = Layout.of("INT4", 1, 16, 16)
    small = make_case(layout, [16], spare_pages=0, spread=2.0)
    storage = torch.zeros(70_001, layout.page_bytes, dtype=torch.uint8)
    cache = PagedKV.over(layout, storage)
    assert cache.scales is not None
    assert small.cache.scales is not None
    cache.key[page], cache.value[page], cache.scales[page] = (
        small.cache.key[0], small.cache.value[0], small.cache.scales[0]
    )  # fmt: skip
    check_decode(
        replace(small, cache=cache, table=torch.tensor([[page]], dtype=torch.int32)), make_query(small, 2), SCALE
    )


@pytest.mark.parametrize("tail", [-1, 10**6])
def test_cells_behind_the_last_page_are_never_read(tail: int) -> None:
    """#3, #4. The table ends where its storage ends; page 0 is in use like any other."""
    case = make_case(FP16, [33, 1, 48], spare_pages=0)
    assert 0 in case.table.tolist()[0] + case.table.tolist()[1] + case.table.tolist()[2]
    check_decode(replace(case, table=torch.where(case.table < 0, tail, case.table)), make_query(case, 6), SCALE)


def test_logits_of_minus_1e5_and_sequences_of_nothing() -> None:
    """#6. No finite sentinel stands for −∞."""
    case = make_case(FP16, [0, 20, 0, 1])
    query = make_query(case, 4)
    for rules in (ScoreRules(0.125), ScoreRules(1e4)):
        want = reference.paged_decode(query, case.cache, case.table, case.seq_lens, rules)
        out, lse = decode(case, query, rules)
        assert not out[0].any()
        assert bool((lse[0] == -math.inf).all())
        assert bool(torch.isfinite(out).all())
        assert rel_l2(out, want[0]) < 1e-2


def test_more_units_than_tiles() -> None:
    """#7. Workspace and outputs are NaN before."""
    case = make_case(FP16, [1, 17, 0])
    check_decode(case, make_query(case, 4), SCALE, units=64)


@pytest.mark.parametrize("units", [1, 7])
def test_the_place_of_lse_does_not_follow_from_that_of_out(units: int) -> None:
    """#9. Heads of 80 channels in rows of 96, and lse in rows of another width. What lies between stays as it is."""
    case = make_case(Layout.of("FP16", 2, 80, 16), [70, 3])
    query = make_query(case, 6, q_len=2)
    workspace = make_workspace(case, 6, 2, units=units)
    plan(workspace, case.seq_lens, q_len=2)
    out, lse = torch.full((2, 3, 7, 96), 9.0).half(), torch.full((2, 5, 11), 9.0)
    views = out[:, :2, :6, :80], lse[:, :2, :6]
    paged_decode(query, case.cache, case.table, case.seq_lens, SCALE, workspace, out=views[0], lse=views[1])
    assert_close(views, reference.paged_decode(query, case.cache, case.table, case.seq_lens, SCALE), "FP16")
    for whole, view in ((out, views[0]), (lse, views[1])):
        view.fill_(9.0)
        assert bool((whole == 9).all())


@pytest.mark.parametrize("units", [1, 6])
def test_scales_of_k_and_v_count_on_every_path(units: int) -> None:
    """#10. Twice the scale of V is twice the output; K's scale is part of the score. One piece, and many."""
    case = make_case(Layout.of("FP8E4M3", 2, 64, 16), [90])
    query = make_query(case, 4)
    out, lse = check_decode(case, query, SCALE, units=units)
    cache = case.cache
    assert cache.k_scale is not None
    assert cache.v_scale is not None
    doubled = replace(case, cache=replace(cache, v_scale=cache.v_scale * 2))
    torch.testing.assert_close(decode(doubled, query, SCALE, units=units)[0], out * 2, rtol=2e-3, atol=1e-4)
    softer = replace(case, cache=replace(cache, k_scale=cache.k_scale * 2))
    assert not torch.allclose(decode(softer, query, SCALE, units=units)[1], lse, atol=1e-2)


def test_a_window_of_one_gives_the_last_value_and_a_wide_one_changes_nothing() -> None:
    """#15."""
    lengths = [1, 16, 50]
    case = make_case(FP16, lengths)
    query = make_query(case, 4)
    out, _ = decode(case, query, replace(SCALE, window_tokens=1))
    for b, n in enumerate(lengths):
        want = case.value[b][n - 1].repeat_interleave(2, dim=0)
        torch.testing.assert_close(out[b, 0], want, rtol=1e-3, atol=1e-3)
    full = decode(case, query, SCALE)
    for window in (50, 51):
        got = decode(case, query, replace(SCALE, window_tokens=window))
        assert_close(got, (full[0].double(), full[1].double()), "FP16")


@pytest.mark.parametrize("window", [None, 18])
def test_four_queries_at_once_are_four_queries_one_by_one(window: int | None) -> None:
    """#16. Each row has a mask of its own."""
    case = make_case(FP16, [40, 17, 4])
    query = make_query(case, 6, q_len=4)
    rules = replace(SCALE, window_tokens=window)
    out, lse = decode(case, query, rules)
    for i in range(4):
        shorter = replace(case, seq_lens=case.seq_lens - 3 + i)
        one_out, one_lse = decode(shorter, query[:, i : i + 1], rules)
        torch.testing.assert_close(out[:, i], one_out[:, 0], rtol=2e-3, atol=1e-3)
        torch.testing.assert_close(lse[:, i], one_lse[:, 0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("units", [1, 2, 16])
def test_a_sink_counts_once_however_often_a_sequence_is_split(units: int) -> None:
    """#17."""
    case = make_case(FP16, [100, 5])
    rules = replace(SCALE, sinks=torch.tensor([3.0, -math.inf, 0.0, 8.0]))
    check_decode(case, make_query(case, 4), rules, units=units)


def test_softcap_of_huge_logits_and_alibi_at_a_page_s_border() -> None:
    """#18."""
    case = make_case(FP16, [1, 17, 16])
    query = make_query(case, 4)
    check_decode(case, query, ScoreRules(1e3, softcap=30.0))
    check_decode(case, query, replace(SCALE, alibi_slopes=torch.tensor([1.0, 0.5, 0.25, 0.125])))


@pytest.mark.parametrize("group", [3, 5, 6, 7, 12, 24])
def test_rows_do_not_bleed_into_the_next_head(group: int) -> None:
    """#21. Every KV head has values of its own, a constant each."""
    layout = Layout.of("FP16", 3, 64, 16)
    case = make_case(layout, [20, 20])
    case.cache.value.copy_(torch.tensor([1.0, 2.0, 4.0]).view(1, 3, 1, 1))
    out, _ = decode(case, make_query(case, 3 * group, q_len=2), SCALE)
    want = torch.tensor([1.0, 2.0, 4.0]).repeat_interleave(group).view(1, 1, -1, 1).expand_as(out)
    torch.testing.assert_close(out.float(), want, rtol=2e-3, atol=0)


def test_a_replay_with_fewer_and_shorter_sequences_sees_no_older_piece() -> None:
    """#23. One workspace, as in a captured graph; the same step gives the same bits each time."""
    case = make_case(FP16, [200, 150, 90, 60])
    query = make_query(case, 4)
    workspace = make_workspace(case, 4, units=5)
    for lengths in ([200, 150, 90, 60], [40, 0, 90, 1], [0, 0, 3, 0]):
        now = replace(case, seq_lens=torch.tensor(lengths, dtype=torch.int32))
        results = []
        for _ in range(3):
            plan(workspace, now.seq_lens)
            results.append(paged_decode(query, now.cache, now.table, now.seq_lens, SCALE, workspace))
        assert all(torch.equal(each[0], results[0][0]) for each in results)
        assert_close(results[0], reference.paged_decode(query, now.cache, now.table, now.seq_lens, SCALE), "FP16")


def test_a_hundred_replays_give_the_same_bits() -> None:
    """#28. Nothing is left over from a step that the next one would have to reset."""
    case = make_case(FP16, [40])
    query = make_query(case, 2)
    workspace = make_workspace(case, 2, units=2)
    plan(workspace, case.seq_lens)
    first, *others = (
        paged_decode(query, case.cache, case.table, case.seq_lens, SCALE, workspace)[0].clone() for _ in range(100)
    )
    assert all(torch.equal(each, first) for each in others)


def test_a_workspace_that_is_too_small_is_refused_before_anything_is_written() -> None:
    """#24. It never grows: a captured graph holds its address."""
    case = make_case(FP16, [40])
    workspace = make_workspace(case, 4)
    plan(workspace, case.seq_lens)
    with pytest.raises(KernelInputError, match="too small"):
        paged_decode(make_query(case, 8, q_len=4), case.cache, case.table, case.seq_lens, SCALE, workspace)


@pytest.mark.parametrize(("units", "fixed"), [(1, 0), (9, 0), (3, 1)])
def test_uneven_lengths_in_scattered_pages_and_pieces_are_plain_attention(units: int, fixed: int) -> None:
    """#26. Against attention over each sequence's keys and values as they were before they were stored in pages."""
    lengths = [100, 2, 33, 64]
    case = make_case(FP16, lengths)
    query = make_query(case, 6, q_len=2)
    got = decode(case, query, SCALE, units=units, fixed_tiles=fixed)
    want = [
        reference.attend(query[b], case.key[b], case.value[b], torch.arange(n - 2, n), SCALE)
        for b, n in enumerate(lengths)
    ]
    assert_close(got, (torch.stack([out for out, _ in want]), torch.stack([lse for _, lse in want])), "FP16")


def test_in_batch_invariant_mode_company_changes_no_bit() -> None:
    """#27. Alone or in a batch, and wherever the pages lie."""
    case = make_case(FP16, [70, 200, 33])
    query = make_query(case, 4)
    whole = decode(case, query, SCALE, fixed_tiles=2, units=3)
    for b in range(3):
        n = slice(b, b + 1)
        alone = Case(case.cache, case.table[n].contiguous(), case.seq_lens[n].contiguous(), [], [])
        got = decode(alone, query[n], SCALE, fixed_tiles=2, units=5)
        assert torch.equal(got[0], whole[0][n])
        assert torch.equal(got[1], whole[1][n])


def test_pages_of_256_tokens_are_refused_and_of_128_are_right() -> None:
    """#29."""
    with pytest.raises(KernelInputError, match="page_tokens"):
        Layout.of("FP16", 1, 64, 256)
    case = make_case(Layout.of("INT8", 1, 64, 128), [129, 128, 5])
    check_decode(case, make_query(case, 3), SCALE)


def test_token_contiguous_values_refuse_tiles_that_span_pages() -> None:
    case = make_case(Layout.of("INT8", 1, 64, 16), [20])
    with pytest.raises(KernelInputError, match="divides the page"):
        decode(case, make_query(case, 2), SCALE, tiles=Tiles(32, row_tile(2), 4, 3))
