"""A shared prefix that is read once gives what reading it for each sequence gives."""

import pytest
import torch

from kvbudget_kernels.cascade import PrefixGroups, cascade_decode
from kvbudget_kernels.errors import KernelInputError
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import PRECISIONS, Layout
from support.cascades import check_cascade
from support.kernel_cases import make_case, make_query, make_workspace
from support.pairwise import pairwise

AXES: dict[str, tuple[object, ...]] = {
    "precision": PRECISIONS,
    "head_dim": (64, 80, 128, 256),
    "group": (1, 3, 7, 12),
    "q_len": (1, 2, 4),
    "prefixes": ("pages", "ragged", "some"),
    "page": (16, 32, 128),
    "splits": (1, 2, 7),
    "window": (None, 1, 20, 90),
    "form": ("plain", "interleaved", "far"),
    "table": ("exact", "wide", "strided"),
    "softcap": (None, 30.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "query": ("float16", "float32"),
}
CASES = pairwise(AXES)
GROUPS: dict[object, tuple[list[int], list[list[int]], list[int]]] = {
    "pages": ([128, 32], [[0, 2], [1]], [5, 17, 33]),
    "ragged": ([41], [[1, 0]], [9, 20]),
    "some": ([50, 0, 7], [[3], [0], []], [4, 18, 8, 35]),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_cascade_matches_the_reference(case: dict[str, object]) -> None:
    kv_heads, group = 2, int(str(case["group"]))
    heads = kv_heads * group
    prefixes, members, suffixes = GROUPS[case["prefixes"]]
    window = case["window"]
    rules = ScoreRules(
        sm_scale=0.125,
        window_tokens=window if isinstance(window, int) else None,
        softcap=30.0 if case["softcap"] else None,
        sinks=torch.linspace(-1, 3, heads) if case["sinks"] else None,
        alibi_slopes=torch.logspace(-3, -1, heads) if case["alibi"] else None,
    )
    check_cascade(
        Layout.of(str(case["precision"]), kv_heads, int(str(case["head_dim"])), int(str(case["page"]))),
        prefixes, members, suffixes, int(str(case["q_len"])), rules, int(str(case["splits"])), group=group,
        form=str(case["form"]), table=str(case["table"]), query_dtype=getattr(torch, str(case["query"])),
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["FP16", "FP8E4M3", "INT8", "INT4"])
def test_two_groups_of_every_precision(precision: str) -> None:
    """#8, #10: cascade = flat."""
    layout = Layout.of(precision, 2, 64, 16)
    check_cascade(layout, [96, 32], [[0, 2, 3], [1]], [5, 17, 33, 2, 20], 2, ScoreRules(0.125), 3, group=2)


@pytest.mark.parametrize("prefix", [0, 5, 16, 48])
def test_a_prefix_of_any_number_of_tokens_and_one_member(prefix: int) -> None:
    """#33."""
    check_cascade(Layout.of("FP16", 1, 64, 16), [prefix], [[1]], [4, 9], 1, ScoreRules(0.125), 2)


def test_a_query_whose_suffix_is_empty_is_the_prefix_s_last_token() -> None:
    """#33."""
    check_cascade(Layout.of("FP16", 2, 64, 16), [40], [[0]], [0], 1, ScoreRules(0.125), 2)


def test_window_softcap_alibi_and_sinks_count_once_over_prefix_and_suffix() -> None:
    """#17."""
    rules = ScoreRules(
        0.125, window_tokens=30, softcap=20.0, alibi_slopes=torch.logspace(-3, -1, 6), sinks=torch.linspace(-1, 3, 6)
    )
    check_cascade(Layout.of("FP16", 2, 64, 16), [64], [[0, 1, 2]], [3, 40, 12], 2, rules, 2)


def test_the_earliest_member_s_window_decides_what_is_read_of_the_prefix() -> None:
    """One member is at the prefix's end, the other far behind it: the first still sees the prefix."""
    rules = ScoreRules(0.125, window_tokens=20)
    check_cascade(Layout.of("FP16", 1, 64, 16), [64], [[0, 1]], [2, 60], 1, rules, 1)


def test_no_program_along_a_prefix_is_refused() -> None:
    case = make_case(Layout.of("FP16", 1, 64, 16), [20])
    ints = torch.zeros(2, dtype=torch.int32)
    groups = PrefixGroups(case.table, case.seq_lens, ints, ints, 1)
    with pytest.raises(KernelInputError, match="splits"):
        cascade_decode(
            make_query(case, 1), case.cache, groups, case.table, case.seq_lens, ScoreRules(1.0),
            make_workspace(case, 1), splits=0,
        )  # fmt: skip
