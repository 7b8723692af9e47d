"""Offsets into a large cache: pages gibibytes apart in memory that is mostly not there, and what the compiler makes of
the same products."""

import os
import subprocess
import sys

import pytest
import torch

from kvbudget_kernels import reference
from kvbudget_kernels.paged_extend import paged_extend
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import PRECISIONS, Layout
from kvbudget_kernels.tune import Tiles
from support import ttir
from support.cascades import check_cascade
from support.kernel_cases import assert_close, check_decode, make_case, make_query

SCALE = ScoreRules(0.125)


@pytest.mark.parametrize(("precision", "tile"), [*((each, 16) for each in PRECISIONS), ("FP16", 64)])
def test_decode_over_pages_gibibytes_apart(precision: str, tile: int) -> None:
    """#1. Tiles within a page, and a tile over several. Twelve pages: 2³¹ words of scales are eight."""
    dtype = torch.float32 if precision == "FP32" else torch.float16
    case = make_case(Layout.of(precision, 1, 64, 16), [110, 70], form="far", input_dtype=dtype)
    assert int(case.table.max()) >= 9
    check_decode(case, make_query(case, 1, dtype=dtype), SCALE, tiles=Tiles(tile, 16, 4, 3), units=1)


@pytest.mark.parametrize("precision", ["FP16", "INT4"])
def test_extend_and_cascade_over_pages_gibibytes_apart(precision: str) -> None:
    """#1."""
    layout = Layout.of(precision, 1, 64, 16)
    case = make_case(layout, [110, 70], form="far")
    args = (make_query(case, 1, 9)[:, :, 0].flatten(0, 1).unsqueeze(1), torch.tensor([0, 9, 18], dtype=torch.int32),
            case.cache, case.table, case.seq_lens, SCALE)  # fmt: skip
    assert_close(paged_extend(*args), reference.paged_extend(*args), precision)
    check_cascade(layout, [70], [[0, 1]], [20, 33], 1, SCALE, 1, group=1, form="far")


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "page_tokens", "tile_tokens"), [("INT8", 64, 64), ("BF16", 16, 64)])
def test_no_32_bit_product_of_a_page_and_its_stride(precision: str, page_tokens: int, tile_tokens: int) -> None:
    """#1. Triton passes a stride that fits as 32 bits; page · stride does not fit in a large cache. One page per tile,
    and one per token."""
    assert "TRITON_INTERPRET" not in os.environ
    command = [sys.executable, "-m", "support.ttir", precision, str(page_tokens), str(tile_tokens)]
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), os.path.dirname(os.path.dirname(__file__))])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr[-2000:]
    scales = ["scales_page"] if precision == "INT8" else []
    for stride in ("key_page", "value_page", "key_head", "value_head", "table_row", "q_seq", "out_seq", *scales):
        types = ttir.products(done.stdout, stride)
        assert types, f"{stride} is in no product"
        assert all("i64" in each for each in types), (stride, types)
