"""Combines attention states over disjoint tokens: the pieces of a plan, or any two states (out, lse)."""

import torch
import triton

from kvbudget_kernels.device.merge import merge_splits_kernel, merge_states_kernel
from kvbudget_kernels.errors import require
from kvbudget_kernels.launch import launch
from kvbudget_kernels.plan import Workspace
from kvbudget_kernels.tune import interpreted


def merge_splits(
    workspace: Workspace, kv_heads: int, out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor | None = None
) -> None:
    """Pieces of the workspace's plan into ``out`` [batch, q_len, attention_heads, head_dim] and ``lse`` fp32 [batch,
    q_len, attention_heads] (natural log), in ascending order of tokens. Sequences of one piece are left alone: decode
    wrote them. Sequences of no piece: 0 and −inf. ``sinks``: fp32 [attention_heads]."""
    batch, q_len, heads, head_dim = out.shape
    rows = q_len * (heads // kv_heads)
    block, splits = (triton.next_power_of_2(rows), 4) if interpreted(out.device) else (1, 16)
    launch(
        merge_splits_kernel,
        batch * kv_heads * triton.cdiv(rows, block),
        workspace.part_o,
        workspace.part_lse,
        workspace.o_indptr,
        sinks,
        out,
        lse,
        kv_heads,
        rows,
        *out.stride()[:3],
        *lse.stride()[:2],
        G=heads // kv_heads,
        D=head_dim,
        D_PAD=triton.next_power_of_2(head_dim),
        ROWS=block,
        SPLITS=splits,
        HAS_SINKS=sinks is not None,
    )


def merge_states(
    a: tuple[torch.Tensor, torch.Tensor],
    b: tuple[torch.Tensor, torch.Tensor],
    *,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two states (out [..., heads, head_dim], lse fp32 [..., heads], natural log, contiguous) as one: ``out`` in the
    dtype of ``a``. A side with lse −inf is not read and may hold anything. ``sinks``: fp32 [heads], added once."""
    require(
        a[0].shape == b[0].shape and a[1].shape == b[1].shape,
        "b",
        f"shapes {tuple(b[0].shape)}, {tuple(b[1].shape)} beside {tuple(a[0].shape)}, {tuple(a[1].shape)}",
        "give two states of the same rows",
    )
    return merge_many(a, (b[0].unsqueeze(0), b[1].unsqueeze(0)), sinks=sinks, out=out, lse=lse)


def merge_many(
    a: tuple[torch.Tensor, torch.Tensor],
    parts: tuple[torch.Tensor, torch.Tensor],
    *,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`merge_states`, of ``a`` and any number of ``parts``: out [n, ..., heads, head_dim], lse [n, ...,
    heads], added in their order."""
    (a_out, a_lse), (b_out, b_lse) = a, parts
    require(
        a_out.shape == b_out.shape[1:] and a_lse.shape == b_lse.shape[1:] == a_out.shape[:-1],
        "parts",
        f"shapes {tuple(a_out.shape)}, {tuple(a_lse.shape)} and {tuple(b_out.shape)}, {tuple(b_lse.shape)}",
        "give states of the same rows",
    )
    require(
        all(each.is_contiguous() for each in (a_out, a_lse, b_out, b_lse)), "a, b", "not contiguous", "copy them first"
    )
    heads, head_dim = a_out.shape[-2:]
    out = torch.empty_like(a_out) if out is None else out
    lse = torch.empty_like(a_lse) if lse is None else lse
    rows = a_lse.numel()
    block = min(64, triton.next_power_of_2(rows)) if interpreted(a_out.device) else 4
    launch(
        merge_states_kernel,
        triton.cdiv(rows, block),
        a_out,
        a_lse,
        b_out,
        b_lse,
        sinks,
        out,
        lse,
        rows,
        heads,
        b_out.shape[0],
        D=head_dim,
        D_PAD=triton.next_power_of_2(head_dim),
        ROWS=block,
        HAS_SINKS=sinks is not None,
    )
    return out, lse
