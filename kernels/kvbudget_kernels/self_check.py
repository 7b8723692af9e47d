"""One decode on the real device against the reference, before anything is served: a compiler or a device that computes
something else must not answer a single request."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvbudget_kernels import reference
from kvbudget_kernels.kv_write import kv_write, new_counters
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.plan import SplitPolicy, Workspace, plan
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout, PagedKV, allocate
from kvbudget_kernels.tune import pick

ALLOWED = {"FP32": 1e-5, "FP16": 2e-3, "BF16": 1e-2, "FP8E4M3": 2e-3, "INT8": 2e-3, "INT4": 4e-3}
"""Relative L2 norm of the output's error: some times what the kernels reach, far below any wrong token."""

Decode = Callable[..., tuple[torch.Tensor, torch.Tensor]]
Write = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Check:
    """``error``: relative L2 norm against the reference (NaN where the output is not finite)."""

    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed


def check_decode(
    layout: Layout,
    attention_heads: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    decode: Decode = paged_decode,
    write: Write = kv_write,
) -> Check:
    """Writes four sequences (one of them padding, one in pieces) with ``write`` and attends with ``decode``; the
    reference writes and reads pages of its own, so that a wrong write is noticed too. ``dtype``: of queries, keys and
    values."""
    generator = torch.Generator().manual_seed(0)
    page = layout.page_tokens
    lengths = [1, 0, page, 3 * page + 5]
    used = [-(-n // page) for n in lengths]
    cache, expected = (PagedKV.over(layout, allocate(layout, sum(used), device)) for _ in range(2))
    order = torch.randperm(sum(used), generator=generator).tolist()
    table = torch.full((len(lengths), max(used)), -1, dtype=torch.int32)
    slots: list[int] = []
    for b, (n, count) in enumerate(zip(lengths, used, strict=True)):
        pages, order = order[:count], order[count:]
        table[b, :count] = torch.tensor(pages, dtype=torch.int32)
        slots.extend(pages[t // page] * page + t % page for t in range(n))
    shape = (len(slots), layout.kv_heads, layout.head_dim)
    key, value = (torch.randn(shape, generator=generator).to(dtype).to(device) for _ in range(2))
    query = torch.randn(len(lengths), 1, attention_heads, layout.head_dim, generator=generator).to(dtype).to(device)
    at = torch.tensor(slots, device=device)
    write(cache, key, value, at, new_counters(device))
    reference.kv_write(expected, key, value, at)
    table, seq_lens = table.to(device), torch.tensor(lengths, dtype=torch.int32, device=device)
    rules = ScoreRules(layout.head_dim**-0.5)
    tiles = pick(layout.precision, layout.head_dim, page, attention_heads // layout.kv_heads)
    workspace = Workspace.allocate(
        SplitPolicy(tiles.tile_tokens, units=3),
        max_batch=len(lengths),
        max_tokens=max(lengths),
        kv_heads=layout.kv_heads,
        rows=attention_heads // layout.kv_heads,
        head_dim=layout.head_dim,
        device=device,
    )
    plan(workspace, seq_lens)
    out, _ = decode(query, cache, table, seq_lens, rules, workspace)
    want, _ = reference.paged_decode(query, expected, table, seq_lens, rules)
    error = float((out.double() - want).norm() / want.norm())
    return Check(error, max(ALLOWED[layout.precision], ALLOWED["BF16"] if dtype == torch.bfloat16 else 0.0))
