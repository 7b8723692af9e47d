"""Other planners' formulas, written anew from descriptions of them, so that one table can compare.

    KAITO          KV = total × share − weights − (2.3 GiB + 5% of the weights); a token costs every layer's K and V in
                   16 bits, divided by the number of GPUs
    llm-d-planner  KV = catalogue size × share − weights − activation ÷ GPUs − 0.15 GiB (0.6 with several GPUs); the
                   activation is 5.5 GiB, 8 with experts, 2.5 with images; a token's bytes know neither the KV's
                   precision nor that a latent is not divided
    all layers     KV = total × share − weights; every layer keeps every token, in the KV's precision

Weights are those of the log where it has them, else the checkpoint's (KAITO adds 2%).
"""

from kvbudget.engines.pages import layer_token_bytes, resolved_format
from kvbudget.engines.result import GIB
from kvbudget.engines.stages import kept_caches
from kvbudget.layers import Architecture, AttentionCache, CompressedCache, LatentCache, StateCache
from scoring.options import settings_of
from scoring.points import Point

NAMES = ("KAITO", "llm-d-planner", "all layers")
_CATALOGUE_GIB = ((70, 85, 80.0), (130, 145, 141.0), (36, 40.5, 40.0), (44, 48, 48.0), (20, 24, 24.0), (90, 97, 96.0))
"""Real sizes from and to, and the size on the box."""


def kv_gib(
    shape: Architecture,
    *,
    total_gib: float,
    share: float,
    weights_gib: float,
    tensor_parallel: int,
    pipeline_parallel: int,
) -> tuple[tuple[str, float], ...]:
    """KV memory of one GPU in GiB by each planner; ``weights_gib`` are one GPU's."""
    gpus = tensor_parallel * pipeline_parallel
    activation = 8.0 if shape.is_moe else 2.5 if shape.is_multimodal else 5.5
    boxed = next((box for low, high, box in _CATALOGUE_GIB if low <= total_gib < high), total_gib)
    return (
        ("KAITO", total_gib * share - weights_gib - (2.3 + 0.05 * weights_gib)),
        ("llm-d-planner", boxed * share - weights_gib - activation / gpus - (0.6 if gpus > 1 else 0.15)),
        ("all layers", total_gib * share - weights_gib),
    )


def predicted_weights_gib(checkpoint_bytes: int, gpus: int) -> dict[str, float]:
    """Weights of one GPU by each planner: the checkpoint's bytes, divided."""
    even = checkpoint_bytes / gpus / GIB
    return {"KAITO": even * 1.02, "llm-d-planner": even, "all layers": even}


def rates(shape: Architecture, point: Point) -> tuple[tuple[str, float], ...]:
    """Bytes of one token on one GPU by each planner."""
    told = settings_of(point)
    gpus = told.tensor_parallel * told.pipeline_parallel
    sixteen, told_bytes = 0.0, 0.0
    kv_format = resolved_format(shape, told.kv_format)
    for cache in kept_caches(shape):
        if isinstance(cache, StateCache):  # none of them knows states: such a layer counts as attention
            like = next((c for c in kept_caches(shape) if isinstance(c, AttentionCache)), None)
            sixteen += 0 if like is None else layer_token_bytes(like, "BF16")
            told_bytes += 0 if like is None else layer_token_bytes(like, kv_format)
        elif isinstance(cache, AttentionCache | LatentCache | CompressedCache):
            sixteen += layer_token_bytes(cache, "BF16")
            told_bytes += layer_token_bytes(cache, kv_format)
    return (("KAITO", sixteen / gpus), ("llm-d-planner", sixteen / gpus), ("all layers", told_bytes / gpus))
