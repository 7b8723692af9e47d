"""What-if: every combination of GPU type, tensor parallelism, KV precision and maximum length; what fits comes first,
the cheapest of it at the top.

Without prices, "cheap" is the memory of all GPUs of a replica together. A length costs nothing to add: memory does not
depend on it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvbudget.engines import KVFormat
from kvbudget.planner.question import Answer, Device, Question, ask, at_length

_ORDER: Final = {"fits": 0, "at risk": 1, "does not fit": 2, "refused": 3}
MAX_CELLS: Final = 20_000
"""More would be no table that anybody reads."""


@dataclass(frozen=True, slots=True)
class Axes:
    """``kv_formats``: None is the engine's own choice. Lengths are in tokens."""

    devices: Sequence[Device]
    tensor_parallel: Sequence[int]
    kv_formats: Sequence[KVFormat | None]
    lengths: Sequence[int]

    @property
    def cells(self) -> int:
        return len(self.devices) * len(self.tensor_parallel) * len(self.kv_formats) * len(self.lengths)


@dataclass(frozen=True, slots=True)
class Cell:
    """``price``: of one replica per hour, in the unit of the price list; None without a price of this type."""

    answer: Answer
    price: float | None

    @property
    def memory_bytes(self) -> int:
        """Of all GPUs of a replica."""
        return self.answer.gpus * self.answer.question.device.card.memory_bytes


def what_if(question: Question, axes: Axes, prices: Mapping[str, float]) -> list[Cell]:
    """All cells, sorted. ``question`` gives what the axes leave open. Raises InputError as :func:`ask` does."""
    return sorted(_cells(question, axes, prices), key=_rank)


def default_lengths(shape_limit: int | None) -> tuple[int, ...]:
    """Lengths to try where none is given: the model's own and two that most services would take.

    >>> default_lengths(40960), default_lengths(None), default_lengths(2048)
    ((8192, 32768, 40960), (8192, 32768), (2048,))
    """
    own = () if shape_limit is None else (shape_limit,)
    return (*(n for n in (8192, 32768) if shape_limit is None or n < shape_limit), *own)


def _cells(question: Question, axes: Axes, prices: Mapping[str, float]) -> Iterator[Cell]:
    for device in axes.devices:
        rate = prices.get(device.name)
        for ranks in axes.tensor_parallel:
            for kv_format in axes.kv_formats:
                told = replace(
                    question.settings, tensor_parallel=ranks, kv_format=kv_format, max_model_len=axes.lengths[0]
                )
                first = ask(replace(question, device=device, settings=told))
                price = None if rate is None else rate * first.gpus
                yield Cell(first, price)
                for tokens in axes.lengths[1:]:
                    yield Cell(at_length(first, tokens), price)


def _rank(cell: Cell) -> tuple[int, bool, float, int, int, float]:
    """What fits, the priced before the others, the cheapest, the least memory, then the longest and the fullest."""
    answer = cell.answer
    return (
        _ORDER[answer.verdict],
        cell.price is None,
        cell.price or 0.0,
        cell.memory_bytes,
        -answer.budget.max_model_len,
        -answer.concurrency()[0],
    )
