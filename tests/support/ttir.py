"""Prints the decode kernel in Triton's first form (TTIR), for strides that fit in 32 bits.

    python -m support.ttir PRECISION PAGE_TOKENS TILE_TOKENS

A program of its own: a process whose Triton interprets cannot compile.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kvbudget_kernels.aot import told
from kvbudget_kernels.arch import META, compiling_for
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.plan import SplitPolicy, Workspace
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.serving import Model, Sizes, cache_of
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
    files: dict[str, str] = {}

    def compiled(src: Any, metadata: Mapping[str, Any], group: Mapping[str, str], hit: bool) -> None:
        files.update(group)

    cache = cache_of(Model(precision, 64, page_tokens), Sizes(kv_heads=2))
    query = torch.empty(3, 1, 8, 64, dtype=torch.bfloat16, device=META)
    table, lens = (torch.empty(shape, dtype=torch.int32, device=META) for shape in ((3, 9), (3,)))
    workspace = Workspace.allocate(
        SplitPolicy(tile_tokens, 3), max_batch=3, max_tokens=99, kv_heads=2, rows=4, head_dim=64, device=META
    )
    with compiling_for("sm_90"), told(compiled):
        tiles = Tiles(tile_tokens, rows=16, warps=4, stages=3)
        paged_decode(query, cache, table, lens, ScoreRules(0.125), workspace, tiles=tiles)
    sys.stdout.write(Path(files["paged_decode_kernel.ttir"]).read_text())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
