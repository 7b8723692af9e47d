"""Which tile sizes a launch takes, and why.

    python -m kvbudget_kernels.tune --explain PRECISION HEAD_DIM PAGE_TOKENS ROWS

The rules come from compiling for sm_80, sm_90, sm_100 and gfx942 (``aot.csv``); no tile was timed on a GPU yet.

>>> pick("BF16", 128, 64, 4)
Tiles(tile_tokens=64, rows=16, warps=4, stages=3)
>>> print(explain("INT8", 256, 16, 40))
tile_tokens 16: 32 because head_dim 256 is wider than 128; 16 because token-contiguous V lies within a page
rows 64: 40 query rows, to a power of two from 16 to 64
warps 4: one warp spills
stages 3: two buffers of K and V
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_TOKEN_CONTIGUOUS = ("FP8E4M3", "INT8", "INT4")


@dataclass(frozen=True, slots=True)
class Tiles:
    """``tile_tokens``: keys per loop step. ``rows``: padded query rows per tile. ``warps`` per program. ``stages`` of
    the loop's pipeline: with the page id in a loop variable, n stages give n − 1 buffers of K and V."""

    tile_tokens: int
    rows: int
    warps: int
    stages: int


def row_tile(rows: int, most: int = 64) -> int:
    """Rows of one tile for ``rows`` query rows: a power of two from 16 (the matrix unit's smallest) to ``most``."""
    return max(16, min(most, 1 << (rows - 1).bit_length()))


def pick(precision: str, head_dim: int, page_tokens: int, rows: int) -> Tiles:
    """Tiles for one decode launch. 8- and 4-bit pages hold V token-contiguous, so a tile never spans two of them."""
    wide = head_dim > 128
    tile = 32 if wide else 64
    if precision in _TOKEN_CONTIGUOUS:
        tile = min(tile, page_tokens)
    return Tiles(tile_tokens=tile, rows=row_tile(rows), warps=4, stages=3)


def interpreted(device: torch.device) -> bool:
    """Whether launches on ``device`` run in Triton's interpreter."""
    return device.type == "cpu"


def explain(precision: str, head_dim: int, page_tokens: int, rows: int) -> str:
    """The choice of :func:`pick`, a line per number."""
    tiles = pick(precision, head_dim, page_tokens, rows)
    why = f"32 because head_dim {head_dim} is wider than 128" if head_dim > 128 else f"64 for head_dim {head_dim}"
    if precision in _TOKEN_CONTIGUOUS and tiles.tile_tokens == page_tokens:
        why += f"; {page_tokens} because token-contiguous V lies within a page"
    return "\n".join(
        (
            f"tile_tokens {tiles.tile_tokens}: {why}",
            f"rows {tiles.rows}: {rows} query rows, to a power of two from 16 to 64",
            f"warps {tiles.warps}: one warp spills",
            f"stages {tiles.stages}: two buffers of K and V",
        )
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m kvbudget_kernels.tune", description="Say which tiles are taken.")
    parser.add_argument("--explain", nargs=4, required=True, metavar=("PRECISION", "HEAD_DIM", "PAGE_TOKENS", "ROWS"))
    precision, *numbers = parser.parse_args(arguments).explain
    head_dim, page_tokens, rows = map(int, numbers)
    sys.stdout.write(explain(precision, head_dim, page_tokens, rows) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
