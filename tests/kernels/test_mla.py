"""MLA decode against plain attention over the latents, and its laws."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbudget_kernels.errors import KernelInputError
from support.kernel_cases import NO_SUCH_PAGE, assert_close
from support.latents import Latents, attend_latents, latent_query, make_latents, plain_latents
from support.laws import share
from support.pairwise import pairwise

AXES: dict[str, tuple[object, ...]] = {
    "heads": (1, 5, 16, 40),
    "lengths": ("edges", "chunks", "short"),
    "q_len": (1, 2, 4),
    "split": ("one", "few", "many", "fixed"),
    "page": (16, 64),
    "dtype": ("float16", "float32"),
    "form": ("plain", "interleaved", "far"),
    "tail": (-1, NO_SUCH_PAGE),
}
LENGTHS = {"edges": [0, 15, 16, 17], "chunks": [63, 101], "short": [1, 2, 33]}


@pytest.mark.parametrize("case", pairwise(AXES), ids=lambda case: "-".join(str(value) for value in case.values()))
def test_mla_matches_plain_attention(case: dict[str, object]) -> None:
    q_len, dtype = int(str(case["q_len"])), getattr(torch, str(case["dtype"]))
    lengths = [n and max(n, q_len) for n in LENGTHS[str(case["lengths"])]]
    latents = make_latents(
        lengths, page=int(str(case["page"])), dtype=dtype, form=str(case["form"]), tail=int(str(case["tail"]))
    )
    query = latent_query(len(lengths), q_len, int(str(case["heads"])), dtype)
    units, fixed = {"one": (1, 0), "few": (3, 0), "many": (20, 0), "fixed": (3, 2)}[str(case["split"])]
    got = attend_latents(latents, query, units=units, fixed_tiles=fixed)
    assert_close(got, plain_latents(latents, query), "FP32" if dtype == torch.float32 else "FP16")


@pytest.mark.parametrize("units", [1, 5])
def test_two_queries_of_five_heads_over_three_tiles(units: int) -> None:
    """The value is the latent's first channels; each query has a mask of its own, and in pieces one sees nothing. The
    last sequence fills its row of the table and of the output: behind them is somebody else's memory."""
    latents = make_latents([0, 20, 33])
    query = latent_query(3, 2, 5)
    assert_close(attend_latents(latents, query, units=units), plain_latents(latents, query), "FP16")


def test_pages_above_16_bits_and_gibibytes_apart() -> None:
    """#1, #2."""
    latents = make_latents([40], form="far")
    query = latent_query(1, 1, 3)
    assert int(latents.table.max()) >= 2
    assert_close(attend_latents(latents, query), plain_latents(latents, query), "FP16")
    many = torch.empty(70_001, 16, 576, dtype=torch.float16)
    pages = [70_000, 65_536, 3]
    many[pages] = latents.pages[latents.table[0].long()]
    moved = replace(latents, pages=many, table=torch.tensor([pages], dtype=torch.int32))
    assert torch.equal(attend_latents(moved, query)[0], attend_latents(latents, query)[0])


def _moved(latents: Latents, seed: int) -> Latents:
    order = torch.randperm(latents.pages.shape[0], generator=torch.Generator().manual_seed(seed))
    where = torch.argsort(order).to(torch.int32)
    table = torch.where(latents.table < 0, -1, where[latents.table.clamp(min=0).long()]).to(torch.int32)
    return replace(latents, pages=latents.pages[order], table=table)


@given(st.lists(st.integers(3, 60), min_size=1, max_size=3), st.integers(1, 3), st.integers(2, 20), st.data())
@share(0.05)
def test_cuts_pages_and_company_do_not_matter(lengths: list[int], q_len: int, units: int, data: st.DataObject) -> None:
    """Other splits within tolerance; other pages, and in batch-invariant mode other company, to the bit."""
    latents = make_latents(lengths, seed=data.draw(st.integers(0, 99)))
    query = latent_query(len(lengths), q_len, 3)
    assert_close(attend_latents(latents, query, units=units), plain_latents(latents, query), "FP16")
    whole = attend_latents(_moved(latents, units), query, units=units, fixed_tiles=1)
    for b in range(len(lengths)):
        one = slice(b, b + 1)
        alone = Latents(latents.pages, latents.table[one], latents.seq_lens[one].contiguous(), [])
        got = attend_latents(alone, (query[0][one], query[1][one]), fixed_tiles=1)
        assert torch.equal(got[0], whole[0][one])
        assert torch.equal(got[1], whole[1][one])


def test_latents_of_another_width_are_refused() -> None:
    latents = make_latents([5])
    query = latent_query(1, 1, 2)
    with pytest.raises(KernelInputError, match="576"):
        attend_latents(replace(latents, pages=latents.pages[..., :512]), query)
    with pytest.raises(KernelInputError, match="512 and 64 channels"):
        attend_latents(latents, (query[0], query[0]))
