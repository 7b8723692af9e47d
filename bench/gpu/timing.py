"""Times calls by replaying recorded graphs, the alternatives of a case in turns."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from subprocess import SubprocessError

import torch
from triton.errors import TritonError

from gpu.problem import Machine

REPEATS = 32
FAULTS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError,
    ValueError, SubprocessError, TritonError,
)  # fmt: skip
"""What becomes a row: one case that fails, or another project's fault, must not cost the others."""
WARM_UP = 3


@dataclass(frozen=True)
class Time:
    """Microseconds of one call."""

    median_us: float
    p95_us: float


def _record(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The call has to run before, on a side stream, so that nothing is compiled while recording."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def in_turns(alternatives: Mapping[str, Sequence[Callable[[], object]]], machine: Machine) -> dict[str, Time] | None:
    """Each alternative is a call per set of pages; sets rotate, so that no call finds its pages in the L2 cache. None
    where nothing is timed: then each alternative ran once."""
    if not machine.timed:
        for calls in alternatives.values():
            calls[0]()
        return None
    graphs = {name: [_record(call) for call in calls] for name, calls in alternatives.items()}
    spans: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in graphs}
    for turn in range(REPEATS):
        for name, sets in graphs.items():
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            began.record()
            sets[turn % len(sets)].replay()
            ended.record()
            spans[name].append((began, ended))
    torch.cuda.synchronize()
    return {name: _of([a.elapsed_time(b) * 1000 for a, b in pairs]) for name, pairs in spans.items()}


def _of(microseconds: list[float]) -> Time:
    ordered = sorted(microseconds)
    return Time(statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))])


def floor(machine: Machine) -> Time | None:
    """What the replay of a graph costs that does next to nothing."""
    one = torch.zeros(1, device=machine.device)
    times = in_turns({"floor": [lambda: one.add_(1)]}, machine)
    return None if times is None else times["floor"]
