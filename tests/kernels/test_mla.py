"""MLA decode against plain attention over the latents."""

import pytest
import torch

from kvbudget_kernels.mla_decode import LATENT_RANK, ROPE_DIM, mla_decode
from kvbudget_kernels.plan import SplitPolicy, Workspace, plan
from kvbudget_kernels.reference import ScoreRules, attend
from support.kernel_cases import assert_close


@pytest.mark.parametrize(("heads", "q_len", "units"), [(16, 1, 1), (5, 2, 4), (128, 1, 3)])
def test_the_value_is_the_latent_s_first_channels(heads: int, q_len: int, units: int) -> None:
    generator = torch.Generator().manual_seed(heads)
    lengths, page, tile = [0, 3, 16, 50, 33], 16, 16
    latent = torch.full((12, 3, page, LATENT_RANK + ROPE_DIM), float("nan")).half()[:, 1]
    order = torch.randperm(12, generator=generator).to(torch.int32)
    table = torch.full((5, 4), -1, dtype=torch.int32)
    rows, at = [], 0
    for b, n in enumerate(lengths):
        used = -(-n // page)
        table[b, :used] = order[at : at + used]
        at += used
        row = torch.randn(n, LATENT_RANK + ROPE_DIM, generator=generator).half()
        for t in range(n):
            latent[int(table[b, t // page]), t % page] = row[t]
        rows.append(row)
    query = torch.randn(5, q_len, heads, LATENT_RANK + ROPE_DIM, generator=generator).half()
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    workspace = Workspace.allocate(
        SplitPolicy(tile, units), max_batch=5, max_tokens=64, kv_heads=1, rows=q_len * heads, head_dim=LATENT_RANK,
        device=torch.device("cpu"),
    )  # fmt: skip
    plan(workspace, seq_lens, q_len=q_len)
    scale = 192**-0.5
    got = mla_decode(query[..., :LATENT_RANK], query[..., LATENT_RANK:], latent, table, seq_lens, scale, workspace)
    want_out = torch.zeros(5, q_len, heads, LATENT_RANK, dtype=torch.float64)
    want_lse = torch.full((5, q_len, heads), float("-inf"), dtype=torch.float64)
    for b, row in enumerate(rows):
        if lengths[b]:
            key, value = row.unsqueeze(1), row[:, :LATENT_RANK].unsqueeze(1)
            positions = torch.arange(lengths[b] - q_len, lengths[b])
            want_out[b], want_lse[b] = attend(query[b], key, value, positions, ScoreRules(scale))
    assert_close(got, (want_out, want_lse), "FP16")
