"""Time of one plan for each engine and kind of model, and of a what-if table of 2,000 cells.

    python bench/plan_speed.py

CPU time, the best of 5, in one run. Required: one plan below 1 ms, the table below 2 s.
"""

import itertools
import time
from collections.abc import Callable
from typing import cast

from kvbudget.engines import ENGINES, Card, KVFormat, Settings, budget
from kvbudget.engines.result import gib
from kvbudget.layers import Architecture
from kvbudget.shapes.config import from_config
from kvbudget.shapes.table import facts

MODELS = (
    "meta-llama/Meta-Llama-3.1-8B",
    "google/gemma-3-27b-it",
    "nvidia/Qwen3.6-27B-NVFP4",
    "deepseek-ai/DeepSeek-V3",
)
CARDS = tuple(
    Card(name=name, memory_bytes=gib(size))
    for name, size in (("L4", 21.95), ("A100", 79.25), ("H100", 79.19), ("H200", 139.8), ("B200", 178.36))
)
RANKS = (1, 2, 4, 8)
FORMATS = (None, "FP8E4M3", "INT8", "NVFP4")
LENGTHS = tuple(range(4096, 4096 + 25 * 4096, 4096))


def best_seconds(run: Callable[[], object], *, times: int = 5) -> float:
    """CPU seconds of the fastest of several runs."""
    found = []
    for _ in range(times):
        started = time.process_time()
        run()
        found.append(time.process_time() - started)
    return min(found)


def what_if(shape: Architecture, engine: str) -> int:
    """Cells of a table of cards × ranks × KV formats × lengths in which the model fits."""
    fits = 0
    for card, ranks, form, length in itertools.product(CARDS, RANKS, FORMATS, LENGTHS):
        told = Settings(max_model_len=length, tensor_parallel=ranks, kv_format=cast(KVFormat | None, form))
        fits += budget(shape, card, engine, None, told).verdict == "fits"
    return fits


def plan_line(name: str, engine: str) -> str:
    """Milliseconds of one plan, or why there is none."""
    shape, told = from_config(facts(name)), Settings(max_model_len=8192, tensor_parallel=4)
    try:
        budget(shape, CARDS[2], engine, None, told)
    except ValueError as error:
        return f"{name:32} {engine:14} {error}"
    seconds = best_seconds(lambda: [budget(shape, CARDS[2], engine, None, told) for _ in range(100)])
    return f"{name:32} {engine:14} {10 * seconds:.3f}"


def table_line(name: str) -> str:
    """Seconds of the what-if table."""
    shape = from_config(facts(name))
    cells = len(CARDS) * len(RANKS) * len(FORMATS) * len(LENGTHS)
    return f"what-if of {cells} cells, {name}, vllm: {best_seconds(lambda: what_if(shape, 'vllm'), times=2):.2f} s"


def main() -> None:
    print(f"{'model':32} {'engine':14} one plan, ms")
    for name, engine in itertools.product(MODELS, ENGINES):
        print(plan_line(name, engine), flush=True)
    for name in MODELS[:2]:
        print(table_line(name), flush=True)


if __name__ == "__main__":
    main()
