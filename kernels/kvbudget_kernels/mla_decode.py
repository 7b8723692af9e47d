"""Decode for multi-head latent attention: 512 latent channels and 64 with RoPE, one row per token for all heads."""

import torch
import triton

from kvbudget_kernels.device.mla import mla_decode_kernel
from kvbudget_kernels.errors import require
from kvbudget_kernels.launch import check_table, compile_options, launch
from kvbudget_kernels.merge import merge_splits
from kvbudget_kernels.plan import Workspace
from kvbudget_kernels.tune import interpreted, pick

LATENT_RANK = 512
ROPE_DIM = 64


def mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latent: torch.Tensor,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    workspace: Workspace,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``q_latent``: [batch, q_len, heads, 512] (queries already times the key's up-projection); ``q_rope``: [batch,
    q_len, heads, 64]; ``latent``: [pages, page_tokens, 576] of the same dtype, 512 latent channels then 64 with RoPE,
    slots without a token may be NaN. ``table``, ``seq_lens`` and ``workspace`` as in :func:`paged_decode`, the
    workspace for one KV head, rows = q_len · heads, head_dim 512.

    Returns out [batch, q_len, heads, 512] and lse fp32 [batch, q_len, heads]. Source: DeepSeek-V2, section 2.1, in the
    absorbed form that FlashMLA computes.
    """
    check_table(table, seq_lens)
    batch, q_len, heads, rank = q_latent.shape
    page_tokens = latent.shape[1]
    tile = workspace.policy.tile_tokens
    require(
        rank == LATENT_RANK and q_rope.shape == (batch, q_len, heads, ROPE_DIM),
        "q_rope",
        f"shapes {tuple(q_latent.shape)} and {tuple(q_rope.shape)}",
        f"give {LATENT_RANK} and {ROPE_DIM} channels",
    )
    require(
        latent.shape[2] == LATENT_RANK + ROPE_DIM and latent.stride(2) == 1 and page_tokens % tile == 0,
        "latent",
        f"shape {tuple(latent.shape)}, strides {latent.stride()}, tiles of {tile} tokens",
        "give [pages, page_tokens, 576] and tiles that divide a page",
    )
    out = torch.empty_like(q_latent)
    lse = torch.empty(q_latent.shape[:3], dtype=torch.float32, device=q_latent.device)
    tiles = pick("MLA", LATENT_RANK, page_tokens, q_len * heads)
    row_tiles = triton.cdiv(q_len * heads, tiles.rows)
    math = {torch.float16: triton.language.float16, torch.float32: triton.language.float32}.get(
        latent.dtype, triton.language.float32 if interpreted(latent.device) else triton.language.bfloat16
    )
    launch(
        mla_decode_kernel,
        workspace.policy.units * row_tiles,
        q_latent,
        q_rope,
        latent,
        table,
        seq_lens,
        workspace.work,
        workspace.unit_indptr,
        out,
        lse,
        workspace.part_o,
        workspace.part_lse,
        sm_scale,
        q_len,
        heads,
        row_tiles,
        table.stride(0),
        *q_latent.stride()[:3],
        *q_rope.stride()[:3],
        *out.stride()[:3],
        *lse.stride()[:2],
        *latent.stride()[:2],
        R=tiles.rows,
        RANK=LATENT_RANK,
        ROPE=ROPE_DIM,
        PAGE=page_tokens,
        TILE=tile,
        MATH=math,
        STAGES=tiles.stages,
        **compile_options(tiles),
    )
    merge_splits(workspace, 1, out, lse)
    return out, lse
