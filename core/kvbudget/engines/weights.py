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
    share -= elsewhere_bytes(arch, told, span)
    if told.mlp_ranks is not None and told.mlp_ranks > ranks:
        part = count(arch, tensor_parallel=ranks, first=span[0], last=span[1])
        divided = replace(part, mixer=0, kept=0, tables=part.tables // 2)
        share -= stored_bytes(arch, divided) * (told.mlp_ranks - ranks) // told.mlp_ranks
    return share + rotary_bytes(arch) + absorbed_bytes(arch, ranks, span) + padded_expert_bytes(arch, ranks, span)


def elsewhere_bytes(arch: Architecture, told: Settings, span: tuple[int, int]) -> int:
    """Bytes of experts that tensor parallelism alone would put on a rank, and that data and expert parallelism put
    elsewhere; below 0 where whole experts are more than a part of each.

    DeepSeek-V3 on 8 copies of one rank: 32 of 256 experts of 3 × 7168 × 2048 in 58 layers stay.

    >>> from kvbudget.shapes.config import from_config
    >>> from kvbudget.shapes.table import facts
    >>> v3 = from_config(facts("deepseek-ai/DeepSeek-V3"))
    >>> away = elsewhere_bytes(v3, Settings(data_parallel=8, expert_parallel=True), (0, 61))
    >>> round(away / (58 * (256 - 32) * 3 * 7168 * 2048), 3)
    1.0
    """
    if told.data_parallel == 1 and not told.expert_parallel:
        return 0
    ranks = told.tensor_parallel * told.data_parallel
    stage = arch if span == (0, arch.layers) else arch.stage(*span)
    here = kept = 0
    for mlp in stage.feed_forward:
        here += len(mlp.layers) * -(-mlp.elements.experts // told.tensor_parallel)
        if told.expert_parallel and mlp.experts:
            kept += len(mlp.layers) * -(-mlp.experts // ranks) * (mlp.elements.experts // mlp.experts)
        else:
            kept += len(mlp.layers) * -(-mlp.elements.experts // ranks)
    if told.draft_tokens and arch.drafts is not None and span[1] == arch.layers and not arch.weights.drafts_plain:
        draft = arch.drafts.layers * arch.drafts.elements.experts
        here, kept = here + -(-draft // told.tensor_parallel), kept + -(-draft // ranks)
    return (here - kept) * arch.weights.expert_millibits // 8000


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
