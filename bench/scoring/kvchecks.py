"""``kv_given_weights`` and ``kv_predicted_weights``: the whole budget against the log's KV memory, in GiB."""

import re

import peers
from kvbudget.engines import EngineBudget, budget
from kvbudget.engines.result import GIB
from kvbudget.layers import Architecture
from kvbudget.weights import count, stored_bytes
from scoring.cards import card_of
from scoring.options import fraction_of, logged_weights_gib, settings_of
from scoring.points import ASSUMED_VERSION, Point
from scoring.score import CheckName, Score, skip

H100_019 = "vllm 0.19 on H100"
OTHERS = "other versions, engines and cards"
WORST_GIVEN, WORST_PREDICTED = 0.03, 0.04
_ROUNDED = 0.02
"""GiB: each of a few figures is rounded to a hundredth."""
ASSUMED = {"vllm": "{}.{}".format(*ASSUMED_VERSION), "sglang": None, "tensorrt_llm": None}
"""Version of a point that states none, or only a date."""


def check(point: Point, shape: Architecture | str, *, given: bool) -> Score | None:
    """None where the log prints no KV memory."""
    logged = point.kv_gib
    if logged is None:
        return None
    name: CheckName = "kv_given_weights" if given else "kv_predicted_weights"
    kind = kind_of(point)
    if given and (free := _share_of_free(point, logged)) is not None:
        return free
    if given and logged_weights_gib(point) is None:
        return skip(point, name, "the log prints no weights", kind=kind)
    plan = planned(point, shape, given=given)
    if isinstance(plan, str):
        return skip(point, name, plan, kind=kind)
    kv = plan.stages[0].kv if printed_by_first_stage(point) else plan.worst.kv
    predicted, low, high = kv.expected / GIB, kv.low / GIB, kv.high / GIB
    limit = WORST_GIVEN if given else WORST_PREDICTED
    half = 0.005 + 0.005  # both figures are rounded to a hundredth
    inside = low - half <= logged <= high + half
    close = abs(predicted - logged) <= limit * logged
    return Score(
        id=point.ident,
        check=name,
        kind=kind,
        predicted=predicted,
        low=low - half,
        high=high + half,
        logged=logged,
        ok=close if kind == H100_019 else inside,
        verdict=plan.verdict,
        peers=_peers(point, shape, given=given) if not isinstance(shape, str) else (),
    )


def _share_of_free(point: Point, logged: float) -> Score | None:
    """TensorRT-LLM where the log prints the peak of the dry run: its share of what is left, whatever the model."""
    total, peak, share = point.number("gpu_total_gib"), point.number("peak_torch_gib"), fraction_of(point)
    if point.engine != "tensorrt_llm" or total is None or peak is None or share is None:
        return None
    predicted, half = (total - peak) * share, 0.015  # three figures, each rounded to a hundredth
    return Score(
        id=point.ident,
        check="kv_given_weights",
        kind=OTHERS,
        predicted=predicted,
        low=predicted - half,
        high=predicted + half,
        logged=logged,
        ok=abs(predicted - logged) <= half,
        verdict="the peak of the dry run as logged",
    )


def kind_of(point: Point) -> str:
    """The two rows of the table: the complete runs of one version and card, and everything else."""
    same = point.engine == "vllm" and point.version == (0, 19) and "h100" in point.text("gpu").lower()
    return H100_019 if same else OTHERS


def printed_by_first_stage(point: Point) -> bool:
    """With pipeline stages the log's GiB line is the first stage's; the tokens are those of the worst."""
    return (point.whole("pp") or 1) > 1 and bool(point.ranks)


def planned(point: Point, shape: Architecture | str, *, given: bool) -> EngineBudget | str:
    """The plan from the card up, or what of it the point does not state."""
    if isinstance(shape, str):
        return shape
    wrong = unplannable(point)
    if wrong:
        return wrong
    card = card_of(point)
    if card is None:
        return "the card's memory is not stated, and its name does not tell"
    version = point.text("engine_version") if point.version else ASSUMED[point.engine]
    try:
        return budget(shape, card, point.engine, version, settings_of(point, weights=given))
    except ValueError as error:
        return str(error)


def unplannable(point: Point) -> str:
    """Why no budget can be planned from what the point states; empty where one can."""
    if not point.engine:
        return f"engine {point.text('engine') or '(none)'} is not covered"
    named = point.text("engine").lower()
    if point.engine == "vllm" and named != "vllm":
        return f"{point.text('engine')} runs on other devices, with deductions of its own"
    if point.text("engine_generation") == "V0" or (point.engine == "vllm" and (point.version or (0, 19)) < (0, 10)):
        return "vLLM before 0.10 (V0): outside the versions that are covered"
    if fraction_of(point) is None:
        return "the share of memory that the engine was told is not stated"
    if re.search(r"draft(er)? model|DFlash", f"{point.flags} {point.text('model')}"):
        return "a separate draft model shares the pool; its geometry is not stated"
    return contradiction(point)


def contradiction(point: Point) -> str:
    """Why the point's own figures cannot all be of one run; empty where they can."""
    card, share = card_of(point), fraction_of(point)
    weights, kv = logged_weights_gib(point), point.kv_gib
    if point.engine == "tensorrt_llm" or card is None or share is None or weights is None or kv is None:
        return ""
    usable = card.memory_bytes * share / GIB
    if weights + kv <= usable + _ROUNDED:
        return ""
    return (
        f"weights {weights:.2f} and KV {kv:.2f} GiB are more than {share} of {card.memory_bytes / GIB:.2f} GiB: "
        "the card or the share is not what is stated"
    )


def _peers(point: Point, shape: Architecture, *, given: bool) -> tuple[tuple[str, float], ...]:
    card, share = card_of(point), fraction_of(point)
    size = logged_weights_gib(point)
    if card is None or share is None:
        return ()
    ranks, stages = point.tensor_parallel, point.whole("pp") or 1
    whole = shape.weight_bytes or stored_bytes(shape, count(shape))
    guessed = peers.predicted_weights_gib(whole, ranks * stages)
    found = []
    for number, name in enumerate(peers.NAMES):
        weights = size if given and size is not None else guessed[name]
        everything = peers.kv_gib(
            shape,
            total_gib=card.memory_bytes / GIB,
            share=share,
            weights_gib=weights,
            tensor_parallel=ranks,
            pipeline_parallel=stages,
        )
        found.append(everything[number])
    return tuple(found)
