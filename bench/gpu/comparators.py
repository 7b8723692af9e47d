"""Others on the same shapes, where they are installed: BF16, each in the form of cache that it wants."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from gpu.grid import LENGTHS, record
from gpu.problem import Machine, Step, calls
from gpu.rows import Deadline, Rows
from gpu.timing import FAULTS, floor
from kvbudget_kernels.storage import Layout

Calls = list[Callable[[], object]]
SETS = 4


def run(machine: Machine, rows: Rows, deadline: Deadline) -> None:
    """Lengths are equal within a case, so that a cache without pages holds live tokens only."""
    empty = floor(machine)
    names = ("8x32k", "32x8k", "1x128k") if machine.timed else ("2x32",)
    for name in names:
        lengths = LENGTHS[name] if machine.timed else (32, 32)
        layout = Layout.of("BF16", 8, 128, 64) if machine.timed else Layout.of("FP16", 2, 32, 16)
        step = Step(name, lengths, 32 if machine.timed else 4, layout)
        sets = SETS if machine.timed else 1
        alternatives: dict[str, Calls] = {"ours": calls(step, machine, sets=sets)}
        for other, (module, make) in OTHERS.items():
            if deadline.passed:
                rows.add("comparators", name, other, "skipped", note="deadline")
            elif not machine.timed and make is _flex:
                rows.add("comparators", name, other, "absent", note="left out of a dry run: it compiles for long")
            elif find_spec(module) is None:
                rows.add("comparators", name, other, "absent", note=f"{module} is not installed")
            else:
                try:
                    made = make(step, machine, sets)
                    made[0]()
                    alternatives[other] = made
                except FAULTS as error:
                    rows.add("comparators", name, other, "absent", note=f"{type(error).__name__}: {error}"[:200])
        record(rows, machine, "comparators", step, lambda made=alternatives: made, empty)  # type: ignore[misc]


def _contiguous(step: Step, machine: Machine, sets: int, *, heads_first: bool) -> list[tuple[torch.Tensor, ...]]:
    """(query, key, value) per set, without pages: [batch, heads, tokens, head_dim] or [batch, tokens, heads, …]."""
    batch, n, layout = len(step.lengths), step.lengths[0], step.layout
    kv = (batch, layout.kv_heads, n, layout.head_dim) if heads_first else (batch, n, layout.kv_heads, layout.head_dim)
    q = (batch, step.attention_heads, 1, layout.head_dim)
    q = q if heads_first else (batch, 1, step.attention_heads, layout.head_dim)
    return [
        tuple(torch.randn(shape, device=machine.device, dtype=machine.dtype) for shape in (q, kv, kv))
        for _ in range(sets)
    ]


def _sdpa(step: Step, machine: Machine, sets: int) -> Calls:
    attend = torch.nn.functional.scaled_dot_product_attention
    inputs = _contiguous(step, machine, sets, heads_first=True)
    return [lambda q=q, k=k, v=v: attend(q, k, v, enable_gqa=True) for q, k, v in inputs]  # type: ignore[misc]


def _flex(step: Step, machine: Machine, sets: int) -> Calls:
    from torch.nn.attention.flex_attention import flex_attention

    attend = torch.compile(flex_attention) if machine.timed else flex_attention
    inputs = _contiguous(step, machine, sets, heads_first=True)
    return [lambda q=q, k=k, v=v: attend(q, k, v, enable_gqa=True) for q, k, v in inputs]  # type: ignore[misc]


def _fa3(step: Step, machine: Machine, sets: int) -> Calls:
    """Without pages: paged KV is off in the wheel."""
    from fa3_fwd import flash_attn_func  # type: ignore[import-not-found]

    inputs = _contiguous(step, machine, sets, heads_first=False)
    return [lambda q=q, k=k, v=v: flash_attn_func(q, k, v) for q, k, v in inputs]  # type: ignore[misc]


def _flashinfer(step: Step, machine: Machine, sets: int) -> Calls:
    import flashinfer  # type: ignore[import-not-found]

    layout, batch = step.layout, len(step.lengths)
    per = -(-step.lengths[0] // layout.page_tokens)
    ints: dict[str, Any] = {"dtype": torch.int32, "device": machine.device}
    made: Calls = []
    for _ in range(sets):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(128 << 20, dtype=torch.uint8, device=machine.device), "HND", use_tensor_cores=True
        )
        wrapper.plan(
            torch.arange(0, batch * per + 1, per, **ints), torch.randperm(batch * per, device=machine.device).int(),
            torch.full((batch,), (step.lengths[0] - 1) % layout.page_tokens + 1, **ints), step.attention_heads,
            layout.kv_heads, layout.head_dim, layout.page_tokens, q_data_type=machine.dtype,
            kv_data_type=machine.dtype,
        )  # fmt: skip
        shape = (batch * per, 2, layout.kv_heads, layout.page_tokens, layout.head_dim)
        cache = torch.randn(shape, device=machine.device, dtype=machine.dtype)
        query = torch.randn(batch, step.attention_heads, layout.head_dim, device=machine.device, dtype=machine.dtype)
        made.append(lambda w=wrapper, q=query, c=cache: w.run(q, c))  # type: ignore[misc]
    return made


def _xformers(step: Step, machine: Machine, sets: int) -> Calls:
    """The Triton split-K kernel; query heads of a group share K and V by an expanded dimension."""
    from xformers.ops import fmha  # type: ignore[import-not-found]

    made: Calls = []
    kv_heads, group = step.layout.kv_heads, step.group
    for q, k, v in _contiguous(step, machine, sets, heads_first=False):
        q5 = q.view(*q.shape[:2], kv_heads, group, q.shape[3])
        k5, v5 = (x.unsqueeze(3).expand(-1, -1, -1, group, -1) for x in (k, v))
        made.append(
            lambda q=q5, k=k5, v=v5: fmha.memory_efficient_attention_forward(q, k, v, op=fmha.triton_splitk.FwOp)  # type: ignore[misc]
        )
    return made


OTHERS: dict[str, tuple[str, Callable[[Step, Machine, int], Calls]]] = {
    "flashinfer": ("flashinfer", _flashinfer), "fa3, no pages": ("fa3_fwd", _fa3),
    "sdpa, no pages": ("torch", _sdpa), "flex, no pages": ("torch", _flex),
    "xformers, no pages": ("xformers", _xformers),
}  # fmt: skip
