"""The main grid and the ablations: how near does decode come to the memory's limit?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gpu.problem import Machine, Step, calls, tables, token_major
from gpu.rows import Deadline, Rows
from gpu.timing import FAULTS, Time, floor, in_turns
from gpu.variants import VARIANTS
from kvbudget_kernels.cascade import PrefixGroups, cascade_decode
from kvbudget_kernels.paged_extend import paged_extend
from kvbudget_kernels.plan import SplitPolicy, Workspace
from kvbudget_kernels.reference import ScoreRules
from kvbudget_kernels.storage import Layout, PagedKV, allocate
from kvbudget_kernels.traffic import balance, traffic
from kvbudget_kernels.tune import Tiles

Calls = Sequence[Callable[[], object]]
SETS = 4
LENGTHS: dict[str, tuple[int, ...]] = {
    "1x4k": (4096,), "1x32k": (32768,), "1x128k": (131072,), "8x4k": (4096,) * 8, "8x32k": (32768,) * 8,
    "32x1k": (1024,) * 32, "32x8k": (8192,) * 32, "128x1k": (1024,) * 128, "128x4k": (4096,) * 128,
    "256x2k": (2048,) * 256, "skewed": (65536, *(1024,) * 63),
}  # fmt: skip
HEADS = ((32, 8), (8, 1), (28, 4), (64, 8))


def steps(machine: Machine) -> Iterator[Step]:
    """All precisions for 32/8 heads and BF16 for the others; pages of 16 for BF16 alone."""
    if not machine.timed:
        for precision in ("BF16", "INT8"):
            yield Step("2 uneven", (40, 3), 4, Layout.of(precision, 2, 32, 16))
        return
    for name, lengths in LENGTHS.items():
        for precision in ("BF16", "FP8E4M3", "INT8", "INT4"):
            yield Step(name, lengths, 32, Layout.of(precision, 8, 128, 64))
        yield Step(name, lengths, 32, Layout.of("BF16", 8, 128, 16))
    for heads, kv_heads in HEADS[1:]:
        for name, lengths in LENGTHS.items():
            yield Step(name, lengths, heads, Layout.of("BF16", kv_heads, 128, 64))


def case_name(step: Step) -> str:
    layout = step.layout
    return f"{step.name} {step.attention_heads}/{layout.kv_heads} {layout.precision} P{layout.page_tokens}"


def record(
    rows: Rows, machine: Machine, part: str, step: Step, build: Callable[[], Mapping[str, Calls]], empty: Time | None
) -> None:  # fmt: skip
    """Builds and times the alternatives of one case and adds a row for each."""
    try:
        alternatives = build()
        times = in_turns(alternatives, machine)
    except FAULTS as error:
        rows.add(part, case_name(step), "", "failed", note=f"{type(error).__name__}: {error}"[:200])
        return
    policy = step.policy(machine.sms)
    moved = traffic(step.layout, step.lengths, attention_heads=step.attention_heads, policy=policy)
    paper = {
        "live_bytes": step.live_bytes, "model_bytes": moved.total, "balance": round(balance(policy, step.lengths), 4)
    }  # fmt: skip
    for name in alternatives:
        if times is None:
            rows.add(part, case_name(step), name, "not timed", **paper)
            continue
        rate = step.live_bytes / times[name].median_us * 1e6
        rows.add(
            part, case_name(step), name, "ok", **paper, median_us=times[name].median_us,
            p95_us=times[name].p95_us, floor_us=empty.median_us if empty else None,
            share_of_peak=rate / machine.peak if machine.peak else None,
            share_of_read_ceiling=rate / machine.read_ceiling if machine.read_ceiling else None,
        )  # fmt: skip


def run_grid(machine: Machine, rows: Rows, deadline: Deadline) -> None:
    empty = floor(machine)
    for step in steps(machine):
        if deadline.passed:
            rows.add("grid", case_name(step), "ours", "skipped", note="deadline")
            continue
        sets = SETS if machine.timed else 1
        record(rows, machine, "grid", step, partial(_ours, step, machine, sets), empty)


def _ours(step: Step, machine: Machine, sets: int) -> dict[str, Calls]:
    return {"ours": calls(step, machine, sets=sets)}


def _both_values(step: Step, machine: Machine, sets: int) -> dict[str, Calls]:
    """V by token is what the page format would be without its transposed V."""
    flat = replace(step, layout=token_major(step.layout))
    return {"V by token": calls(flat, machine, sets=sets), "V by channel": calls(step, machine, sets=sets)}


def run_ablations(machine: Machine, rows: Rows, deadline: Deadline) -> None:
    empty = floor(machine)
    sets = SETS if machine.timed else 1
    if machine.timed:
        names = [("8x32k", LENGTHS["8x32k"]), ("32x8k", LENGTHS["32x8k"])]
        bases = [Step(n, lengths, 32, Layout.of("BF16", 8, 128, 64)) for n, lengths in names]
    else:
        bases = [Step("2 uneven", (40, 3), 4, Layout.of("FP16", 2, 32, 16))]
    for base in bases:
        for name, build in _variants(base, machine, sets):
            if deadline.passed:
                rows.add("ablations", case_name(base), name, "skipped", note="deadline")
                continue
            record(rows, machine, "ablations", base, build, empty)
        for precision in ("FP8E4M3", "INT8"):
            step = replace(base, layout=Layout.of(precision, *_shape(base)))
            if deadline.passed:
                rows.add("ablations", case_name(step), "V as it lies", "skipped", note="deadline")
                continue
            record(rows, machine, "ablations", step, partial(_both_values, step, machine, sets), empty)
    if not deadline.passed:
        _prefix_and_chunk(machine, rows, empty)


def _shape(step: Step) -> tuple[int, int, int]:
    return step.layout.kv_heads, step.layout.head_dim, step.layout.page_tokens


def _variants(base: Step, machine: Machine, sets: int) -> Iterator[tuple[str, Callable[[], dict[str, Calls]]]]:
    tiles = base.tiles()
    changes = {f"{n} keys a tile": replace(tiles, tile_tokens=n) for n in ((32, 64, 128) if machine.timed else (16,))}
    if machine.timed:
        changes |= {f"{n} warps": replace(tiles, warps=n) for n in (2, 4, 8)}
        changes |= {f"{n} stages": replace(tiles, stages=n) for n in (2, 3, 4)}
    for name, changed in changes.items():
        yield name, partial(_variant, name, base, machine, sets, changed, 4)
    for ctas in (2, 3, 4) if machine.timed else (2,):
        yield f"{ctas} per SM", partial(_variant, f"{ctas} per SM", base, machine, sets, tiles, ctas)
    yield "page id and TMA", lambda: {name: calls(base, machine, sets=sets, variant=name) for name in VARIANTS}


def _variant(name: str, step: Step, machine: Machine, sets: int, tiles: Tiles, ctas: int) -> dict[str, Calls]:
    return {name: calls(step, machine, sets=sets, tiles=tiles, ctas_per_sm=ctas)}


def _prefix_and_chunk(machine: Machine, rows: Rows, empty: Time | None) -> None:
    """A shared prefix for 64 sequences, and a chunk of a prompt on top of what is cached."""
    prefix, members, suffix, chunk = (32768, 64, 64, 512) if machine.timed else (32, 2, 5, 6)
    heads, layout = (32, Layout.of("BF16", 8, 128, 64)) if machine.timed else (4, Layout.of("FP16", 2, 32, 16))
    generator = torch.Generator(machine.device).manual_seed(0)
    device = machine.device
    step = Step(f"prefix of {prefix}", (prefix, *(suffix,) * members), heads, layout)
    (table, *_), pages = tables(step, 1, device, generator)
    cache = PagedKV.over(layout, allocate(layout, pages, device))
    cache.key.normal_(generator=generator)
    cache.value.normal_(generator=generator)
    ints: dict[str, Any] = {"dtype": torch.int32, "device": device}
    groups = PrefixGroups(
        table[:1], torch.tensor([prefix], **ints), torch.tensor([0, members], **ints),
        torch.arange(members, **ints), members,
    )  # fmt: skip
    rules = ScoreRules(layout.head_dim**-0.5)
    query = torch.randn(members, 1, heads, layout.head_dim, generator=generator, device=device).to(machine.dtype)
    lens = torch.full((members,), suffix, **ints)
    policy = SplitPolicy(step.tiles().tile_tokens, units=max(1, machine.sms * 4 // layout.kv_heads))
    workspace = Workspace.allocate(
        policy, max_batch=members, max_tokens=suffix, kv_heads=layout.kv_heads, rows=heads // layout.kv_heads,
        head_dim=layout.head_dim, device=device,
    )  # fmt: skip
    own = table[1:, : -(-suffix // layout.page_tokens)].contiguous()

    def shared() -> object:
        return cascade_decode(query, cache, groups, own, lens, rules, workspace, splits=8 if machine.timed else 2)

    record(rows, machine, "ablations", step, lambda: {"cascade": [shared]}, empty)
    cached = 8192 if machine.timed else 20
    step = Step(f"chunk of {chunk} over {cached}", (cached + chunk,), heads, layout)
    rows_q = torch.randn(chunk, heads, layout.head_dim, generator=generator, device=device).to(machine.dtype)
    cu, total = torch.tensor([0, chunk], **ints), torch.tensor([cached + chunk], **ints)

    def extend() -> object:
        return paged_extend(rows_q, cu, cache, table[:1], total, rules)

    record(rows, machine, "ablations", step, lambda: {"extend": [extend]}, empty)
