"""Pages of MLA latents with NaN in every slot that holds no token, and attention over them in plain torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvbudget_kernels.mla_decode import LATENT_RANK, ROPE_DIM, mla_decode
from kvbudget_kernels.plan import SplitPolicy, Workspace, plan
from kvbudget_kernels.reference import ScoreRules, attend
from support.kernel_cases import CPU, far_pages

WIDTH = LATENT_RANK + ROPE_DIM
SCALE = 192**-0.5
TILE = 16


@dataclass(frozen=True)
class Latents:
    """``rows[b]``: [tokens, 576] of sequence b. ``pages``: [n, page_tokens, 576]."""

    pages: torch.Tensor
    table: torch.Tensor
    seq_lens: torch.Tensor
    rows: list[torch.Tensor]


def make_latents(
    lengths: Sequence[int],
    *,
    page: int = 16,
    dtype: torch.dtype = torch.float16,
    form: str = "plain",
    tail: int = -1,
    seed: int = 0,
) -> Latents:
    """``form``: ``plain``, ``interleaved`` (one of three layers), ``far`` (see :func:`far_pages`). The table ends with
    the longest sequence; ``tail``: what stands in its other cells."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-n // page) for n in lengths]
    count = sum(needed) + 2
    match form:
        case "plain":
            pages = torch.empty(count, page, WIDTH, dtype=dtype)
        case "interleaved":
            pages = torch.empty(count, 3, page, WIDTH, dtype=dtype)[:, 1]
        case _:
            pages = far_pages(count, page * WIDTH * dtype.itemsize, dtype.itemsize).view(dtype).view(count, page, WIDTH)
    pages.fill_(float("nan"))
    order = torch.randperm(count, generator=generator).tolist()
    table = torch.full((len(lengths), max(1, *needed)), tail, dtype=torch.int32)
    rows = []
    for b, n in enumerate(lengths):
        own, order = order[: needed[b]], order[needed[b] :]
        table[b, : needed[b]] = torch.tensor(own, dtype=torch.int32)
        row = torch.randn(n, WIDTH, generator=generator).to(dtype)
        for at, number in enumerate(own):
            piece = row[at * page : (at + 1) * page]
            pages[number, : piece.shape[0]] = piece
        rows.append(row)
    return Latents(pages, table, torch.tensor(list(lengths), dtype=torch.int32), rows)


def latent_query(
    batch: int, q_len: int, heads: int, dtype: torch.dtype = torch.float16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Latent part and RoPE part as views of one tensor."""
    generator = torch.Generator().manual_seed(heads)
    query = torch.randn(batch, q_len, heads + 1, WIDTH, generator=generator).to(dtype)[:, :, 1:]
    return query[..., :LATENT_RANK], query[..., LATENT_RANK:]


def attend_latents(
    latents: Latents, query: tuple[torch.Tensor, torch.Tensor], *, units: int = 1, fixed_tiles: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plan, decode and merge over a workspace of NaN."""
    batch, q_len, heads, _ = query[0].shape
    workspace = Workspace.allocate(
        SplitPolicy(TILE, units, 1, fixed_tiles), max_batch=batch, max_tokens=max(1, int(latents.seq_lens.max())),
        kv_heads=1, rows=q_len * heads, head_dim=LATENT_RANK, device=CPU,
    )  # fmt: skip
    workspace.part_o.fill_(float("nan"))
    workspace.part_lse.fill_(float("nan"))
    plan(workspace, latents.seq_lens, q_len=q_len)
    return mla_decode(*query, latents.pages, latents.table, latents.seq_lens, SCALE, workspace)


def plain_latents(latents: Latents, query: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in fp64, from the rows as they were before they were put into pages."""
    whole = torch.cat(query, dim=-1)
    out = torch.zeros(query[0].shape, dtype=torch.float64)
    lse = torch.full(out.shape[:3], float("-inf"), dtype=torch.float64)
    for b, row in enumerate(latents.rows):
        if len(row):
            positions = torch.arange(len(row) - whole.shape[1], len(row))
            key, value = row.unsqueeze(1), row[:, :LATENT_RANK].unsqueeze(1)
            out[b], lse[b] = attend(whole[b], key, value, positions, ScoreRules(SCALE))
    return out, lse
