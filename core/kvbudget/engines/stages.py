"""How layers are dealt to pipeline stages, and which layers keep something."""

from itertools import accumulate, pairwise

from kvbudget.engines.settings import Settings
from kvbudget.layers import Architecture, Cache, NoCache
from kvbudget.layout import stage_layers


def stage_ranges(layers: int, pipeline_parallel: int, given: tuple[int, ...] = ()) -> tuple[tuple[int, int], ...]:
    """First layer and the one after the last, of each stage. ``given`` (vLLM's VLLM_PP_LAYER_PARTITION) replaces the
    even split; it is used only where it fits the model. More stages than layers are planned
    as one stage a layer; engines refuse them.

    >>> stage_ranges(30, 4), stage_ranges(48, 2, (16, 32))
    (((0, 7), (7, 15), (15, 23), (23, 30)), ((0, 16), (16, 48)))
    """
    fits = sum(given) == layers and len(given) == pipeline_parallel
    split = given if fits else stage_layers(layers, min(layers, pipeline_parallel))
    return tuple(pairwise(accumulate(split, initial=0)))


def kept_caches(arch: Architecture, span: tuple[int, int] | None = None, *, draft: bool = False) -> list[Cache]:
    """What the layers of ``span`` (None: all) keep, in order; a layer that keeps two things is there twice, next to
    itself. With ``draft``, the layers of the checkpoint's speculative draft follow the last layer."""
    first, last = span or (0, arch.layers)
    caches = [cache for index, cache in _in_order(arch) if first <= index < last]
    if draft and last == arch.layers and arch.drafts is not None and not isinstance(arch.drafts.cache, NoCache):
        caches += [arch.drafts.cache] * arch.drafts.layers
    return caches


def kept_span(arch: Architecture, span: tuple[int, int], *, draft: bool = False) -> tuple[int, int]:
    """Where in :func:`kept_caches` of the whole model those of the layers ``span`` begin and end."""
    before = sum(index < span[0] for index, _ in _in_order(arch))
    return before, before + len(kept_caches(arch, span, draft=draft))


def _in_order(arch: Architecture) -> list[tuple[int, Cache]]:
    found = [(index, number, group.cache) for number, group in enumerate(arch.groups) for index in group.layers]
    return [(index, cache) for index, _, cache in sorted(found, key=lambda item: item[:2])]


def model_len(arch: Architecture, settings: Settings) -> int:
    """The wanted length; left out, the model's own; 1 where neither is known."""
    return settings.max_model_len or arch.max_position_embeddings or 1
