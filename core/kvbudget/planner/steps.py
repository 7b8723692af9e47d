"""What can be changed about a plan, as ladders: the steps of one kind of change, the smallest first.

A step is tried by asking the question again with it; nothing here says whether it helps.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, get_args

from kvbudget.engines import KVFormat
from kvbudget.engines.loading import format_refused
from kvbudget.engines.result import longest
from kvbudget.engines.vllm_versions import NEWEST
from kvbudget.planner.question import Answer, Device, Question, length_limit
from kvbudget.planner.weightformats import PLAIN, stored_as

Change = tuple[str, str | int | float]
"""An option of the command line, and its value."""

_KV: Final[dict[str, tuple[str, ...]]] = {
    "vllm": ("FP8E4M3",),
    "sglang": ("FP8E4M3",),
    "tensorrt_llm": ("FP8E4M3", "NVFP4"),
    "bundled": ("FP8E4M3", "INT8", "INT4", "NVFP4"),
}
"""Formats smaller than 16 bits that the engines have on most cards, the best first."""
_WEIGHTS: Final = ("FP8", "INT4")
HIGHEST_FRACTION: Final = 0.95
"""Above it, engines were seen to run out of memory although planned."""
_LOWEST_FRACTION: Final = 0.5
_FEWEST_SEQUENCES: Final = 8
_FEWEST_BATCHED: Final = 1024
_MOST_RANKS: Final = 16
_STAGES: Final = (1, 2, 4, 8)
_GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Step:
    """``text`` says what to do; ``move`` is the question with it."""

    text: str
    changes: tuple[Change, ...]
    move: Callable[[Question], Question]


Ladder = tuple[Step, ...]


def kv_formats(answer: Answer) -> Ladder:
    """Smaller formats of the KV; of one that the card or engine refuses, back to 16 bits."""
    device, now = answer.question.device, answer.budget.kv_precision
    if now in PLAIN:
        names = [n for n in _KV[answer.question.engine] if n in device.kv_precisions]
    else:
        names = [n for n in device.kv_precisions[:1] if answer.verdict == "refused"]
    return tuple(
        Step(f"KV in {name}", (("--kv-precision", name),), _set(kv_format=name))
        for name in names
        if name in get_args(KVFormat)
    )


def weight_formats(answer: Answer) -> Ladder:
    """Smaller formats of the weights that the engine loads on this card; of one that it refuses, back to 16 bits."""
    question = answer.question
    if question.shape.weights.name in PLAIN:
        names = [name for name in _WEIGHTS if _loads(question, name)]
    else:
        names = ["BF16"] if answer.verdict == "refused" else []
    return tuple(
        Step(f"weights in {name} (a checkpoint stored so)", (("--weight-precision", name),), _stored(name))
        for name in names
    )


def _loads(question: Question, name: str) -> bool:
    device = question.device
    offered = not device.weight_precisions or name in device.weight_precisions
    if question.engine == "bundled":
        return offered
    version = question.version or ".".join(map(str, NEWEST))
    has = device.card.compute_capability is not None or offered
    return has and format_refused(name, device.card, question.engine, version) is None


def gpus(answer: Answer) -> Ladder:
    """More GPUs of the same type, the fewest first: tensor parallelism, and stages too. Of a plan that is refused for
    how it is split, also fewer."""
    now, layers = answer.question.settings, answer.question.shape.layers
    fewest = (1, 1) if answer.verdict == "refused" else (now.tensor_parallel, now.pipeline_parallel)
    split = [
        (ranks, stages)
        for stages in _STAGES
        for ranks in range(fewest[0], _MOST_RANKS + 1)
        if fewest[1] <= stages <= layers and (ranks, stages) != (now.tensor_parallel, now.pipeline_parallel)
    ]
    if now.pipeline_parallel not in _STAGES:
        return ()
    return tuple(_split(answer, *one) for one in sorted(split, key=lambda one: (one[0] * one[1], one[1])))


def _split(answer: Answer, ranks: int, stages: int) -> Step:
    changes: tuple[Change, ...] = (("--tp", ranks),)
    if stages != answer.question.settings.pipeline_parallel:
        changes = (*changes, ("--pp", stages))
    words = " ".join(f"{option} {value}" for option, value in changes)
    number = ranks * stages * answer.question.settings.data_parallel
    many = f"{number} GPU{'' if number == 1 else 's'} instead of {answer.gpus}"
    return Step(f"{words} ({many})", changes, _set(tensor_parallel=ranks, pipeline_parallel=stages))


def devices(answer: Answer, others: Iterable[Device]) -> Ladder:
    """Other types, the least memory first; of the same maker unless the engine would not start there."""
    here, refused = answer.question.device, answer.verdict == "refused"
    able = (d for d in others if d.name != here.name and (d.maker == here.maker or refused))
    return tuple(_type(device) for device in sorted(able, key=lambda device: device.card.memory_bytes))


def _type(device: Device) -> Step:
    def move(question: Question) -> Question:
        return replace(question, device=device)

    size = f"{device.card.memory_bytes / _GIB:.1f} GiB each"
    return Step(f"--gpu {device.name} ({size})", (("--gpu", device.name),), move)


def higher_shares(answer: Answer) -> Ladder:
    """A larger share of the memory, one percent at a time."""
    percent = _percent(answer)
    return tuple(_share("raise", n) for n in range(percent + 1, round(HIGHEST_FRACTION * 100) + 1))


def lower_shares(answer: Answer) -> Ladder:
    """A smaller share of the memory, one percent at a time."""
    percent = _percent(answer)
    return tuple(_share("lower", n) for n in range(percent - 1, round(_LOWEST_FRACTION * 100) - 1, -1))


def _percent(answer: Answer) -> int:
    return round((answer.told.memory_fraction or 1.0) * 100)


def _share(verb: str, percent: int) -> Step:
    share = percent / 100
    return Step(f"{verb} --utilization to {share:.2f}", (("--utilization", share),), _set(memory_fraction=share))


def sequences(answer: Answer) -> Ladder:
    """Fewer requests in one step: half, a quarter, …"""
    least = max(_FEWEST_SEQUENCES, answer.question.requests_each)
    return tuple(
        Step(f"lower --max-num-seqs to {n}", (("--max-num-seqs", n),), _set(max_sequences=n))
        for n in _halves(answer.told.max_sequences or 0, least)
    )


def batches(answer: Answer) -> Ladder:
    """Fewer tokens in one step: half, a quarter, …"""
    return tuple(
        Step(f"lower --max-batched-tokens to {n}", (("--max-batched-tokens", n),), _set(max_batched_tokens=n))
        for n in _halves(answer.told.max_batched_tokens or 0, _FEWEST_BATCHED)
    )


def _halves(value: int, least: int) -> Iterator[int]:
    while (value := value // 2) >= least:
        yield value


def shorter(answer: Answer) -> Step | None:
    """The longest maximum length that fits, judged on the low end; None where it is no shorter, or leaves a request no
    room for its prompt."""
    plan, question = answer.budget, answer.question
    limit = length_limit(question.shape)
    most = plan.max_model_len if limit is None else min(plan.max_model_len, limit)
    best = longest(plan.worst.pool, plan.grantable_pages.low // question.requests_each, most)
    if best <= max(1, question.input_tokens or 1) or best == plan.max_model_len:
        return None
    return Step(f"lower --max-model-len to {best}", (("--max-model-len", best),), _set(max_model_len=best))


def _set(**changes: object) -> Callable[[Question], Question]:
    def move(question: Question) -> Question:
        return replace(question, settings=replace(question.settings, **changes))  # type: ignore[arg-type]

    return move


def _stored(name: str) -> Callable[[Question], Question]:
    def move(question: Question) -> Question:
        return replace(question, shape=stored_as(question.shape, name))

    return move
