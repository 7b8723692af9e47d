"""vLLM's KV cache groups: how the layers of any model share one pool of pages of one size.

From v1/core/kv_cache_utils.py (0.10 to 0.25; ``kv_cache_planning.py`` after that) and v1/kv_cache_interface.py:

1. Layers that keep the same are one type. Where every layer keeps all tokens (or all have one window), there is one
   group, and a page is the sum over all layers.
2. Else pages are made equal: an attention layer with fewer bytes per token gets a larger block; with state layers in
   the model, the attention block grows until its page holds a state ("Setting attention block size to N tokens").
3. Layers of a type are dealt into groups of ``group_size``: the fewest layers of any type, or the most, if the most is
   less than 1.5 times the fewest. A group that is not full has padding layers.
4. A page of the pool is ``group_size`` layers' pages; a request takes its own pages of every group.

gemma-3-27b (10 full and 52 sliding layers of 16 heads of 128, window 1024), 8192 tokens in flight:

>>> from kvbudget.layers import AttentionCache
>>> full = AttentionCache(kv_heads=16, head_dim=128, v_head_dim=128)
>>> sliding = AttentionCache(kv_heads=16, head_dim=128, v_head_dim=128, window=1024)
>>> layers = [full if i % 6 == 5 else sliding for i in range(62)]
>>> pool = pool_of(layers, options=PoolOptions(kv_format="BF16", block_tokens=16, in_flight_tokens=8192))
>>> pool.page_bytes, [group.layers for group in pool.groups], pool.pages_for(8192)
(1310720, [9, 9, 9, 9, 8, 8, 10], 3590)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvbudget.cachebytes import state_bytes
from kvbudget.engines.pages import layer_token_bytes
from kvbudget.engines.result import CacheGroup, Pool
from kvbudget.layers import (
    AttentionCache,
    Cache,
    CompressedCache,
    LatentCache,
    NoCache,
    SharedCache,
    StateCache,
    cache_kind,
)

STATE_BLOCK_ALIGNMENT: Final = 16
LATENT_BLOCK_ALIGNMENT: Final = 64
"""Blocks grow in these steps: what the attention kernels, and those of a latent, can read (platforms/interface.py)."""
_PADDED_GROUP_RATIO: Final = (3, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """``in_flight_tokens``: max_num_batched_tokens. ``prefix_caching`` keeps one more state per request (mode "align").
    ``shares``: decode context parallelism. ``hybrid_groups`` off: layers with a window keep all tokens."""

    kv_format: str
    block_tokens: int
    in_flight_tokens: int
    tensor_parallel: int = 1
    shares: int = 1
    prefix_caching: bool = False
    draft_tokens: int = 0
    hybrid_groups: bool = True
    reserved_pages: int = 1


@dataclass(frozen=True, slots=True)
class _Type:
    """Layers of one type: ``layers`` are their positions."""

    cache: Cache
    layers: tuple[int, ...]
    block_tokens: int
    page_bytes: int


def pool_of(layers: Sequence[Cache], *, options: PoolOptions, first: int = 0, last: int | None = None) -> Pool:
    """The pool of a model whose layers keep ``layers``, on the stage that holds the layers first … last - 1.

    Groups are made over the whole model, so that every stage has the same; a page has the bytes of the largest group's
    layers on that stage. Raises ValueError where no layer keeps anything."""
    types = _types(layers, options)
    if not types:
        raise ValueError("no layer of this model keeps anything")
    last = len(layers) if last is None else last
    if len(types) == 1 or all(_keeps_all(t.cache) for t in types):
        return _one_group(types, options, first, last)
    size = group_size([len(t.layers) for t in types])
    page = max(t.page_bytes for t in types)
    groups: list[CacheGroup] = []
    most = 0
    for kind in types:
        count = -(-len(kind.layers) // size)
        for number in range(count):
            members = kind.layers[number::count]
            groups.append(_group(kind, len(members), options))
            most = max(most, sum(first <= i < last for i in members))
    return Pool(page_bytes=max(1, most) * page, groups=tuple(groups), reserved_pages=options.reserved_pages)


def group_size(counts: Sequence[int]) -> int:
    """Layers in a group, from the number of layers of each type.

    >>> group_size([10, 52]), group_size([13, 12]), group_size([23, 23]), group_size([17, 48])
    (10, 13, 23, 17)
    """
    fewest, most = min(counts), max(counts)
    numerator, denominator = _PADDED_GROUP_RATIO
    return most if most * denominator < fewest * numerator else fewest


def _types(layers: Sequence[Cache], options: PoolOptions) -> list[_Type]:
    positions: dict[Cache, list[int]] = {}
    for index, cache in enumerate(layers):
        if isinstance(cache, SharedCache | NoCache):
            continue
        kept = cache if options.hybrid_groups else _without_bound(cache)
        positions.setdefault(kept, []).append(index)
    tokens = {c: layer_token_bytes(c, options.kv_format, tensor_parallel=options.tensor_parallel) for c in positions}
    states = [
        state_bytes(c, tensor_parallel=options.tensor_parallel, draft_tokens=options.draft_tokens)
        for c in positions
        if isinstance(c, StateCache)
    ]
    widest = max((size for size in tokens.values() if size), default=0)
    block = options.block_tokens
    if states and widest:
        block = max(block, _block_for_state(max(states), widest, positions))
    page = max([block * widest, *states])
    hybrid = len(positions) > 1 and not all(_keeps_all(c) for c in positions)
    found = []
    for cache, indices in positions.items():
        own = tokens[cache]
        blocks = block
        if hybrid and own and widest % own == 0:
            blocks = block * (widest // own)
        found.append(_Type(cache, tuple(indices), blocks, page if hybrid or not own else own * block))
    return found


def _block_for_state(state: int, token_bytes: int, caches: dict[Cache, list[int]]) -> int:
    latent = any(isinstance(c, LatentCache) for c in caches)
    step = LATENT_BLOCK_ALIGNMENT if latent else STATE_BLOCK_ALIGNMENT
    return step * -(-state // (step * token_bytes))


def _keeps_all(cache: Cache) -> bool:
    match cache:
        case AttentionCache():
            return cache.window is None and cache.chunk is None
        case LatentCache():
            return True
        case _:
            return False


def _without_bound(cache: Cache) -> Cache:
    return replace(cache, window=None, chunk=None) if isinstance(cache, AttentionCache) else cache


def _one_group(types: list[_Type], options: PoolOptions, first: int, last: int) -> Pool:
    page = sum(t.page_bytes * sum(first <= i < last for i in t.layers) for t in types)
    lead = types[0]
    group = replace(_group(lead, sum(len(t.layers) for t in types), options), kind="+".join(_kinds(types)))
    return Pool(page_bytes=max(1, page), groups=(group,), reserved_pages=options.reserved_pages)


def _kinds(types: list[_Type]) -> list[str]:
    return list(dict.fromkeys(cache_kind(t.cache) for t in types))


def _group(kind: _Type, layers: int, options: PoolOptions) -> CacheGroup:
    name = cache_kind(kind.cache)
    match kind.cache:
        case StateCache():
            kept = (2 if options.prefix_caching else 1) + options.draft_tokens
            return CacheGroup(kind=name, layers=layers, block_tokens=kind.block_tokens, state_pages=kept)
        case AttentionCache(window=int(window)) | CompressedCache(window=window):
            return CacheGroup(
                kind=name,
                layers=layers,
                block_tokens=kind.block_tokens,
                bound_tokens=window - 1 + options.in_flight_tokens,
                extra_pages=1,
            )
        case AttentionCache(chunk=int(chunk)):
            bound = chunk + options.in_flight_tokens
            return CacheGroup(kind=name, layers=layers, block_tokens=kind.block_tokens, bound_tokens=bound)
        case _:
            return CacheGroup(kind=name, layers=layers, block_tokens=kind.block_tokens, shares=options.shares)
