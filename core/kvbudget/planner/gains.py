"""What would fit, and what each remedy gains: every one is worked out by the same budget as the plan itself.

A remedy that does not suffice alone is told too, with what it gains: two of them may do together.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, get_args

from kvbudget.engines import KVFormat, Settings
from kvbudget.engines.pages import resolved_format
from kvbudget.engines.result import longest
from kvbudget.planner.question import Answer, Device, Question, ask, at_length, length_limit

Change = tuple[str, str | int | float]
"""An option of the command line, and its value."""

_ENGINE_KV: Final[dict[str, tuple[str, ...]]] = {
    "vllm": ("FP8E4M3",),
    "sglang": ("FP8E4M3",),
    "tensorrt_llm": ("FP8E4M3", "NVFP4"),
    "bundled": ("FP8E4M3", "INT8", "INT4", "NVFP4"),
}
"""Formats smaller than 16 bits that the engines have on most cards, the best first."""
HIGHEST_FRACTION: Final = 0.95
"""Above it, engines were seen to run out of memory although planned."""
_LOWEST_FRACTION: Final = 0.5
_FEWEST_SEQUENCES: Final = 8
_FEWEST_BATCHED: Final = 1024
_MOST_RANKS: Final = 16
_STAGES: Final = (2, 4, 8)
_GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Remedy:
    """``text`` says what to do, ``gain`` what comes of it. ``fits``: it suffices alone. ``answer`` is the plan with
    it."""

    text: str
    gain: str
    changes: tuple[Change, ...]
    fits: bool
    answer: Answer


@dataclass(frozen=True, slots=True)
class Cause:
    """Why it does not fit, in a word for programs and a sentence for people."""

    name: str
    text: str


def cause(answer: Answer) -> Cause | None:
    """What stands in the way first; None where it fits."""
    plan, pages = answer.budget, answer.budget.grantable_pages
    if answer.verdict == "fits":
        return None
    if answer.verdict == "refused":
        return Cause("Refused", "the engine would not start")
    if plan.worst.kv.expected <= 0:
        return Cause("WeightsTooLarge", "weights and workspace alone are larger than the engine's share of the memory")
    if answer.pages_each > pages.expected:
        return Cause("RequestTooLong", "not even one request of this length finds room for its KV")
    if any(sum(t.bytes.expected for t in s.outside) > s.memory_bytes - s.usable_bytes for s in plan.stages):
        return Cause("NoRoomOutside", "it loads, then runs out of memory beside the engine's share")
    if answer.question.requests * answer.pages_each > pages.expected:
        return Cause("TooManyAtOnce", "it loads, but so many requests of this length do not fit at once")
    return Cause("LowEnd", "it fits by the expected figures, but not by the low end of what was seen")


def remedies(answer: Answer, devices: Iterable[Device]) -> tuple[Remedy, ...]:
    """Every remedy that gains something, those that suffice first. ``devices``: other types to choose from. Of a plan
    that fits: what holds more."""
    found = [r for r in _remedies(answer, tuple(devices)) if r.fits or _holds_more(r.answer, answer)]
    return tuple(sorted(found, key=lambda remedy: not remedy.fits))


def _holds_more(new: Answer, old: Answer) -> bool:
    return new.verdict != "refused" and new.concurrency()[0] > old.concurrency()[0]


def _remedies(answer: Answer, devices: tuple[Device, ...]) -> Iterator[Remedy]:
    fits = answer.verdict == "fits"
    if not fits:
        yield from _shorter(answer)
    yield from _kv_formats(answer)
    if not fits:
        yield from _fraction(answer)
        yield from _batches(answer)
    yield from _more_gpus(answer)
    if not fits:
        yield from _other_class(answer, devices)


def _shorter(answer: Answer) -> Iterator[Remedy]:
    """A lower maximum length, judged on the low end; with a known prompt, the output that is left."""
    plan, question = answer.budget, answer.question
    limit = length_limit(question.shape)
    most = plan.max_model_len if limit is None else min(plan.max_model_len, limit)
    best = longest(plan.worst.pool, plan.grantable_pages.low // question.requests, most)
    if best < 2 or best == plan.max_model_len:
        return
    shorter = at_length(answer, best)
    if shorter.verdict != "fits":
        return
    lost = plan.max_model_len - best
    yield Remedy(
        f"lower --max-model-len to {best}",
        f"{lost} tokens less ({100 * lost // plan.max_model_len}%); {_at_once(question.requests)}",
        (("--max-model-len", best),),
        True,
        shorter,
    )
    if question.input_tokens is not None and best > question.input_tokens:
        output = best - question.input_tokens
        yield Remedy(
            f"cap output at {output} tokens",
            f"prompts of {question.input_tokens} and that output are {best} tokens; {_at_once(question.requests)}",
            (("max_tokens", output),),
            True,
            shorter,
        )


def _at_once(requests: int) -> str:
    return "one request of that length fits" if requests == 1 else f"{requests} requests of that length fit at once"


def _kv_formats(answer: Answer) -> Iterator[Remedy]:
    question = answer.question
    now = resolved_format(question.shape, question.settings.kv_format)
    if now not in ("BF16", "FP16", "FP32"):
        return
    for name in _ENGINE_KV[question.engine]:
        wanted: KVFormat | None = next((f for f in get_args(KVFormat) if f == name), None)
        if wanted is None or name not in question.device.kv_precisions:
            continue
        better = _with(question, kv_format=wanted)
        yield _remedy(f"KV in {name}", answer, better, (("--kv-precision", name),))
        if better.verdict == "fits":
            return


def _fraction(answer: Answer) -> Iterator[Remedy]:
    """Another share of the memory: the lowest above it that fits, else the highest below it."""
    used = _told(answer).memory_fraction
    if used is None:
        return
    percent = round(used * 100)
    above = range(percent + 1, round(HIGHEST_FRACTION * 100) + 1)
    below = range(percent - 1, round(_LOWEST_FRACTION * 100) - 1, -1)
    for share in (*above, *below):
        better = _with(answer.question, memory_fraction=share / 100)
        if better.verdict == "fits":
            verb = "raise" if share > percent else "lower"
            yield _remedy(
                f"{verb} --utilization to {share / 100:.2f}", answer, better, (("--utilization", share / 100),)
            )
            return


def _batches(answer: Answer) -> Iterator[Remedy]:
    """Smaller batches: the first half, quarter, … that fits."""
    told = _told(answer)
    sequences, tokens = (told.max_sequences or 0) // 2, (told.max_batched_tokens or 0) // 2
    while sequences >= max(_FEWEST_SEQUENCES, answer.question.requests):
        better = _with(answer.question, max_sequences=sequences)
        if better.verdict == "fits":
            change = (("--max-num-seqs", sequences),)
            yield _remedy(f"lower --max-num-seqs to {sequences}", answer, better, change)
            break
        sequences //= 2
    while tokens >= _FEWEST_BATCHED:
        better = _with(answer.question, max_batched_tokens=tokens)
        if better.verdict == "fits":
            change = (("--max-batched-tokens", tokens),)
            yield _remedy(f"lower --max-batched-tokens to {tokens}", answer, better, change)
            break
        tokens //= 2


def _more_gpus(answer: Answer) -> Iterator[Remedy]:
    """The fewest GPUs of the same type that suffice: by tensor parallelism, else with stages too. Of a plan that is
    refused for how it is split, also fewer."""
    question = answer.question
    now = question.settings.tensor_parallel
    ranks = range(1 if answer.verdict == "refused" else now + 1, _MOST_RANKS + 1)
    possible = [a for n in ranks if n != now and (a := _with(question, tensor_parallel=n)).verdict != "refused"]
    best = next((a for a in possible if a.verdict == "fits"), None)
    if best is None and possible:
        eight = next((a for a in possible if a.question.settings.tensor_parallel == 8), possible[-1])
        now_deep, layers = question.settings.pipeline_parallel, question.shape.layers
        stages = (n for n in _STAGES if now_deep < n <= layers)
        deeper = (_with(eight.question, pipeline_parallel=n) for n in stages)
        best = next((a for a in deeper if a.verdict == "fits"), None)
    if best is None:
        return
    told = best.question.settings
    changes: tuple[Change, ...] = (("--tp", told.tensor_parallel),)
    text = f"--tp {told.tensor_parallel}"
    if told.pipeline_parallel != question.settings.pipeline_parallel:
        changes, text = (*changes, ("--pp", told.pipeline_parallel)), f"{text} --pp {told.pipeline_parallel}"
    yield _remedy(f"{text} ({best.gpus} GPUs instead of {answer.gpus})", answer, best, changes)


def _other_class(answer: Answer, devices: tuple[Device, ...]) -> Iterator[Remedy]:
    """The type with the least memory on which it fits, of the same maker unless the engine would not start there."""
    here, refused = answer.question.device, answer.verdict == "refused"
    others = (d for d in devices if d.name != here.name and (d.maker == here.maker or refused))
    for device in sorted(others, key=lambda d: d.card.memory_bytes):
        better = ask(replace(answer.question, device=device))
        if better.verdict == "fits":
            size = f"{device.card.memory_bytes / _GIB:.1f} GiB each"
            yield _remedy(f"--gpu {device.name} ({size})", answer, better, (("--gpu", device.name),))
            return


def _told(answer: Answer) -> Settings:
    """The settings with the engine's defaults filled in."""
    told = answer.budget.settings
    return told if isinstance(told, Settings) else answer.question.settings


def _with(question: Question, **changes: object) -> Answer:
    return ask(replace(question, settings=replace(question.settings, **changes)))  # type: ignore[arg-type]


def _remedy(text: str, old: Answer, new: Answer, changes: tuple[Change, ...]) -> Remedy:
    before, after = old.concurrency()[0], new.concurrency()[0]
    gain = f"{before:g} → {after:g} requests of {new.budget.max_model_len} tokens at once, at least"
    return Remedy(text, gain, changes, new.verdict == "fits", new)
