"""Times tile sizes, each a row that `python -m kvbudget_kernels.tune --refresh` reads."""

from collections.abc import Iterator
from dataclasses import asdict, replace

import torch
from triton.runtime.errors import OutOfResources

from gpu.problem import Machine, Step, calls
from gpu.rows import Deadline, Rows
from gpu.timing import FAULTS, in_turns
from kvbudget_kernels.arch import arch_here
from kvbudget_kernels.storage import Layout
from kvbudget_kernels.tune import Tiles

SETS = 4
SHAPES = (
    ("BF16", 128, 64), ("FP8E4M3", 128, 64), ("INT8", 128, 64), ("INT4", 128, 64), ("BF16", 64, 64), ("BF16", 256, 64),
    ("BF16", 128, 16),
)  # fmt: skip
"""Precision, head size and page length, in the order in which they matter."""


def candidates(step: Step, machine: Machine) -> Iterator[Tiles]:
    """The present tiles first. Token-contiguous V takes no tile longer than a page."""
    present = step.tiles()
    yield present
    if not machine.timed:
        yield replace(present, warps=8)
        return
    longest = step.layout.page_tokens if step.layout.v_transposed else 128
    for tile_tokens in (32, 64, 128):
        for warps in (4, 8):
            for stages in (2, 3, 4):
                each = replace(present, tile_tokens=tile_tokens, warps=warps, stages=stages)
                if tile_tokens <= longest and each != present:
                    yield each
    for registers in {128, 168, None} - {present.registers}:
        yield replace(present, registers=registers)


def run(machine: Machine, rows: Rows, deadline: Deadline) -> None:
    for precision, head_dim, page_tokens in SHAPES if machine.timed else (("FP16", 32, 16),):
        lengths, kv_heads = ((32768,) * 8, 8) if machine.timed else ((40, 3), 2)
        layout = Layout.of(precision, kv_heads, head_dim, page_tokens)
        step = Step(f"{len(lengths)}x{lengths[0]}", lengths, 4 * kv_heads, layout)
        for tiles in candidates(step, machine):
            _time(step, tiles, machine, rows, deadline)


def _time(step: Step, tiles: Tiles, machine: Machine, rows: Rows, deadline: Deadline) -> None:
    layout = step.layout
    what = f"{tiles.tile_tokens} keys, {tiles.warps} warps, {tiles.stages} stages, {tiles.registers or 'any'} registers"
    case = f"{step.name} {layout.precision} D{layout.head_dim} P{layout.page_tokens}"
    if deadline.passed:
        rows.add("tiles", case, what, "skipped", note="deadline")
        return
    try:
        times = in_turns({"this": calls(step, machine, sets=SETS if machine.timed else 1, tiles=tiles)}, machine)
    except FAULTS as error:
        status = "absent" if isinstance(error, OutOfResources) else "failed"
        rows.add("tiles", case, what, status, note=f"{type(error).__name__}: {error}"[:200])
        return
    device = torch.cuda.get_device_name() if machine.timed else "interpreter"
    launch = {"arch": arch_here(), "precision": layout.precision, "head_dim": layout.head_dim}
    launch |= {"page_tokens": layout.page_tokens, "device": device, **asdict(tiles), "registers": tiles.registers or 0}
    if times is None:
        rows.add("tiles", case, what, "not timed", **launch)
    else:
        rows.add("tiles", case, what, "ok", median_us=times["this"].median_us, p95_us=times["this"].p95_us, **launch)
