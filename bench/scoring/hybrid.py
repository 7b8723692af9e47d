"""``hybrid_blocks``: blocks of one request and requests at once of models with several cache groups (vLLM).

The KV memory is the log's, so that nothing but the blocks is compared. A log rounds it to a hundredth of a GiB, hence a
range of blocks; where the log prints the blocks too, those must lie in it, and the concurrency follows from them."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from kvbudget.engines import Pool, Settings
from kvbudget.engines.compressed import is_compressed
from kvbudget.engines.pages import resolved_format
from kvbudget.engines.result import GIB, gib
from kvbudget.engines.vllm import stage_pool, with_defaults
from kvbudget.engines.vllm_versions import VllmVersion, constants
from kvbudget.layers import Architecture, StateCache
from scoring.cards import card_of
from scoring.fitchecks import needs_as_logged, plan_of
from scoring.options import batches, draft_tokens_stated, settings_of, unnamed_card
from scoring.points import ASSUMED_VERSION, Point
from scoring.score import Score, skip

_HALF_GIB = gib(0.005)
_HALF_CONCURRENCY = 0.0051


def check(point: Point, shape: Architecture | str) -> Score | None:
    """None for models of one cache group and for engines without groups."""
    marked = isinstance(point.check.get("hybrid_groups"), dict)
    if point.engine != "vllm" or (isinstance(shape, str) and not marked):
        return None
    if isinstance(shape, str):
        return skip(point, "hybrid_blocks", shape)
    if not shape.is_hybrid and not is_compressed(shape):
        return None
    kind = shape.kind
    if is_compressed(shape):
        return _compressed(point, shape)
    if point.text("engine").lower() != "vllm":
        return skip(point, "hybrid_blocks", f"{point.text('engine')} has groups of its own", kind=kind)
    length, concurrency = point.whole("max_model_len"), point.number("max_concurrency")
    if length is None or concurrency is None:
        return skip(point, "hybrid_blocks", "the log prints no concurrency for a length", kind=kind)
    if point.kv_gib is None and point.whole("gpu_blocks") is None:
        return skip(point, "hybrid_blocks", "the log prints neither KV memory nor blocks", kind=kind)
    if re.search(r"draft(er)? model|DFlash", f"{point.flags} {point.text('model')}"):
        return skip(
            point, "hybrid_blocks", "a separate draft model shares the pool; its geometry is not stated", kind=kind
        )
    rules = constants(point.version or ASSUMED_VERSION)
    first: Score | None = None
    for variant, remark in _variants(point, rules, shape):
        pool = stage_pool(shape, rules, variant, resolved_format(shape, variant.kv_format), (0, shape.layers))
        score = _compared(point, kind, pool, length, concurrency)
        if score.ok:
            return replace(score, verdict=f"{remark}{score.verdict}")
        first = first or score
    return first


def _compressed(point: Point, shape: Architecture) -> Score:
    """The memory that one request needs, and the longest request: as the error of a start that fails prints them."""
    kind, needed = shape.kind, point.number("needed_kv_gib")
    if point.version is None:
        reason = "vLLM packs compressed caches in three ways, by version, and none is stated"
        return skip(point, "hybrid_blocks", reason, kind=kind)
    plan = plan_of(point, shape)
    if needed is None or isinstance(plan, str):
        reason = plan if isinstance(plan, str) else "the log does not print what a request needs"
        return skip(point, "hybrid_blocks", reason, kind=kind)
    pool, longest = plan.worst.pool, point.whole("estimated_max_model_len")
    predicted = pool.pages_for(plan.max_model_len) * pool.page_bytes / GIB
    fewest, most = _blocks(point, pool)
    holds = longest is None or (pool.pages_for(longest) <= most and pool.pages_for(longest + 1) > fewest)
    need = pool.pages_for(plan.max_model_len)
    return Score(
        id=point.ident,
        check="hybrid_blocks",
        kind=kind,
        predicted=predicted,
        low=predicted,
        high=predicted,
        logged=needed,
        ok=needs_as_logged(point, plan) and holds,
        verdict=f"{need} blocks of {pool.page_bytes} B for a request"
        + ("" if longest is None else f"; {longest} tokens are the longest that {fewest} to {most} blocks hold"),
    )


def _variants(point: Point, rules: VllmVersion, shape: Architecture) -> Iterator[tuple[Settings, str]]:
    """The settings, and what a log may leave unsaid: the batch, and of models with states prefix caching, and how many
    tokens are drafted where it only says that some are."""
    card = card_of(point) or unnamed_card(point)
    stated, *others = (with_defaults(one, card, rules) for one in batches(point, settings_of(point), card))
    yield stated, ""
    if not any(isinstance(group.cache, StateCache) for group in shape.groups):
        for told in others:
            yield told, f"the batch is not stated and was {told.max_batched_tokens} tokens: "
        return
    caching = (stated.prefix_caching,) if "prefix" in point.told.lower() else (stated.prefix_caching, True)
    drafts = (1, 2, 3, 4) if stated.draft_tokens and not draft_tokens_stated(point) else (stated.draft_tokens,)
    for cached, drafted in itertools.product(dict.fromkeys(caching), drafts):
        remark = "prefix caching is not stated and was on: " if cached != stated.prefix_caching else ""
        remark += f"drafted tokens are not stated and were {drafted}: " if len(drafts) > 1 else ""
        yield replace(stated, prefix_caching=cached, draft_tokens=drafted), remark


def _compared(point: Point, kind: str, pool: Pool, length: int, concurrency: float) -> Score:
    need, blocks = pool.pages_for(length), point.whole("gpu_blocks")
    fewest, most = _blocks(point, pool)
    wrong = []
    if blocks is not None and not fewest <= blocks <= most:
        wrong.append(f"{blocks} blocks were logged, {fewest} to {most} follow from the KV memory")
    groups = point.check.get("hybrid_groups")
    stated = groups.get("blocks_per_request") if isinstance(groups, dict) else None
    if isinstance(stated, int) and stated != need:
        wrong.append(f"{need} blocks per request, {stated} are stated")
    low, high = (fewest / need, most / need) if blocks is None else (blocks / need, blocks / need)
    if not low - _HALF_CONCURRENCY <= concurrency <= high + _HALF_CONCURRENCY:
        wrong.append(f"{low:.2f} to {high:.2f} requests at once, {concurrency} were logged")
    # The log's KV memory leaves a block or two open; of those it allows, the one that the log's concurrency means.
    likely = blocks or min(max(round(concurrency * need), fewest), most)
    sizes = "+".join(str(group.layers) for group in pool.groups)
    return Score(
        id=point.ident,
        check="hybrid_blocks",
        kind=kind,
        predicted=likely / need,
        low=low,
        high=high,
        logged=concurrency,
        ok=not wrong,
        verdict="; ".join(wrong)
        or f"groups of {sizes} layers, blocks of {pool.groups[-1].block_tokens} tokens, {need} blocks per request",
        peers=_flat(pool, point, length),
    )


def _blocks(point: Point, pool: Pool) -> tuple[int, int]:
    """Blocks in the logged KV memory; two more or fewer where its rounding allows."""
    size = point.kv_gib
    if size is None:
        blocks = point.whole("gpu_blocks") or 0
        return blocks, blocks
    kv = size * GIB
    return int((kv - _HALF_GIB) // pool.page_bytes), int((kv + _HALF_GIB) // pool.page_bytes)


def _flat(pool: Pool, point: Point, length: int) -> tuple[tuple[str, float], ...]:
    """Requests at once if every layer kept every token."""
    if point.kv_gib is None:
        return ()
    per_token = sum(group.layers / group.block_tokens for group in pool.groups) * pool.page_bytes
    per_token /= max(group.layers for group in pool.groups)
    return (("all layers", point.kv_gib * GIB / (per_token * length)),)
