"""Chunked prefill over pages against the reference."""

import pytest
import torch

from kvbudget_kernels import reference
from kvbudget_kernels.paged_extend import paged_extend
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout
from kvbudget_kernels.tune import Tiles
from support.kernel_cases import assert_close, make_case, make_query, poison_tokens, with_table
from support.pairwise import pairwise

AXES: dict[str, tuple[object, ...]] = {
    "precision": ("FP16", "FP8E4M3", "INT8", "INT4", "FP32", "BF16"),
    "head_dim": (64, 80, 96, 128, 192, 256),
    "group": (1, 3, 5, 7, 24),
    "chunks": ("first", "later", "mixed"),
    "page": (16, 32, 64, 128),
    "window": (None, 1, 17),
    "form": ("interleaved", "plain", "far"),
    "table": ("exact", "wide", "strided"),
    "softcap": (None, 30.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "query": ("float16", "float32"),
}
CHUNKS = {"first": [(0, 40), (0, 1)], "later": [(65, 20), (16, 33)], "mixed": [(30, 1), (0, 0), (63, 1), (0, 17)]}


@pytest.mark.parametrize("case", pairwise(AXES), ids=lambda case: "-".join(str(value) for value in case.values()))
def test_a_chunk_sees_what_came_before_it_and_itself(case: dict[str, object]) -> None:
    precision, head_dim = str(case["precision"]), int(str(case["head_dim"]))
    chunks = CHUNKS[str(case["chunks"])]
    kv_heads, group = 2, int(str(case["group"]))
    dtype = torch.float32 if precision == "FP32" else torch.float16
    layout = Layout.of(precision, kv_heads, head_dim, int(str(case["page"])))
    filled = make_case(
        layout, [start + count for start, count in chunks], input_dtype=dtype, form=str(case["form"])
    )  # fmt: skip
    window = case["window"]
    if isinstance(window, int):
        for b, (start, _) in enumerate(chunks):
            poison_tokens(filled, b, range(max(0, start - window + 1)))
    heads = kv_heads * group
    rules = ScoreRules(
        sm_scale=head_dim**-0.5,
        window_tokens=window if isinstance(window, int) else None,
        softcap=30.0 if case["softcap"] else None,
        sinks=torch.linspace(-2, 2, heads) if case["sinks"] else None,
        alibi_slopes=torch.logspace(-3, -1, heads) if case["alibi"] else None,
    )
    cu = torch.tensor([0, *torch.tensor([count for _, count in chunks]).cumsum(0).tolist()], dtype=torch.int32)
    tokens = int(cu[-1])
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(tokens, heads + 2, head_dim, generator=generator).half()[:, 1:-1]
    query = query.to(getattr(torch, str(case["query"])))
    out = torch.full((tokens, heads + 1, head_dim), float("nan")).to(query.dtype)[:, 1:]
    lse = torch.full((tokens, heads + 1), float("nan"))[:, :-1]
    filled = with_table(filled, str(case["table"]))
    got = paged_extend(query, cu, filled.cache, filled.table, filled.seq_lens, rules, out=out, lse=lse)
    want = reference.paged_extend(query, cu, filled.cache, filled.table, filled.seq_lens, rules)
    assert_close(got, want, precision)


def test_rows_behind_the_last_sequence_are_left_alone() -> None:
    filled = make_case(Layout.of("FP16", 1, 64, 16), [20])
    query = torch.randn(9, 2, 64).half()
    out, lse = torch.full(query.shape, 7.0).half(), torch.full((9, 2), 7.0)
    cu = torch.tensor([0, 5], dtype=torch.int32)
    paged_extend(query, cu, filled.cache, filled.table, filled.seq_lens, ScoreRules(0.125), out=out, lse=lse)
    assert bool((out[5:] == 7).all())
    assert bool((lse[5:] == 7).all())
    assert not bool((lse[:5] == 7).any())


@pytest.mark.parametrize("precision", ["FP16", "FP8E4M3", "INT8", "INT4"])
def test_two_chunks_of_every_precision(precision: str) -> None:
    """#10. Scales of K and V differ, and each head has its own."""
    _check(Layout.of(precision, 2, 80, 16), [(20, 13), (0, 5)], ScoreRules(0.125))


def test_masks_biases_and_sinks_of_chunks_behind_cached_tokens() -> None:
    """#15, #17, #18. Three blocks of rows, so that each begins and ends with keys of its own."""
    heads = torch.arange(6)
    for rules in (
        ScoreRules(0.125, window_tokens=9),
        ScoreRules(0.5, softcap=4.0, alibi_slopes=(heads + 1) / 8),
        ScoreRules(0.125, sinks=heads / 2),
    ):
        _check(Layout.of("FP16", 2, 64, 16), [(40, 13), (3, 21)], rules)


def _check(layout: Layout, chunks: list[tuple[int, int]], rules: ScoreRules) -> None:
    """Three heads per KV head; blocks of 16 rows, so that a chunk has several, and tiles of 16 tokens."""
    filled = make_case(layout, [start + count for start, count in chunks])
    rows = [make_query(filled, 3 * layout.kv_heads, count, seed=b)[b] for b, (_, count) in enumerate(chunks)]
    cu = torch.tensor([0, *torch.tensor([count for _, count in chunks]).cumsum(0).tolist()], dtype=torch.int32)
    query = torch.cat(rows)
    args = (query, cu, filled.cache, filled.table, filled.seq_lens, rules)
    assert_close(paged_extend(*args, tiles=Tiles(16, 16, 4, 3)), reference.paged_extend(*args), layout.precision)
