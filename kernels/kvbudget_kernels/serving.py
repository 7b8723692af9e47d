"""The serving set: the launches that a worker makes, over tensors without memory, so that compiling them ahead of time
goes through the code that launches them later. There is no second list of their constants.

A model is here its pages' precision, head size and page length, and the dtype of its queries: kernels do not depend on
how many heads, sequences, tokens or pages there are (``launch.py``). What is not in the set is compiled when it is
first used: other pages and queries, windows, softcaps, sinks and ALiBi (the worker serves none of these four).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from kvbudget_kernels.arch import META
from kvbudget_kernels.cascade import PrefixGroups, cascade_decode
from kvbudget_kernels.kv_write import kv_write, new_counters
from kvbudget_kernels.mla_decode import LATENT_RANK, ROPE_DIM, mla_decode
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.paged_extend import paged_extend
from kvbudget_kernels.pages import dequant_pages, page_copy, page_gather, page_scatter
from kvbudget_kernels.plan import SplitPolicy, Workspace, plan
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import HEAD_DIMS, Layout, PagedKV
from kvbudget_kernels.tune import pick

MOST_SEQUENCES = 256
"""Largest batch whose plan is in the set; the plan's kernel holds a power of two of sequences."""
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Model:
    """See the module."""

    precision: str
    head_dim: int
    page_tokens: int = 64
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        return f"{self.precision}-{self.head_dim}-{self.page_tokens}"


MODELS = (
    *(Model("BF16", head_dim) for head_dim in HEAD_DIMS),
    *(Model("FP16", head_dim, dtype=torch.float16) for head_dim in HEAD_DIMS),
    *(Model(precision, head_dim) for precision in ("FP8E4M3", "INT8", "INT4") for head_dim in (64, 128, 256)),
    Model("BF16", 64, 16),
    Model("BF16", 128, 16),
)
"""What the worker's image is built for."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What kernels do not depend on. ``tokens``: of a step, and of each sequence."""

    kv_heads: int = 2
    group: int = 4
    batch: int = 3
    tokens: int = 100
    pages: int = 40
    max_pages: int = 7


def _ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _workspace(tile_tokens: int, sizes: Sizes, rows: int, head_dim: int, kv_heads: int) -> Workspace:
    policy = SplitPolicy.balanced(tile_tokens=tile_tokens, kv_heads=kv_heads, group=sizes.group, element_bytes=2, sms=9)
    return Workspace.allocate(
        policy, max_batch=max(sizes.batch, MOST_SEQUENCES), max_tokens=sizes.tokens, kv_heads=kv_heads, rows=rows,
        head_dim=head_dim, device=META,
    )  # fmt: skip


def cache_of(model: Model, sizes: Sizes) -> PagedKV:
    layout = Layout.of(model.precision, sizes.kv_heads, model.head_dim, model.page_tokens)
    storage = torch.empty(sizes.pages, layout.page_bytes, dtype=torch.uint8, device=META)
    return PagedKV.over(layout, storage)


def steps(model: Model, sizes: Sizes = Sizes()) -> Iterator[tuple[str, Call]]:
    """What a step of the worker launches: name and call."""
    cache, rules = cache_of(model, sizes), ScoreRules(model.head_dim**-0.5)
    heads = sizes.kv_heads * sizes.group
    fused = torch.empty(
        sizes.tokens, heads + 2 * sizes.kv_heads, model.head_dim, dtype=model.dtype, device=META
    )  # fmt: skip
    key, value = fused[:, heads : heads + sizes.kv_heads], fused[:, heads + sizes.kv_heads :]
    angles = torch.empty(sizes.tokens, model.head_dim // 2, device=META)
    slots, counters = _ints(sizes.tokens, dtype=torch.int64), new_counters(META)
    yield "write", partial(kv_write, cache, key, value, slots, counters)
    yield "write with RoPE", partial(kv_write, cache, key, value, slots, counters, rope=(angles, angles))
    table, lens = _ints(sizes.batch, sizes.max_pages), _ints(sizes.batch)
    for rows in (16, 32, 64):
        q_len = -(-rows // sizes.group)
        tiles = pick(model.precision, model.head_dim, model.page_tokens, q_len * sizes.group)
        workspace = _workspace(tiles.tile_tokens, sizes, q_len * sizes.group, model.head_dim, sizes.kv_heads)
        batch = 16
        while batch <= MOST_SEQUENCES:
            # A plan is in tiles, and those may differ with the rows.
            yield f"plan {batch}" + (f" of {rows} rows" if rows > 16 else ""), partial(plan, workspace, _ints(batch))
            batch *= 2
        query = torch.empty(sizes.batch, q_len, heads, model.head_dim, dtype=model.dtype, device=META)
        yield f"decode {rows}", partial(paged_decode, query, cache, table, lens, rules, workspace)
    query = fused[:, :heads]
    yield "extend", partial(paged_extend, query, _ints(sizes.batch + 1), cache, table, lens, rules)


def others(model: Model, sizes: Sizes = Sizes()) -> Iterator[tuple[str, Call]]:
    """Launches for pages and prefixes: the worker makes none of them at a request."""
    cache, rules = cache_of(model, sizes), ScoreRules(model.head_dim**-0.5)
    heads = sizes.kv_heads * sizes.group
    table, lens = _ints(sizes.batch, sizes.max_pages), _ints(sizes.batch)
    query = torch.empty(sizes.batch, 1, heads, model.head_dim, dtype=model.dtype, device=META)
    tiles = pick(model.precision, model.head_dim, model.page_tokens, sizes.group)
    workspace = _workspace(tiles.tile_tokens, sizes, sizes.group, model.head_dim, sizes.kv_heads)
    for members in (1, 64):
        groups = PrefixGroups(_ints(1, 3), _ints(1), _ints(2), _ints(sizes.batch), members)
        call = partial(cascade_decode, query, cache, groups, table, lens, rules, workspace)
        yield f"cascade of {members}", call
    yield "dequantise", partial(dequant_pages, cache, _ints(2, dtype=torch.int64), model.dtype)


def latents(dtype: torch.dtype, sizes: Sizes = Sizes(), page_tokens: int = 64) -> Iterator[tuple[str, Call]]:
    """MLA, for 16 heads and for more."""
    latent = torch.empty(sizes.pages, page_tokens, LATENT_RANK + ROPE_DIM, dtype=dtype, device=META)
    table, lens = _ints(sizes.batch, sizes.max_pages), _ints(sizes.batch)
    for heads in (16, 128):
        tiles = pick("MLA", LATENT_RANK, page_tokens, heads)
        workspace = _workspace(tiles.tile_tokens, sizes, heads, LATENT_RANK, 1)
        query = torch.empty(sizes.batch, 1, heads, LATENT_RANK + ROPE_DIM, dtype=dtype, device=META)
        parts = query[..., :LATENT_RANK], query[..., LATENT_RANK:]
        yield f"decode of {heads} heads", partial(mla_decode, *parts, latent, table, lens, 0.07, workspace)


def moves(page_bytes: int = 4096) -> Iterator[tuple[str, Call]]:
    """Copies of pages: any precision's."""
    storage = torch.empty(8, page_bytes, dtype=torch.uint8, device=META)
    packed = torch.empty(2, page_bytes, dtype=torch.uint8, device=META)
    yield "copy", partial(page_copy, storage, [0, 1], [2, 3])
    yield "gather", partial(page_gather, storage, [0, 1], packed)
    yield "scatter", partial(page_scatter, packed, [0, 1], storage)


def serving_set(sizes: Sizes = Sizes()) -> Iterator[tuple[str, Call]]:
    """All of it: name and call."""
    for model in MODELS:
        for name, call in (*steps(model, sizes), *others(model, sizes)):
            yield f"{model} {name}", call
    for dtype in (torch.bfloat16, torch.float16):
        for name, call in latents(dtype, sizes):
            yield f"MLA-{str(dtype).removeprefix('torch.')} {name}", call
    for name, call in moves():
        yield f"pages {name}", call
