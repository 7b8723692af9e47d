"""What would fit, and what each remedy gains: every one is worked out by the same budget as the plan itself.

A remedy is the smallest step of its kind that suffices. Where no single one does, the smallest combinations are told:
of two changes, else of three, each at the smallest step at which all together suffice. A single step that gains
something but does not suffice is told too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvbudget.planner import steps
from kvbudget.planner.question import Answer, Device, Question, ask
from kvbudget.planner.steps import Change, Ladder, Step

_MOST_COMBINATIONS: Final = 4


@dataclass(frozen=True, slots=True)
class Remedy:
    """``text`` says what to do, ``gain`` what comes of it. ``fits``: it suffices. ``answer`` is the plan with it.
    ``parts`` are the changes that it is made of, one or several, each with what it adds to those before it."""

    text: str
    gain: str
    changes: tuple[Change, ...]
    fits: bool
    answer: Answer
    parts: tuple[tuple[str, str], ...]


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
    others = tuple(devices)
    found = [r for r in _singles(answer, others) if r.fits or _holds_more(r.answer, answer)]
    if answer.verdict != "fits":
        found += _longer(answer, found) if any(r.fits for r in found) else _combinations(answer, others)
    return tuple(sorted(found, key=lambda remedy: not remedy.fits))


def _holds_more(new: Answer, old: Answer) -> bool:
    return new.verdict != "refused" and new.concurrency()[0] > old.concurrency()[0]


def _singles(answer: Answer, devices: tuple[Device, ...]) -> Iterator[Remedy]:
    if answer.verdict == "fits":
        for ladder in (steps.kv_formats(answer), steps.gpus(answer)):
            yield from _first(answer, ladder, also_short=False)
        return
    yield from _shorter(answer)
    yield from _first(answer, steps.kv_formats(answer), also_short=True)
    yield from _first(answer, steps.weight_formats(answer), also_short=True)
    yield from _first(answer, steps.higher_shares(answer)) or _first(answer, steps.lower_shares(answer))
    for ladder in (
        steps.sequences(answer),
        steps.batches(answer),
        steps.gpus(answer),
        steps.devices(answer, devices),
    ):
        yield from _first(answer, ladder)


def _first(answer: Answer, ladder: Ladder, *, also_short: bool = False) -> list[Remedy]:
    """The first step that suffices; with ``also_short`` those before it too, which do not."""
    tried: list[Remedy] = []
    for step in ladder:
        made = _made(answer, (step,))
        if made.fits:
            return [*tried, made] if also_short else [made]
        tried.append(made)
    return tried if also_short else []


def _shorter(answer: Answer) -> Iterator[Remedy]:
    """A lower maximum length; with a known prompt, the output that is left."""
    step = steps.shorter(answer)
    if step is None:
        return
    made = _made(answer, (step,))
    if not made.fits:
        return
    yield made
    length, prompt = made.answer.budget.max_model_len, answer.question.input_tokens
    if prompt is not None:
        text = f"cap output at {length - prompt} tokens"
        gain = f"prompts of {prompt} and that output are {length} tokens; {_at_once(answer.question.requests)}"
        yield Remedy(text, gain, (("max_tokens", length - prompt),), True, made.answer, ((text, gain),))


def _longer(answer: Answer, singles: Sequence[Remedy]) -> list[Remedy]:
    """Smaller formats that do not suffice alone, with a length above the one that fits without them."""
    alone = next((r.answer.budget.max_model_len for r in singles if r.changes[0][0] == "--max-model-len"), None)
    found = []
    for ladder in (steps.kv_formats(answer), steps.weight_formats(answer)):
        for step in ladder:
            moved = ask(step.move(answer.question))
            length = steps.shorter(moved)
            if alone is None or length is None or moved.verdict == "fits":
                continue
            made = _made(answer, (step, length))
            if made.fits and made.answer.budget.max_model_len > alone:
                found.append(made)
                break
    return found


def _combinations(answer: Answer, devices: tuple[Device, ...]) -> list[Remedy]:
    """The smallest that suffice: of two changes, else of three."""
    kv, weights = steps.kv_formats(answer), steps.weight_formats(answer)
    gpus, types, fewer = steps.gpus(answer), steps.devices(answer, devices), steps.sequences(answer)
    pairs = ((kv, weights), (kv, gpus), (weights, gpus), (kv, types), (weights, types), (kv, fewer), (weights, fewer))
    shortened: tuple[tuple[Ladder, ...], ...] = ((kv,), (weights,), (gpus,))
    triples = ((kv, weights, gpus), (kv, weights, types))
    for ladders, before_length in ((pairs, shortened), (triples, ((kv, weights),))):
        chosen = [found for one in ladders if (found := _smallest(answer.question, one))]
        chosen += [found for one in before_length if (found := _smallest(answer.question, one, shorten=True))]
        if chosen:
            return [_made(answer, one) for one in chosen[:_MOST_COMBINATIONS]]
    return []


def _smallest(question: Question, ladders: Sequence[Ladder], *, shorten: bool = False) -> tuple[Step, ...] | None:
    """One step of each ladder, and at the end a lower length if told to: the first of the first ladder with which any
    of the others suffice, then the first of the second, …"""
    if not ladders:
        answer = ask(question)
        if not shorten:
            return () if answer.verdict == "fits" else None
        length = steps.shorter(answer)
        fits = length is not None and ask(length.move(question)).verdict == "fits"
        return (length,) if length is not None and fits else None
    for step in ladders[0]:
        rest = _smallest(step.move(question), ladders[1:], shorten=shorten)
        if rest is not None:
            return (step, *rest)
    return None


def _made(answer: Answer, taken: Sequence[Step]) -> Remedy:
    now, parts = answer, []
    for step in taken:
        new = ask(step.move(now.question))
        parts.append((step.text, _gain(now, new)))
        now = new
    gains = [f"{text}: {gain}" for text, gain in parts] if len(parts) > 1 else [parts[0][1]]
    changes = tuple(change for step in taken for change in step.changes)
    text = " and ".join(text for text, _ in parts)
    return Remedy(text, "; ".join(gains), changes, now.verdict == "fits", now, tuple(parts))


def _gain(old: Answer, new: Answer) -> str:
    lost = old.budget.max_model_len - new.budget.max_model_len
    if lost:
        share = 100 * lost // old.budget.max_model_len
        return f"{lost} tokens less ({share}%); {_at_once(new.question.requests)}"
    before, after = old.concurrency()[0], new.concurrency()[0]
    return f"{before:g} → {after:g} requests of {new.budget.max_model_len} tokens at once, at least"


def _at_once(requests: int) -> str:
    return "one request of that length fits" if requests == 1 else f"{requests} requests of that length fit at once"
