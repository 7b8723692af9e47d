"""Decode over a pairwise grid of shapes, precisions, masks and splits: every pair of values of two axes occurs."""

from itertools import combinations, product

import pytest
import torch

from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout
from kvbudget_kernels.tune import Tiles, row_tile
from support.kernel_cases import check_decode, make_case, make_query, poison_tokens, with_table
from support.pairwise import pairwise

AXES: dict[str, tuple[object, ...]] = {
    "group": (1, 3, 4, 5, 6, 7, 8, 12, 16, 24),
    "head_dim": (64, 80, 96, 128, 192, 256),
    "precision": ("FP16", "FP8E4M3", "INT8", "INT4", "FP32", "BF16"),
    "lengths": ("edges", "chunks", "short"),
    "page": (16, 32, 64, 128),
    "q_len": (1, 2, 4, 8),
    "window": ("off", "1", "P", "P+1", "n", "n+1"),
    "split": ("one", "few", "many", "fixed"),
    "kv_heads": (1, 2, 8),
    "form": ("plain", "interleaved", "split", "far"),
    "softcap": (None, 30.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "tile": ("page", "wide", "narrow"),
    "table": ("exact", "wide", "strided"),
    "query": ("float16", "float32"),
    "spaced": (False, True),
}
CASES = pairwise(AXES)


def test_every_pair_of_values_occurs() -> None:
    for a, b in combinations(AXES, 2):
        assert {(case[a], case[b]) for case in CASES} == set(product(AXES[a], AXES[b]))
    assert 60 <= len(CASES) <= 90


def _tile(case: dict[str, object], page: int) -> int:
    spans = case["precision"] in ("FP16", "FP32", "BF16")  # only token-major V may be read across pages
    match case["tile"]:
        case "narrow":
            return 16
        case "wide" if spans:
            return max(page, 64)
        case _:
            return min(page, 64)


def _lengths(kind: object, page: int, tile: int, q_len: int) -> list[int]:
    chunk = 2 * tile
    lengths = {
        "edges": [0, page - 1, page, page + 1],
        "chunks": [chunk - 1, 0, chunk, chunk + 1, 3 * chunk + 5],
        "short": [1, tile - 1, 2, tile + 1, 0],
    }[str(kind)]
    return [n and max(n, q_len) for n in lengths]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_decode_matches_the_reference(case: dict[str, object]) -> None:
    page, q_len, group, kv_heads = (int(str(case[name])) for name in ("page", "q_len", "group", "kv_heads"))
    precision, head_dim = str(case["precision"]), int(str(case["head_dim"]))
    tile = _tile(case, page)
    lengths = _lengths(case["lengths"], page, tile, q_len)
    if kv_heads == 8:  # many heads, fewer sequences: programs are what costs here
        lengths = lengths[-2:]
    longest = max(lengths)
    window = {"off": None, "1": 1, "P": page, "P+1": page + 1, "n": longest, "n+1": longest + 1}[str(case["window"])]
    form = "plain" if case["form"] == "split" and precision in ("FP8E4M3", "INT8", "INT4") else str(case["form"])
    seed = CASES.index(case)
    single = torch.float32 if precision == "FP32" else torch.float16
    filled = make_case(
        Layout.of(precision, kv_heads, head_dim, page), lengths, seed=seed, form=form, input_dtype=single
    )
    if window is not None:
        for b, n in enumerate(lengths):
            poison_tokens(filled, b, range(max(0, n - q_len - window + 1)))
    heads = group * kv_heads
    sinks = torch.linspace(-3, 3, heads)
    sinks[0], sinks[-1] = 40.0, float("-inf")  # one that takes everything, one that is not there
    rules = ScoreRules(
        sm_scale=head_dim**-0.5,
        window_tokens=window,
        softcap=None if case["softcap"] is None else 30.0,
        sinks=sinks if case["sinks"] else None,
        alibi_slopes=torch.logspace(-3, -0.5, heads) if case["alibi"] else None,
    )
    query = make_query(filled, heads, q_len, seed=seed).to(getattr(torch, str(case["query"])))
    units = {"one": 1, "few": 3, "many": 40, "fixed": 3}[str(case["split"])]
    fixed = 2 if case["split"] == "fixed" else 0
    tiles = Tiles(tile, row_tile(q_len * group), warps=4, stages=3)
    tabled = with_table(filled, str(case["table"]))
    check_decode(tabled, query, rules, tiles=tiles, units=units, fixed_tiles=fixed, spaced=bool(case["spaced"]))
