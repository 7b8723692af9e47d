"""Weights of one rank as an engine holds them: the checkpoint's share, and what engines add when they load it.

    rotary tables     longest sequence × head_dim elements, on every rank
    latent attention  two copies of the latent's expansion, folded into queries and output ("absorbed")
    MXFP4 experts     the intermediate side rounded up to 256

Llama-3.1-8B: 8,030,261,248 parameters in 2 bytes and 131072 × 128 × 2 bytes; vLLM logs 14.99 GiB:

>>> round((8030261248 * 2 + 131072 * 128 * 2) / 2**30, 2)
14.99
"""

from dataclasses import replace
from typing import Final

from kvbudget.engines.activation import element_bytes
from kvbudget.engines.result import Band, exact, gib
from kvbudget.engines.settings import Settings
from kvbudget.layers import Architecture, AttentionCache, LatentCache
from kvbudget.weights import count, rank_bytes, stored_bytes

LOW_PER_MILLE: Final = 985
HIGH_PER_MILLE: Final = 1030
"""Band of predicted weights: repacking for a kernel, padding, buffers."""
LOW_UNEVEN_PER_MILLE: Final = 930
"""Low end where attention and MLPs are shared by different ranks: which parts are whole on each differs by version."""
UNKNOWN_TOWER_BYTES: Final = gib(1.2)
_EXPERT_STEP: Final = 256
_LATENT_HEAD_WIDTH: Final = 256
"""Width of a head's expansion of the latent: a query part without position and a value, 128 each in most models."""


def stage_weights(arch: Architecture, told: Settings, stage: int, span: tuple[int, int]) -> tuple[Band, str]:
    """Bytes on one rank of a stage, and where they come from: what was measured, else the prediction."""
    given = told.weight_bytes
    if given:
        return exact(given[min(stage, len(given) - 1)]), "as measured"
    expected = predicted_bytes(arch, told, span)
    high = expected * HIGH_PER_MILLE // 1000
    if arch.vision_parameters is None and span[0] == 0:
        high += UNKNOWN_TOWER_BYTES
    source = "checkpoint" if arch.weight_bytes is not None else "counted from the shape"
    uneven = told.mlp_ranks is not None and told.mlp_ranks > told.tensor_parallel
    low = LOW_UNEVEN_PER_MILLE if uneven else LOW_PER_MILLE
    return Band(expected * low // 1000, expected, high), f"{source}, with the engine's tables"


def predicted_bytes(arch: Architecture, told: Settings, span: tuple[int, int]) -> int:
    """Expected bytes on one rank of the stage of layers ``span``."""
    ranks = told.tensor_parallel
    share = rank_bytes(arch, tensor_parallel=ranks, first=span[0], last=span[1], drafts=told.draft_tokens > 0)
    if told.mlp_ranks is not None and told.mlp_ranks > ranks:
        part = count(arch, tensor_parallel=ranks, first=span[0], last=span[1])
        divided = replace(part, mixer=0, kept=0, tables=part.tables // 2)
        share -= stored_bytes(arch, divided) * (told.mlp_ranks - ranks) // told.mlp_ranks
    return share + rotary_bytes(arch) + absorbed_bytes(arch, ranks, span) + padded_expert_bytes(arch, ranks, span)


def rotary_bytes(arch: Architecture) -> int:
    """The table of cosines and sines for every position that the model has, or that its scaling makes room for."""
    dims = [g.cache.head_dim for g in arch.groups if isinstance(g.cache, AttentionCache)]
    dims += [g.cache.rope_dim for g in arch.groups if isinstance(g.cache, LatentCache)]
    return (arch.rotary_positions or arch.max_position_embeddings or 0) * max(dims, default=0) * element_bytes(arch)


def absorbed_bytes(arch: Architecture, tensor_parallel: int, span: tuple[int, int]) -> int:
    """Copies of the latent's expansion, in 16 bits, of the layers of a stage."""
    heads = -(-arch.attention_heads // tensor_parallel)
    total = 0
    for group in arch.groups:
        if isinstance(group.cache, LatentCache):
            layers = sum(span[0] <= i < span[1] for i in group.layers)
            total += layers * heads * group.cache.latent_dim * _LATENT_HEAD_WIDTH * 2
    return total


def padded_expert_bytes(arch: Architecture, tensor_parallel: int, span: tuple[int, int]) -> int:
    """What padding adds to experts in MXFP4."""
    if not arch.weights.name.startswith("MXFP4"):
        return 0
    part = count(arch, tensor_parallel=tensor_parallel, first=span[0], last=span[1])
    experts = part.experts * arch.weights.expert_millibits // 8000
    widths = [-(-m.expert_intermediate // tensor_parallel) for m in arch.feed_forward if m.experts]
    width = max(widths, default=_EXPERT_STEP)
    return experts * (-(-width // _EXPERT_STEP) * _EXPERT_STEP - width) // width
