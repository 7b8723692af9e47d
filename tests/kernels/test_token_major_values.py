"""8- and 4-bit pages with V by token, as K lies: no service has them, but the GPU run compares the two formats."""

from dataclasses import replace

import pytest
import torch

from kvbudget_kernels import reference
from kvbudget_kernels.kv_write import kv_write, new_counters
from kvbudget_kernels.paged_extend import paged_extend
from kvbudget_kernels.pages import dequant_pages
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout
from kvbudget_kernels.tune import Tiles
from support.kernel_cases import assert_close, check_decode, empty_cache, make_case, make_query


def token_major(precision: str, head_dim: int, page_tokens: int) -> Layout:
    return replace(Layout.of(precision, 2, head_dim, page_tokens), v_transposed=False)


@pytest.mark.parametrize("precision", ["FP8E4M3", "INT8", "INT4"])
@pytest.mark.parametrize(
    ("head_dim", "page", "tile"),
    [
        pytest.param(64, 32, 32, id="codes of INT4 as wide as a tile is long"),
        pytest.param(128, 64, 64, id="the served shape"),
        pytest.param(80, 16, 16, id="padded channels"),
        pytest.param(64, 16, 32, id="a tile over two pages"),
    ],
)
def test_values_by_token_are_read_as_the_reference_reads_them(
    precision: str, head_dim: int, page: int, tile: int
) -> None:
    case = make_case(token_major(precision, head_dim, page), [3 * page + 5, 1, page])
    check_decode(case, make_query(case, 6), ScoreRules(head_dim**-0.5), tiles=Tiles(tile, 16, 4, 3))


@pytest.mark.parametrize("precision", ["FP8E4M3", "INT8", "INT4"])
def test_values_by_token_are_written_moved_and_extended_alike(precision: str) -> None:
    layout = token_major(precision, 64, 16)
    case = make_case(layout, [37])
    (key,), (value,) = case.key, case.value
    ours = empty_cache(layout, case.cache.pages)
    position = torch.arange(37)
    slots = case.table[0, position // 16].long() * 16 + position % 16
    kv_write(ours, key, value, slots, new_counters(key.device))
    for written, want in ((ours.key, case.cache.key), (ours.value, case.cache.value), (ours.scales, case.cache.scales)):
        assert written is want or torch.equal(written, want)  # type: ignore[arg-type]
    pages = case.table[0, :2].long()
    assert torch.equal(dequant_pages(ours, pages, torch.float32), reference.dequantise(case.cache, pages))
    query = make_query(case, 4, 9).squeeze(0)
    cu_q = torch.tensor([0, 9], dtype=torch.int32)
    rules = ScoreRules(0.125)
    got = paged_extend(query, cu_q, ours, case.table, case.seq_lens, rules)
    assert_close(got, reference.paged_extend(query, cu_q, ours, case.table, case.seq_lens, rules), precision)
