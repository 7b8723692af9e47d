"""Cascade decode beside attention over each sequence's keys and values, prefix and suffix in one row."""

import torch

from kvbudget_kernels import reference
from kvbudget_kernels.cascade import PrefixGroups, cascade_decode
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout
from support.kernel_cases import Case, assert_close, make_case, make_query, make_workspace, with_table


def check_cascade(
    layout: Layout,
    prefixes: list[int],
    members: list[list[int]],
    suffixes: list[int],
    q_len: int,
    rules: ScoreRules,
    splits: int,
    *,
    group: int = 3,
    form: str = "plain",
    table: str = "exact",
    query_dtype: torch.dtype = torch.float16,
) -> None:
    """``members``: the sequences that share each prefix. A prefix may end within a page; a sequence may have none."""
    single = torch.float32 if layout.precision == "FP32" else torch.float16
    filled = with_table(make_case(layout, prefixes + suffixes, form=form, input_dtype=single), table)
    groups, heads = len(prefixes), group * layout.kv_heads
    counts = torch.tensor([len(each) for each in members])
    shared = PrefixGroups(
        table=filled.table[:groups],
        lens=filled.seq_lens[:groups].contiguous(),
        indptr=torch.tensor([0, *counts.cumsum(0).tolist()], dtype=torch.int32),
        members=torch.tensor([*(each for one in members for each in one), 0], dtype=torch.int32),
        most_members=max(1, *map(len, members)),
    )
    own = Case(filled.cache, filled.table[groups:], filled.seq_lens[groups:].contiguous(), [], [])
    query = make_query(own, heads, q_len).to(query_dtype)
    workspace = make_workspace(own, heads, q_len)
    got = cascade_decode(query, own.cache, shared, own.table, own.seq_lens, rules, workspace, splits=splits)
    assert_close(got, _flat(query, filled, own, prefixes, members, rules), layout.precision)


def _flat(
    query: torch.Tensor, filled: Case, own: Case, prefixes: list[int], members: list[list[int]], rules: ScoreRules
) -> tuple[torch.Tensor, torch.Tensor]:
    prefix_of = {each: g for g, one in enumerate(members) for each in one}
    results = []
    for b, suffix in enumerate(own.seq_lens.tolist()):
        parts = [reference.gather(own.cache, own.table[b], suffix)]
        if b in prefix_of:
            parts.insert(0, reference.gather(own.cache, filled.table[prefix_of[b]], prefixes[prefix_of[b]]))
        key, value = (torch.cat(each) for each in zip(*parts, strict=True))
        tokens = key.shape[0]
        positions = torch.arange(tokens - query.shape[1], tokens)
        results.append(reference.attend(query[b], key, value, positions, rules))
    return torch.stack([out for out, _ in results]), torch.stack([lse for _, lse in results])
