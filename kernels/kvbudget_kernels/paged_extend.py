"""Attention of chunks of new tokens over their sequences' pages (chunked prefill)."""

import torch

from kvbudget_kernels.device.extend import paged_extend_kernel
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
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import PagedKV
from kvbudget_kernels.tune import MOST_ROWS, Tiles, pick


def paged_extend(
    query: torch.Tensor,
    cu_q: torch.Tensor,
    cache: PagedKV,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    rules: ScoreRules,
    *,
    tiles: Tiles | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``query``: [tokens, attention_heads, head_dim] fp16, bf16 or fp32, any strides but the last. ``cu_q``: int32
    [batch + 1], sequence b owns the rows from ``cu_q[b]`` to ``cu_q[b+1]`` − 1 (none is allowed), the last ones of its
    ``seq_lens[b]`` tokens, whose K and V are in its pages already. ``table``: int32 [batch, pages].

    Returns out (query's dtype) and lse fp32 [tokens, attention_heads], natural log, sinks included. Rows behind
    ``cu_q[batch]`` are not written. A sequence's result does not depend on the others. Source: the grid without lengths
    on the host as in vLLM's unified attention.
    """
    group = check_query(query, cache)
    check_table(table, seq_lens)
    batch = seq_lens.shape[0]
    require(
        cu_q.dtype == torch.int32 and cu_q.shape == (batch + 1,), "cu_q", f"{cu_q.dtype} {tuple(cu_q.shape)}",
        f"give int32 [{batch + 1}]",
    )  # fmt: skip
    layout = cache.layout
    tokens = query.shape[0]
    # The same tile for every step: a sequence's result must not depend on how many tokens the others have.
    tiles = pick(layout.precision, layout.head_dim, layout.page_tokens, MOST_ROWS) if tiles is None else tiles
    check_tiles(cache, tiles)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device) if lse is None else lse
    blocks = tokens * group // tiles.rows + batch
    launch(
        paged_extend_kernel,
        blocks * layout.kv_heads,
        query,
        cache.key,
        cache.value,
        cache.scales if cache.scales is not None else cu_q,
        cache.k_scale,
        cache.v_scale,
        table,
        seq_lens,
        cu_q,
        rules.sinks,
        rules.alibi_slopes,
        out,
        lse,
        rules.sm_scale,
        batch,
        layout.kv_heads,
        table.stride(0),
        *query.stride()[:2],
        *out.stride()[:2],
        lse.stride(0),
        *cache_strides(cache),
        G=group,
        R=tiles.rows,
        SINKS=rules.sinks is not None,
        **cache_constants(cache, rules, tiles),
        **compile_options(tiles),
    )
    return out, lse
