"""Attention of each sequence's last few tokens over its pages (decode, and speculative decode)."""

import torch
import triton

from kvbudget_kernels.device.decode import paged_decode_kernel
from kvbudget_kernels.errors import require
from kvbudget_kernels.launch import (
    cache_constants,
    cache_strides,
    check_query,
    check_table,
    check_tiles,
    compile_options,
    launch,
)
from kvbudget_kernels.merge import merge_splits
from kvbudget_kernels.plan import Workspace
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import PagedKV
from kvbudget_kernels.tune import Tiles, pick


def paged_decode(
    query: torch.Tensor,
    cache: PagedKV,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    rules: ScoreRules,
    workspace: Workspace,
    *,
    tiles: Tiles | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``query``: [batch, q_len, attention_heads, head_dim] fp16, bf16 or fp32, any strides but the last: the last q_len
    tokens of each sequence, whose K and V are in the pages. ``table``: int32 [batch, pages]; cells behind a sequence's
    last page are never read. ``seq_lens``: int32 [batch], tokens with the queries; 0 is padding and gives 0 and −inf.
    ``workspace``: planned for these lengths by :func:`kvbudget_kernels.plan.plan`, with the same q_len and window.

    Returns out (query's dtype) and lse fp32 [batch, q_len, attention_heads], natural log, sinks included. Slots that
    hold no live token may be NaN, but for the codes of token-contiguous V, which are finite by construction.
    Source: split-KV as in FlashDecoding; equal-cost ranges as in FlashMLA's tile scheduler.
    """
    group = check_query(query, cache)
    check_table(table, seq_lens)
    batch, q_len, _, head_dim = query.shape
    layout = cache.layout
    rows = q_len * group
    tiles = pick(layout.precision, head_dim, layout.page_tokens, rows) if tiles is None else tiles
    check_tiles(cache, tiles)
    policy = workspace.policy
    require(
        policy.tile_tokens == tiles.tile_tokens,
        "workspace",
        f"planned for tiles of {policy.tile_tokens} tokens, launched with {tiles.tile_tokens}",
        "use one tile size",
    )
    require(
        workspace.cap * layout.kv_heads * rows * head_dim <= workspace.part_o.numel() and batch <= workspace.max_batch,
        "workspace",
        f"too small for {batch} sequences of {rows} rows",
        "allocate it for the largest step; it does not grow, because a captured graph holds its address",
    )
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device) if lse is None else lse
    row_tiles = triton.cdiv(rows, tiles.rows)
    launch(
        paged_decode_kernel,
        policy.units * layout.kv_heads * row_tiles,
        query,
        cache.key,
        cache.value,
        cache.scales if cache.scales is not None else workspace.n_work,
        cache.k_scale,
        cache.v_scale,
        table,
        seq_lens,
        workspace.work,
        workspace.unit_indptr,
        rules.sinks,
        rules.alibi_slopes,
        out,
        lse,
        workspace.part_o,
        workspace.part_lse,
        rules.sm_scale,
        layout.kv_heads,
        q_len,
        row_tiles,
        table.stride(0),
        *query.stride()[:3],
        *out.stride()[:3],
        *lse.stride()[:2],
        *cache_strides(cache),
        G=group,
        R=tiles.rows,
        SINKS=rules.sinks is not None,
        **cache_constants(cache, rules, tiles),
        **compile_options(tiles),
    )
    merge_splits(workspace, layout.kv_heads, out, lse, rules.sinks)
    return out, lse
