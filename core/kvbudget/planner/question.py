"""One plan: a model on a device under an engine, and whether so many requests of so many tokens fit at once.

The engine's own verdict is for one request. More at once fit where their pages do, judged on the low end alike.

>>> from kvbudget.gpu import CATALOGUE
>>> from kvbudget.shapes.config import from_config
>>> from kvbudget.shapes.table import facts
>>> device = catalogue_device("h100-80gb", CATALOGUE["h100-80gb"])
>>> qwen = from_config(facts("Qwen/Qwen3-8B"))
>>> told = Settings(max_model_len=32768)
>>> answer = ask(Question(model="Qwen/Qwen3-8B", shape=qwen, device=device, engine="vllm", settings=told))
>>> answer.verdict, answer.gpus
('fits', 1)
>>> more = ask(replace(answer.question, requests=100))
>>> more.verdict, more.reason.partition(";")[0]
('does not fit', '100 requests of 32768 tokens need 204800 pages (450.00 GiB)')
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from kvbudget.engines import Card, EngineBudget, Settings, budget
from kvbudget.engines.bundled import weight_precision
from kvbudget.engines.verdict import judged
from kvbudget.errors import InputError
from kvbudget.gpu import CatalogueEntry
from kvbudget.layers import Architecture

Outcome = Literal["fits", "at risk", "does not fit", "refused"]
"""``at risk`` does not count as fitting: only the expected figures hold, not the low end."""

_GIB: Final = 1024**3
_AMD: Final = "amd.com"
_PLAIN: Final = ("BF16", "FP16", "FP32")
"""Where a card lacks one of them, engines take another of the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU type. ``kv_precisions`` and ``weight_precisions``: those it can do, the best first; no weights at all
    mean that it is not known. ``notes`` are for the user."""

    name: str
    card: Card
    kv_precisions: tuple[str, ...]
    weight_precisions: tuple[str, ...] = ()
    resource_name: str = "nvidia.com/gpu"
    notes: tuple[str, ...] = ()

    @property
    def maker(self) -> str:
        """As the resource that a pod asks for names it: ``nvidia.com``, ``amd.com``."""
        return self.resource_name.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``requests`` of ``settings.max_model_len`` tokens each are wanted at once. ``input_tokens``: of the longest
    prompt, where the rest of a request is output that could be capped."""

    model: str
    shape: Architecture
    device: Device
    engine: str
    settings: Settings
    version: str | None = None
    requests: int = 1
    input_tokens: int | None = None

    @property
    def requests_each(self) -> int:
        """Requests at once of one copy, where data parallelism deals them out."""
        return -(-self.requests // self.settings.data_parallel)


@dataclass(frozen=True, slots=True)
class Answer:
    """``notes``: what was taken for granted, each a sentence."""

    question: Question
    budget: EngineBudget
    verdict: Outcome
    reason: str
    notes: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        told = self.question.settings
        return told.tensor_parallel * told.pipeline_parallel * told.data_parallel

    @property
    def pages_each(self) -> int:
        """Pages that one request of the wanted length takes."""
        return self.budget.worst.pool.pages_for(self.budget.max_model_len)

    @property
    def told(self) -> Settings:
        """The settings with the engine's defaults filled in."""
        return self.budget.settings or self.question.settings

    def concurrency(self) -> tuple[float, float, float]:
        """Requests of the wanted length that the replica holds at once: low, expected, high, rounded down to 1/100."""
        pages, each, copies = self.budget.grantable_pages, self.pages_each, self.question.settings.data_parallel
        ends = (pages.low, pages.expected, pages.high)
        low, expected, high = (copies * (count * 100 // each) / 100 for count in ends)
        return low, expected, high


def catalogue_device(name: str, entry: CatalogueEntry) -> Device:
    """A type of the catalogue. Its name goes to the engine, whose defaults depend on it."""
    return Device(
        name=name,
        card=Card(name=name, memory_bytes=entry.memory_bytes, compute_capability=capability(entry.compute_capability)),
        kv_precisions=entry.kv_precisions,
        weight_precisions=entry.weight_precisions,
        resource_name=entry.resource_name,
        notes=(
            *(() if entry.measured else (f"memory of {name} is derived from its makers' figures, not measured",)),
            *((f"memory of {name} is shared with the host; what runs there takes of it",) * entry.shared_memory),
        ),
    )


def capability(text: str | None) -> tuple[int, int] | None:
    """``9.0`` as (9, 0).

    >>> capability("12.1"), capability(None)
    ((12, 1), None)
    """
    if text is None:
        return None
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def ask(question: Question) -> Answer:
    """The answer. Raises InputError where the engine cannot plan this model at all."""
    if question.settings.pipeline_parallel > question.shape.layers:
        reason = f"{question.settings.pipeline_parallel} stages for {question.shape.layers} layers"
        raise InputError("--pp", f"{reason}; use {question.shape.layers} or fewer")
    try:
        plan = budget(question.shape, question.device.card, question.engine, question.version, question.settings)
    except ValueError as error:
        raise InputError(question.model, str(error)) from None
    return answered(question, plan)


def at_length(answer: Answer, tokens: int) -> Answer:
    """The answer for another maximum length. Memory does not depend on it in any engine, so only the verdict is new."""
    question = replace(answer.question, settings=replace(answer.question.settings, max_model_len=tokens))
    plan = replace(answer.budget, max_model_len=tokens)
    return answered(question, plan if plan.verdict == "refused" else judged(plan, None))


def answered(question: Question, plan: EngineBudget) -> Answer:
    """The verdict on a budget that the engine has computed."""
    verdict, reason = _verdict(question, plan)
    return Answer(question, plan, verdict, reason, (*question.device.notes, *_notes(question, plan), *plan.assumptions))


def _verdict(question: Question, plan: EngineBudget) -> tuple[Outcome, str]:
    unasked = _not_possible(question, plan)
    if unasked:
        return "refused", unasked
    if plan.verdict in ("refused", "KV too small"):
        return "refused" if plan.verdict == "refused" else "does not fit", plan.reason
    pool, pages = plan.worst.pool, plan.grantable_pages
    need = question.requests_each * pool.pages_for(plan.max_model_len)
    dealt = "" if question.settings.data_parallel == 1 else f", {question.requests_each} on each copy,"
    needed = (
        f"{question.requests} requests of {plan.max_model_len} tokens{dealt} need {need} pages "
        f"({need * pool.page_bytes / _GIB:.2f} GiB)"
    )
    if need > pages.expected:
        reason = f"{needed}; there are {pages.expected}: the model loads, then requests wait or are evicted"
        return "does not fit", reason
    if plan.verdict == "at risk" or question.requests == 1:
        return "fits" if plan.verdict == "fits" else "at risk", plan.reason
    if need > pages.low:
        return "at risk", f"{needed}; {pages.expected} are expected, but there may be as few as {pages.low}"
    return "fits", f"{needed}; there are at least {pages.low}"


def length_limit(shape: Architecture) -> int | None:
    """Longest sequence that the model allows, in tokens; None where it is unknown or RoPE scaling stretches it."""
    return None if shape.rope_scaling else shape.max_position_embeddings


def _not_possible(question: Question, plan: EngineBudget) -> str | None:
    limit = length_limit(question.shape)
    if limit is not None and plan.max_model_len > limit:
        return f"{plan.max_model_len} tokens are above the model's own limit; set --max-model-len to {limit} or less"
    return _not_on_device(question, plan) or _not_in_engine(question)


def _not_on_device(question: Question, plan: EngineBudget) -> str | None:
    device = question.device
    if question.engine == "tensorrt_llm" and device.maker == _AMD:
        return f"TensorRT-LLM runs on NVIDIA's GPUs only, and {device.name} is none"
    wanted, used = question.settings.kv_format, plan.kv_precision
    if used not in device.kv_precisions and used != "FP32" and (wanted is not None or used not in _PLAIN):
        asks = "" if wanted else ", which the checkpoint asks for"
        return f"{device.name} cannot do KV in {used}{asks}; it offers {', '.join(device.kv_precisions)}"
    weights = question.shape.weights.name if question.engine != "bundled" else weight_precision(question.shape)
    # The other engines' rules for NVIDIA's cards are in engines/loading.py.
    told = question.engine == "bundled" or (device.maker == _AMD and weights == "FP8")
    if told and weights not in _PLAIN and device.weight_precisions and weights not in device.weight_precisions:
        return f"{device.name} cannot do weights in {weights}; it offers {', '.join(device.weight_precisions)}"
    return None


def _not_in_engine(question: Question) -> str | None:
    told = question.settings
    if told.data_parallel == 1 and not told.expert_parallel:
        return None
    if question.engine != "vllm":
        return "data and expert parallelism are planned for vLLM alone; leave out --dp and --expert-parallel"
    if told.expert_parallel and not question.shape.is_moe:
        return f"{question.model} has no experts to deal out; leave out --expert-parallel"
    return None


def _notes(question: Question, plan: EngineBudget) -> list[str]:
    notes = []
    bundled = question.engine == "bundled"
    if bundled and plan.kv_precision == "BF16" and "BF16" not in question.device.kv_precisions:
        notes.append(f"{question.device.name} has no BF16; FP16 takes the same memory")
    if question.settings.max_model_len is None:
        known = question.shape.max_position_embeddings is not None
        notes.append(
            f"--max-model-len is left out: {plan.max_model_len} tokens, " + ("the model's own" if known else "unknown")
        )
    return notes
