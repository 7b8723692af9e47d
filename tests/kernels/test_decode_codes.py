"""Decode reads what stands in its slots as the reference reads it, and nothing of the others."""

import math
from dataclasses import replace

import pytest
import torch

from kvbudget_kernels import reference
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import PRECISIONS, Layout
from kvbudget_kernels.tune import Tiles, row_tile
from support.kernel_cases import assert_close, check_decode, decode, make_case, make_query, poison_tokens, with_table

SCALE = ScoreRules(0.125)


def _input(precision: str) -> torch.dtype:
    return torch.float32 if precision == "FP32" else torch.float16


@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_s_codes_and_scales(precision: str, head_dim: int) -> None:
    """Two heads, so that a scale of the other one is noticed; 80 channels: a half, and a group, that is not full."""
    case = make_case(Layout.of(precision, 2, head_dim, 16), [21], input_dtype=_input(precision))
    check_decode(case, make_query(case, 4, dtype=_input(precision)), SCALE, units=1)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_in_dead_and_expired_slots_reaches_nothing(precision: str, window: int | None) -> None:
    """#5. Slots behind the end, and those that the window has left, in tiles that are read: K, V and scales."""
    case = make_case(Layout.of(precision, 1, 64, 16), [27, 5], input_dtype=_input(precision))
    if window is not None:
        for b, n in enumerate((27, 5)):
            poison_tokens(case, b, range(max(0, n - window)))
    check_decode(case, make_query(case, 2, dtype=_input(precision)), replace(SCALE, window_tokens=window), units=1)


@pytest.mark.parametrize("fixed", [0, 1])
def test_a_row_that_sees_nothing_of_a_tile_or_of_a_whole_piece(fixed: int) -> None:
    """#6. Eight queries with a window of one key each, over two tiles: −∞ − (−∞) is not computed, 0 is no divisor."""
    case = make_case(Layout.of("FP16", 1, 64, 16), [20])
    out, _ = check_decode(
        case, make_query(case, 1, q_len=8), replace(SCALE, window_tokens=1), tiles=Tiles(16, 16, 4, 3), units=1,
        fixed_tiles=fixed,
    )  # fmt: skip
    torch.testing.assert_close(out[0, :, 0], case.value[0][12:, 0], rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["exact", "strided"])
@pytest.mark.parametrize("tile", [16, 64])
def test_tiles_read_no_cell_behind_the_last_page(kind: str, tile: int) -> None:
    """#3. A page to a tile, and four; the last tile may have more than the sequence. The last row of the table is full:
    behind it is somebody else's memory."""
    case = with_table(make_case(Layout.of("FP16", 2, 64, 16), [1, 64, 70]), kind)
    check_decode(case, make_query(case, 4), SCALE, tiles=Tiles(tile, row_tile(2), 4, 3), units=1)


def test_a_score_is_scaled_then_capped_then_biased() -> None:
    """#18. With numbers where any other order, and any other base, gives another result. Two queries of two heads: a
    row's token and head cannot be taken for each other; three tiles: what was summed is scaled down twice."""
    case = make_case(Layout.of("FP16", 2, 64, 16), [33, 18])
    rules = ScoreRules(1.5, softcap=5.0, alibi_slopes=torch.tensor([0.5, 0.25, 0.125, 1.0]))
    for part in (ScoreRules(1.5), replace(rules, alibi_slopes=None), replace(rules, softcap=None), rules):
        check_decode(case, make_query(case, 4, q_len=2), part, tiles=Tiles(16, 16, 4, 3), units=1)


def test_nine_pieces_of_a_sequence_are_merged() -> None:
    """#26. More than are merged in one step, with scores whose largest is not in the first; beside it a short one."""
    case = make_case(Layout.of("FP16", 2, 64, 16), [140, 70, 3], spread=2.0)
    check_decode(case, make_query(case, 4, q_len=2), SCALE, tiles=Tiles(16, 16, 4, 3), units=2, fixed_tiles=1)


def test_rows_behind_the_last_one_are_not_written() -> None:
    """A tile of 16 rows for 6: the other ten would be the next tokens' heads."""
    case = make_case(Layout.of("FP16", 2, 64, 16), [40, 40])
    query = make_query(case, 12)
    whole = torch.full((2, 4, 12, 64), 7.0).half(), torch.full((2, 4, 12), 7.0)
    for units in (1, 5):
        out, lse = whole[0][:, 1:2], whole[1][:, 1:2]
        got = decode(case, query, SCALE, units=units, into=(out, lse))
        assert_close(got, reference.paged_decode(query, case.cache, case.table, case.seq_lens, SCALE), "FP16")
        for each in whole:
            assert bool((each[:, [0, 2, 3]] == 7).all())


def test_a_padded_sequence_is_zero_and_minus_infinity_with_sinks_too() -> None:
    case = make_case(Layout.of("FP16", 1, 64, 16), [0, 9])
    out, lse = decode(case, make_query(case, 2), replace(SCALE, sinks=torch.tensor([1.0, 2.0])))
    assert not out[0].any()
    assert bool((lse[0] == -math.inf).all())
