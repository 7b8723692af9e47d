"""Prints the decode kernel in Triton's first form (TTIR), for strides that fit in 32 bits.

    python -m support.ttir PRECISION PAGE_TOKENS TILE_TOKENS

A program of its own: a process whose Triton interprets cannot compile.
"""

import re
import sys

import triton

from kvbudget_kernels.aot import TARGETS, decode_source
from kvbudget_kernels.tune import Tiles


def products(ttir: str, argument: str) -> list[str]:
    """Types of the integer products that an argument goes into, itself or widened or spread."""
    names, types = {f"%{argument}"}, []
    for line in ttir.splitlines():
        found = re.match(r"\s*(%\w+) = (arith\.extsi|tt\.splat|arith\.muli) (.*?) : (.*?)(?: loc\(.*)?$", line)
        if found is None or not names & set(re.findall(r"%\w+", found[3])):
            continue
        if found[2] == "arith.muli":
            types.append(found[4])
        else:
            names.add(found[1])
    return types


def main(precision: str, page_tokens: int, tile_tokens: int) -> None:
    tiles = Tiles(tile_tokens, rows=16, warps=4, stages=3)
    source = decode_source(precision, 64, "sm_90", tiles, page=page_tokens, stride="i32")
    built = triton.compile(source, target=TARGETS["sm_90"], options={"num_warps": 4, "num_stages": 3})
    sys.stdout.write(built.asm["ttir"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
