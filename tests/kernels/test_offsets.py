"""Offsets into a large cache: what the compiler makes of them, since no test can allocate 2³¹ elements."""

import os
import subprocess
import sys

import pytest

from support import ttir


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
