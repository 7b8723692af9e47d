"""What a launch cannot handle is refused before anything runs: the field, the reason, the fix."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvbudget_kernels.errors import KernelInputError
from kvbudget_kernels.kv_write import kv_write, new_counters
from kvbudget_kernels.paged_decode import paged_decode
from kvbudget_kernels.paged_extend import paged_extend
from kvbudget_kernels.plan import plan
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout
from kvbudget_kernels.tune import Tiles
from support.kernel_cases import CPU, Case, make_case, make_query, make_workspace

RULES = ScoreRules(0.125)
QUERIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "heads that are no whole groups": lambda query: query[:, :, :3],
    "another head size": lambda query: query[..., :32],
    "channels apart": lambda query: query.repeat_interleave(2, dim=-1)[..., ::2],
}
TABLES: dict[str, Callable[[Case], Case]] = {
    "64-bit page ids": lambda case: replace(case, table=case.table.long()),
    "cells apart": lambda case: replace(case, table=case.table.repeat_interleave(2, dim=1)[:, ::2]),
    "64-bit lengths": lambda case: replace(case, seq_lens=case.seq_lens.long()),
    "lengths of other sequences": lambda case: replace(case, seq_lens=case.seq_lens[:1]),
}


def _case() -> Case:
    return make_case(Layout.of("FP16", 2, 64, 16), [40, 7])


def _decode(case: Case, query: torch.Tensor) -> None:
    workspace = make_workspace(_case(), 4)
    paged_decode(query, case.cache, case.table, case.seq_lens, RULES, workspace)


def _extend(case: Case, query: torch.Tensor) -> None:
    paged_extend(query[:, 0], torch.tensor([0, 1, 2], dtype=torch.int32), case.cache, case.table, case.seq_lens, RULES)


@pytest.mark.parametrize("launch", [_decode, _extend])
@pytest.mark.parametrize("change", QUERIES)
def test_a_query_of_another_shape(change: str, launch: Callable[[Case, torch.Tensor], None]) -> None:
    case = _case()
    with pytest.raises(KernelInputError) as refused:
        launch(case, QUERIES[change](make_query(case, 4)))
    assert (refused.value.field, refused.value.fix[:4]) == ("query", "give")


@pytest.mark.parametrize("launch", [_decode, _extend])
@pytest.mark.parametrize("change", TABLES)
def test_a_table_of_another_shape(change: str, launch: Callable[[Case, torch.Tensor], None]) -> None:
    case = _case()
    with pytest.raises(KernelInputError) as refused:
        launch(TABLES[change](case), make_query(case, 4))
    assert refused.value.field == ("seq_lens" if "lengths" in change else "table")


def test_a_plan_for_other_tiles() -> None:
    case = _case()
    workspace = make_workspace(case, 4, tiles=Tiles(32, 16, 4, 3))
    plan(workspace, case.seq_lens)
    with pytest.raises(KernelInputError, match="planned for tiles of 32 tokens, launched with 16"):
        paged_decode(
            make_query(case, 4), case.cache, case.table, case.seq_lens, RULES, workspace, tiles=Tiles(16, 16, 4, 3)
        )


def test_chunks_of_another_number_of_sequences() -> None:
    case = _case()
    for cu in (torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 1, 2])):
        with pytest.raises(KernelInputError, match="cu_q"):
            paged_extend(make_query(case, 4)[:, 0], cu, case.cache, case.table, case.seq_lens, RULES)


def test_slots_and_lengths_of_another_width() -> None:
    case = _case()
    rows = torch.zeros(1, 2, 64)
    with pytest.raises(KernelInputError, match="slots"):
        kv_write(case.cache, rows, rows, torch.zeros(1, dtype=torch.int32), new_counters(CPU))
    with pytest.raises(KernelInputError, match="seq_lens"):
        plan(make_workspace(case, 4), case.seq_lens.long())
