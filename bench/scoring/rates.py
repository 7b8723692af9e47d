"""``bytes_per_token``: bytes of one token on one GPU, against the log's KV memory ÷ tokens."""

import re

import peers
from kvbudget.engines.pages import latent_bytes, layer_token_bytes, resolved_format
from kvbudget.engines.result import GIB, bytes_per_token
from kvbudget.engines.sglang import cell_bytes
from kvbudget.engines.sglang import with_defaults as sglang_defaults
from kvbudget.engines.stages import kept_caches, stage_ranges
from kvbudget.engines.vllm import stage_pool
from kvbudget.engines.vllm import with_defaults as vllm_defaults
from kvbudget.engines.vllm_versions import constants
from kvbudget.layers import Architecture, AttentionCache, LatentCache, SharedCache, StateCache
from scoring.options import settings_of, unnamed_card
from scoring.points import ASSUMED_VERSION, Point
from scoring.score import Score, skip

TOLERANCE = 0.003
HALF_LAST_DIGIT_GIB = 0.005
MINIMUM = "the log prints one rank's GiB beside the minimum rank's tokens"


def check(point: Point, shape: Architecture | str) -> Score | None:
    """None where the point says nothing of a rate."""
    logged, slack, remark = logged_rate(point)
    if logged is None:
        return None
    kind = f"{point.text('engine')}: {'geometry unknown' if isinstance(shape, str) else shape.kind}"
    if point.flag("geometry_inferred_from_log"):
        return skip(point, "bytes_per_token", "circular: the model was identified by its own rate", kind=kind)
    if isinstance(shape, str):
        return skip(point, "bytes_per_token", shape, kind=kind)
    if point.flag("adds_up") is False and "misreport" in point.log.lower():
        return skip(point, "bytes_per_token", "the point itself says that it is misreported", kind=kind)
    predicted = predicted_rate(point, shape)
    if isinstance(predicted, str):
        return skip(point, "bytes_per_token", predicted, kind=kind)
    if point.engine == "sglang" and re.search(r"\bSWA\b", point.log, re.IGNORECASE):
        predicted, remark = _pool_of_log(point, shape, predicted, logged)
    within = abs(predicted - logged) <= logged * (TOLERANCE + slack)
    if not within and point.is_minimum_of_ranks:
        remark = MINIMUM
    return Score(
        id=point.ident,
        check="bytes_per_token",
        kind=kind,
        predicted=predicted,
        low=predicted,
        high=predicted,
        logged=logged,
        ok=None if remark == MINIMUM else within,
        verdict=remark,
        skipped=MINIMUM if remark == MINIMUM else "",
        peers=peers.rates(shape, point),
    )


def logged_rate(point: Point) -> tuple[float | None, float, str]:
    """Bytes per token of the log, how far its rounding reaches (as a share), and a remark. Without KV memory and
    tokens, the rate that the point itself expects."""
    tokens, size = point.whole("kv_tokens"), point.number("available_kv_gib")
    minimum = _least_rank_gib(point)
    shares = point.whole("dcp") or 1
    if tokens and minimum:
        return minimum * GIB / tokens, HALF_LAST_DIGIT_GIB / minimum, "the least rank's memory, from the ranks' lines"
    if tokens and size:
        rows = tokens / shares + (point.whole("block_size") or 0 if point.engine == "sglang" else 0)
        block = max(point.whole("block_size") or 0, 256 if "page" in point.log else 16)
        return size * GIB / rows, HALF_LAST_DIGIT_GIB / size + block / rows, ""
    expected = point.check.get("bytes_per_token_per_gpu_expected")
    if isinstance(expected, int | float) and not isinstance(expected, bool) and expected > 0:
        return float(expected), 0.0, "the log prints no KV memory beside the tokens; compared with the file's geometry"
    return None, 0.0, ""


def _pool_of_log(point: Point, shape: Architecture, whole: float, logged: float) -> tuple[float, str]:
    """SGLang keeps layers with a window in a pool of their own and prints each pool beside its own tokens, or both
    together. Which one a point has copied is seen from its rate: they are a factor apart."""
    told = settings_of(point)
    kv_format, ranks = resolved_format(shape, told.kv_format), told.tensor_parallel
    caches = [c for c in kept_caches(shape) if isinstance(c, AttentionCache)]
    windowed = sum(layer_token_bytes(c, kv_format, tensor_parallel=ranks) for c in caches if c.window is not None)
    full = sum(layer_token_bytes(c, kv_format, tensor_parallel=ranks) for c in caches if c.window is None)
    pools = {"": whole, "the pool of the windowed layers": float(windowed), "the pool of the full layers": float(full)}
    name = min(pools, key=lambda pool: abs(pools[pool] - logged))
    return pools[name], name


def _least_rank_gib(point: Point) -> float | None:
    """KV memory of the rank with the least, where every rank's other memory is logged."""
    others, total = point.rank_numbers("non_kv_gib"), point.number("gpu_total_gib")
    share = point.number("gpu_memory_utilization")
    if not others or total is None or share is None or (point.whole("pp") or 1) == 1:
        return None
    return total * share - max(others)


def predicted_rate(point: Point, shape: Architecture) -> float | str:
    """Bytes of one token in all layers that keep it, on the rank that decides; or why there is no one rate."""
    told = settings_of(point)
    kv_format = resolved_format(shape, told.kv_format)
    pool = _without_indexer(point, shape, kv_format)
    if pool is not None:
        return pool
    if point.engine == "sglang":
        told = sglang_defaults(shape, unnamed_card(point), told)
        return cell_bytes(shape, told, kv_format, (0, shape.layers))
    caches = [c for c in kept_caches(shape, draft=told.draft_tokens > 0) if not isinstance(c, SharedCache)]
    if point.engine == "tensorrt_llm":
        return float(sum(layer_token_bytes(c, kv_format, tensor_parallel=told.tensor_parallel) for c in caches))
    if any(isinstance(c, StateCache) for c in caches) or shape.is_hybrid or "compressed" in shape.kind:
        return f"{shape.kind}: no flat rate per token; see hybrid_blocks"
    rules = constants(point.version or ASSUMED_VERSION)
    filled = vllm_defaults(told, unnamed_card(point), rules)
    spans = stage_ranges(shape.layers, told.pipeline_parallel, told.stage_layers)
    rates = [bytes_per_token(stage_pool(shape, rules, filled, kv_format, span)) for span in spans]
    return max(rates) * told.context_parallel  # the log counts tokens of all ranks together; see logged_rate


def _without_indexer(point: Point, shape: Architecture, kv_format: str) -> float | None:
    """The rate of the latents alone where the log's size leaves out the indexer's keys; None where it does not."""
    if re.search(r"including index is actually|leaves out the .{0,40}index", point.log):
        latents = [c for c in kept_caches(shape) if isinstance(c, LatentCache)]
        return float(sum(latent_bytes(c, kv_format) for c in latents)) or None
    return None
