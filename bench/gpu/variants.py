"""Two ways of reading pages that the served kernel does not take, to time them beside its own: the page id loaded in
the iteration that needs it, and the hardware's tensor copies (TMA). 16-bit pages, no masks but the end's, groups of up
to 16 heads; pages hold finite numbers everywhere. Same plan and same merge as the served kernel."""

from collections.abc import Callable
from typing import Any

import torch
import triton

from gpu.variant_kernel import variant_kernel
from kvbudget_kernels.launch import launch, math_dtype
from kvbudget_kernels.merge import merge_splits
from kvbudget_kernels.plan import Workspace
from kvbudget_kernels.storage import PagedKV
from kvbudget_kernels.tune import Tiles

VARIANTS = {"page id ahead": (True, False), "page id in place": (False, False), "TMA": (True, True)}
"""Name, whether the page id is a loop variable, whether copies are TMA's. The first is the served kernel's way."""


def variant_call(
    name: str, query: torch.Tensor, cache: PagedKV, storage: torch.Tensor, table: torch.Tensor, workspace: Workspace,
    tiles: Tiles, out: torch.Tensor, lse: torch.Tensor,
) -> Callable[[], object]:  # fmt: skip
    """A call that decodes as :func:`kvbudget_kernels.paged_decode.paged_decode` does, by a variant. ``query``: [batch,
    1, heads, head_dim], contiguous; ``storage``: what ``cache`` lies in; no sequence is empty."""
    ahead, tma = VARIANTS[name]
    layout = cache.layout
    elements = storage.view(layout.code_dtype)
    group = query.shape[2] // layout.kv_heads
    constants: dict[str, Any] = {
        "D": layout.head_dim, "PAGE": layout.page_tokens, "TILE": min(tiles.tile_tokens, layout.page_tokens), "R": 16,
        "MATH": math_dtype(cache), "AHEAD": ahead, "TMA": tma, "STAGES": tiles.stages,
    }  # fmt: skip
    if tma:
        triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=query.device))

    def call() -> object:
        launch(
            variant_kernel, workspace.policy.units * layout.kv_heads,
            query, elements, table, workspace.work, workspace.unit_indptr, out, lse, workspace.part_o,
            workspace.part_lse, layout.head_dim**-0.5 * 1.4426950408889634, layout.kv_heads, table.stride(0),
            cache.pages, group, **constants, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        merge_splits(workspace, layout.kv_heads, out, lse)
        return out

    return call
