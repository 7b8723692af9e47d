"""``fits``: the verdict against what happened; and ``trtllm_batch``: the largest whole batch."""

import re
from dataclasses import replace

from kvbudget.engines import Card, EngineBudget, Settings, budget
from kvbudget.engines.result import GIB, gib
from kvbudget.layers import Architecture
from scoring.cards import card_of
from scoring.kvchecks import planned, unplannable
from scoring.options import batches, fraction_of, settings_of
from scoring.points import Point
from scoring.score import Score, error, skip

_BATCH_TOLERANCE = 0.02
_HALF_GIB = 0.006
"""A figure rounded to a hundredth, and some."""


def check(point: Point, shape: Architecture | str) -> Score | None:
    """None where the point says nothing of whether it fits."""
    fits = point.flag("fits")
    if fits is None:
        return None
    kind = f"{point.text('engine')}: {'fits' if fits else 'does not fit'}"
    outside = not_a_matter_of_memory(point)
    if not fits and outside:
        return skip(point, "fits", outside, kind=kind)
    told = _from_tokens(point, shape)
    if told is not None and point.kv_gib is None and (told.predicted or 0) < (told.logged or 0):
        return told  # the engine's own pool is short of one request, whatever a plan says
    plan = plan_of(point, shape)
    if isinstance(plan, str):
        return told or skip(point, "fits", plan, kind=kind)
    expected = "fits" if fits else expected_failure(point, plan)
    ok = plan.verdict == expected if not fits else plan.verdict in ("fits", "at risk")
    return Score(
        id=point.ident,
        check="fits",
        kind=kind,
        predicted=float(plan.longest_len()),
        logged=float(point.whole("max_model_len") or plan.max_model_len),
        ok=ok,
        verdict=f"{plan.verdict}: {plan.reason}",
    )


def not_a_matter_of_memory(point: Point) -> str:
    """Why a failed start says nothing of the budget; empty where it does."""
    if re.search(r"not (a|of) (KV|memory)( memory)?( shortage| problem)?", point.log, re.IGNORECASE):
        return "by its own remark the failure was no shortage of KV memory"
    if re.search(r"less than desired GPU memory|free memory on (device|startup)", point.log, re.IGNORECASE):
        return "refused before loading: other memory was in use, which cannot be predicted from outside"
    return ""


def expected_failure(point: Point, plan: EngineBudget) -> str:
    """``at risk`` for a run that planned a pool large enough and then ran out of memory; else ``KV too small``."""
    died = re.search(r"out of memory|\bOOM\b", point.log, re.IGNORECASE)
    tokens = point.whole("kv_tokens")
    short = point.number("needed_kv_gib") is not None or (tokens is not None and tokens < plan.max_model_len)
    return "at risk" if died and not short else "KV too small"


def plan_of(point: Point, shape: Architecture | str) -> EngineBudget | str:
    """From the card up, weights predicted, where a run that fits states enough; else with the logged pool."""
    if isinstance(shape, str):
        return shape
    if point.flag("fits") and not unplannable(point):
        return planned(point, shape, given=False)
    size = point.kv_gib
    if size is None:
        return planned(point, shape, given=point.number("model_weights_gib") is not None)
    known = card_of(point, likely=True)
    card = known or Card(name=point.text("gpu"), memory_bytes=gib(size / 0.05))
    told = replace(settings_of(point), kv_cache_bytes=gib(size))
    if fraction_of(point) is None or known is None:
        told = replace(told, memory_fraction=0.5)  # nothing is known of what lies outside the pool
    try:
        plans = [_with_pool(point, shape, card, one) for one in batches(point, told, card)]
    except ValueError as wrong:
        return str(wrong)
    return next((plan for plan in plans if needs_as_logged(point, plan)), plans[0])


def _with_pool(point: Point, shape: Architecture, card: Card, told: Settings) -> EngineBudget:
    return budget(shape, card, point.engine, point.text("engine_version") if point.version else None, told)


def needs_as_logged(point: Point, plan: EngineBudget) -> bool:
    """Whether a request needs the memory that the log prints."""
    needed, pool = point.number("needed_kv_gib"), plan.worst.pool
    return needed is not None and abs(pool.pages_for(plan.max_model_len) * pool.page_bytes / GIB - needed) <= _HALF_GIB


def _from_tokens(point: Point, shape: Architecture | str) -> Score | None:
    """Where nothing but the engine's tokens is known, they decide: they are the pool."""
    tokens, length = point.whole("kv_tokens"), point.whole("max_model_len")
    if tokens is None and point.whole("gpu_blocks"):
        tokens = (point.whole("gpu_blocks") or 0) * (point.whole("block_size") or 16)
    if length is None and not isinstance(shape, str):
        length = shape.max_position_embeddings
    if tokens is None or length is None:
        return None
    fits = point.flag("fits")
    holds = tokens >= length
    verdict = "fits" if holds else "KV too small"
    return Score(
        id=point.ident,
        check="fits",
        kind=f"{point.text('engine')}: {'fits' if fits else 'does not fit'}",
        predicted=float(tokens),
        logged=float(length),
        ok=holds == fits,
        verdict=f"{verdict}: the logged pool has {tokens} tokens, one request has {length}",
    )


def check_batch(point: Point, shape: Architecture | str) -> Score | None:
    """The largest batch of requests of ``max_model_len`` tokens on TensorRT-LLM; None for other points."""
    logged, length = point.whole("max_concurrent_int"), point.whole("max_model_len")
    if point.engine != "tensorrt_llm" or logged is None:
        return None
    kind = f"{point.text('engine')} on {point.text('gpu') or '?'}"
    if length is None:
        return skip(point, "trtllm_batch", "the length of a request is not stated", kind=kind)
    plan = planned(point, shape, given=point.number("model_weights_gib") is not None)
    if isinstance(plan, str):
        return skip(point, "trtllm_batch", plan, kind=kind)
    pages, need = plan.pages, plan.worst.pool.pages_for(length)
    predicted = pages.expected // need
    return Score(
        id=point.ident,
        check="trtllm_batch",
        kind=kind,
        predicted=float(predicted),
        low=float(pages.low // need),
        high=float(pages.high // need),
        logged=float(logged),
        ok=abs(predicted - logged) <= max(1, logged * _BATCH_TOLERANCE),
        verdict=f"{plan.verdict}; relative error {error(predicted, logged) or 0.0:+.2%}",
    )
