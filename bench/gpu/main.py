"""Runs the parts of `bench/gpu/run.sh`, each until its own deadline, and prints where the rows are."""

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from gpu import comparators, grid, smoke, tiles
from gpu.problem import Machine
from gpu.rows import Deadline, Rows
from gpu.timing import in_turns

PEAK_BYTES_PER_S = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.0e12}
"""Of the datasheets, by a word of the device's name."""
SECONDS = {"ceilings": 0, "smoke": 90, "grid": 160, "ablations": 60, "comparators": 90, "tiles": 400}
"""400 without the tiles, a run of their own (the ceilings are two graphs and have none); the rest of 8 minutes is
for imports and the last row of each part."""


def ceilings(machine: Machine, rows: Rows) -> Machine:
    """The machine with the rate at which it reads 2 GB."""
    size = 2 << 30 if machine.timed else 1 << 12
    source = torch.zeros(size // 4, device=machine.device)
    target = torch.empty_like(source)
    calls: dict[str, list[Callable[[], object]]] = {
        "read": [lambda: source.amax()],
        "copy": [lambda: target.copy_(source)],
    }
    times = in_turns(calls, machine)
    if times is None:
        rows.add("ceilings", "copy and read", "", "not timed")
        return machine
    rates = {"read": size / times["read"].median_us * 1e6, "copy": 2 * size / times["copy"].median_us * 1e6}
    for name, rate in rates.items():
        share = rate / machine.peak if machine.peak else None
        rows.add("ceilings", "2 GB", name, "ok", median_us=times[name].median_us, share_of_peak=share)
    return replace(machine, read_ceiling=rates["read"])


def here(dry: bool) -> Machine:
    if dry:
        return Machine(torch.device("cpu"), torch.float16, sms=2)
    if not torch.cuda.is_available():
        sys.exit("error: no CUDA device\n  fix: run it where there is one, or give --dry-run")
    name = torch.cuda.get_device_name()
    peak = next((rate for word, rate in PEAK_BYTES_PER_S.items() if word in name), None)
    properties = torch.cuda.get_device_properties(0)
    print(f"{name}, {properties.multi_processor_count} SMs, torch {torch.__version__}", flush=True)
    return Machine(torch.device("cuda"), torch.bfloat16, properties.multi_processor_count, peak)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bash bench/gpu/run.sh", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes, interpreted on the CPU; nothing is timed")
    parser.add_argument("--out", type=Path, default=Path("build/bench-gpu"), help="folder of rows.jsonl and rows.csv")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(SECONDS))
    options = parser.parse_args()
    if wrong := set(options.parts) - set(SECONDS):
        parser.error(f"no part {', '.join(sorted(wrong))}; there are {', '.join(SECONDS)}")
    machine, rows, began = here(options.dry_run), Rows(options.out), time.monotonic()
    parts = {
        "smoke": smoke.run, "grid": grid.run_grid, "ablations": grid.run_ablations, "comparators": comparators.run,
        "tiles": tiles.run,
    }  # fmt: skip
    chosen = options.parts or [name for name in SECONDS if name != "tiles" or options.dry_run]
    if "ceilings" in chosen:
        machine = ceilings(machine, rows)
    for name, run in parts.items():
        if name in chosen:
            run(machine, rows, Deadline.within(SECONDS[name] if machine.timed else math.inf))
    print(f"{rows.count} rows in {options.out}, {rows.bad} wrong or failed, {time.monotonic() - began:.0f} s")
    return int(rows.bad > 0)


if __name__ == "__main__":
    sys.exit(main())
