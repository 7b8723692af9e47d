"""Which tile sizes a launch takes."""

from dataclasses import dataclass

import torch

INTERPRETER = "interpreter"


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
    if precision in ("FP8E4M3", "INT8", "INT4"):
        tile = min(tile, page_tokens)
    return Tiles(tile_tokens=tile, rows=row_tile(rows), warps=4, stages=3)


def interpreted(device: torch.device) -> bool:
    """Whether launches on ``device`` run in Triton's interpreter."""
    return device.type == "cpu"
