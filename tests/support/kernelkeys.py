"""Prints, as JSON, which kernels the serving set needs and which of them other heads, batches and lengths add.

    python -m support.kernelkeys TARGET

Nothing is compiled: Triton is told to stop where it would begin. A program of its own: a process whose Triton
interprets has no keys.
"""

import json
import sys
from typing import Any

import triton

from kvbudget_kernels.arch import compiling_for
from kvbudget_kernels.serving import MODELS, Sizes, latents, moves, others, serving_set, steps

SIZES = (
    Sizes(kv_heads=1, group=1, batch=1, tokens=1, pages=1, max_pages=1),
    Sizes(kv_heads=8, group=7, batch=16, tokens=16, pages=4096, max_pages=16),
    Sizes(kv_heads=16, group=16, batch=200, tokens=8192, pages=100_000, max_pages=1000),
    Sizes(kv_heads=3, group=5, batch=33, tokens=77, pages=31, max_pages=3),
)


def keys(calls: Any) -> set[tuple[str, str]]:
    """Name and key of each kernel that the calls launch."""
    found: set[tuple[str, str]] = set()

    def stop(*, key: str, fn: Any, **_: Any) -> bool:
        found.add((fn.name, key))
        return True

    triton.knobs.runtime.jit_cache_hook = stop
    for _, call in calls:
        call()
    return found


def main(target: str) -> None:
    with compiling_for(target):
        known = keys(serving_set())
        new = {}
        for sizes in SIZES:
            model_calls = [call for model in MODELS[:9] for call in (*steps(model, sizes), *others(model, sizes))]
            calls = [*model_calls, *latents(MODELS[0].dtype, sizes), *moves(8192)]
            new[str(sizes)] = sorted(map(str, keys(calls) - known))
    json.dump({"known": len(known), "new": new}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
