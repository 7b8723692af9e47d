"""How layers are dealt to pipeline stages, and which layers keep something."""

from itertools import pairwise

from kvbudget.engines.settings import Settings
from kvbudget.layers import Architecture, Cache, NoCache
from kvbudget.layout import stage_layers


def stage_ranges(layers: int, pipeline_parallel: int, given: tuple[int, ...] = ()) -> tuple[tuple[int, int], ...]:
    """First layer and the one after the last, of each stage. ``given`` (vLLM's VLLM_PP_LAYER_PARTITION) replaces the
    even split; it is used only where it fits the model.

    >>> stage_ranges(30, 4), stage_ranges(48, 2, (16, 32))
    (((0, 7), (7, 15), (15, 23), (23, 30)), ((0, 16), (16, 48)))
    """
    split = (
        given if sum(given) == layers and len(given) == pipeline_parallel else stage_layers(layers, pipeline_parallel)
    )
    edges = [sum(split[:stage]) for stage in range(len(split) + 1)]
    return tuple(pairwise(edges))


def kept_caches(arch: Architecture, *, draft: bool = False) -> list[Cache]:
    """What each layer keeps, in order; a layer that keeps two things is there twice, next to itself. With ``draft``,
    the layers of the checkpoint's speculative draft follow."""
    found: list[tuple[int, int, Cache]] = []
    for number, group in enumerate(arch.groups):
        found += [(index, number, group.cache) for index in group.layers]
    caches = [cache for _, _, cache in sorted(found, key=lambda item: item[:2])]
    if draft and arch.drafts is not None and not isinstance(arch.drafts.cache, NoCache):
        caches += [arch.drafts.cache] * arch.drafts.layers
    return caches


def model_len(arch: Architecture, settings: Settings) -> int:
    """The wanted length; left out, the model's own; 1 where neither is known."""
    return settings.max_model_len or arch.max_position_embeddings or 1
