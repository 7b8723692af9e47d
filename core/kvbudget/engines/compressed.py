"""vLLM's pool of compressed caches (DeepSeek-V4), block by block.

A layer keeps a window of entries. With a ratio it also keeps one entry per ``ratio`` tokens for good (the indexer's key
beside it at ratio 4), and FP32 states of the compressor for what is not yet compressed. From models/deepseek_v4
(``get_kv_cache_spec`` of each), v1/core/kv_cache_utils.py (``group_and_unify_kv_cache_specs``) and, since 0.29,
v1/core/kv_cache_planning.py (``_get_packed_kv_cache_groups``)::

    part               tokens in a page   kept            bytes of a page, up to a multiple of 576
    compressed entry   256                all             256 ÷ ratio × 584
    indexer's key      256                all             256 ÷ ratio × 132
    window             64                 the window      64 × 584
    state, ratio 4     4                  8               4 × 8192, and 4 × 2048 of the indexer
    state, ratio 128   8                  128             8 × 4096

Parts that keep the same number of tokens share a block table; the window's are dealt into groups of about as many
layers as the others have. How wide a block is changed twice (``Packing``). DeepSeek-V4-Flash, of which vLLM 0.22 logged
that a request of 30000 tokens needs 6.66 GiB with 16384 tokens in flight:

>>> from kvbudget.shapes.config import from_config
>>> from kvbudget.shapes.table import facts
>>> flash = [g.cache for g in from_config(facts("deepseek-ai/DeepSeek-V4-Flash")).groups for _ in g.layers]
>>> told = PoolOptions(kv_format="FP8E4M3", block_tokens=256, in_flight_tokens=16384)
>>> pool = compressed_pool(flash, told, packing="tuples")
>>> [group.layers for group in pool.groups], pool.page_bytes, pool.pages_for(30000)
([62, 22, 21, 42, 20], 1051776, 6800)
>>> round(6800 * 1051776 / 2**30, 2)
6.66
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kvbudget.cachebytes import index_bytes
from kvbudget.engines.cachegroups import PoolOptions
from kvbudget.engines.pages import compressed_entry_bytes
from kvbudget.engines.result import CacheGroup, Pool
from kvbudget.layers import Architecture, Cache, CompressedCache

Packing = Literal["tuples", "sizes", "groups"]
"""How wide a block is. ``tuples`` (to 0.23): as many tuples of one page of each size as a group has layers. ``sizes``
(0.24, vllm#44577): of each page size as many as a group has at most. ``groups`` (0.27, vllm#48993): the widest group's
own pages."""

GROWING_TOKENS: Final = 256
WINDOW_TOKENS: Final = 64
OVERLAPPING_RATIO: Final = 4
_ALIGNMENT: Final = 576
"""FlashMLA reads rows of this many bytes."""
_FP32: Final = 4
_STATE_TOKENS: Final = {OVERLAPPING_RATIO: 4}
_OTHER_STATE_TOKENS: Final = 8


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the caches of layer ``layer``; ``kept`` is the most tokens of it besides those in flight (None: all)."""

    layer: int
    name: str
    block_tokens: int
    kept: int | None
    page_bytes: int


def is_compressed(arch: Architecture) -> bool:
    """Whether the layers keep compressed caches."""
    return any(isinstance(group.cache, CompressedCache) for group in arch.groups)


def compressor_state_bytes(cache: CompressedCache) -> int:
    """FP32 state of the compressor for one token: key and score, twice as wide where entries overlap.

    >>> v4 = CompressedCache(latent_dim=448, rope_dim=64, window=128, ratio=4, index_dim=128)
    >>> compressor_state_bytes(v4), indexer_state_bytes(v4)
    (8192, 2048)
    """
    if not cache.ratio:
        return 0
    overlap = 2 if cache.ratio == OVERLAPPING_RATIO else 1
    return 2 * overlap * (cache.latent_dim + cache.rope_dim) * _FP32


def indexer_state_bytes(cache: CompressedCache) -> int:
    """The same of the indexer, which layers with overlapping entries have."""
    return 2 * 2 * cache.index_dim * _FP32 if cache.ratio == OVERLAPPING_RATIO else 0


def compressed_pool(
    layers: Sequence[Cache], options: PoolOptions, *, packing: Packing, first: int = 0, last: int | None = None
) -> Pool:
    """The pool of a model whose layers keep ``layers``, on the stage that holds the layers first … last - 1. Groups are
    made over the whole model; a block has the bytes that they need on that stage."""
    buckets: dict[tuple[int, int | None], list[_Part]] = {}
    for index, cache in enumerate(layers):
        for part in _parts(index, cache):
            buckets.setdefault((part.block_tokens, part.kept), []).append(part)
    ordered = sorted(buckets.values(), key=lambda bucket: bucket[0].kept is not None)
    size = _group_layers([_layers(bucket) for bucket in ordered])
    groups = [group for bucket in ordered for group in _dealt(bucket, size)]
    end = len(layers) if last is None else last
    here = [[part for part in group if first <= part.layer < end] for group in groups]
    return Pool(
        page_bytes=max(1, _block_bytes(here, packing)),
        groups=tuple(_cache_group(group, options) for group in groups),
        reserved_pages=options.reserved_pages,
    )


def _parts(layer: int, cache: Cache) -> Iterator[_Part]:
    if not isinstance(cache, CompressedCache):
        return
    entry, ratio = compressed_entry_bytes(cache), cache.ratio
    if ratio:
        entries = GROWING_TOKENS // ratio
        yield _Part(layer, "entry", GROWING_TOKENS, None, _aligned(entries * entry))
        if ratio == OVERLAPPING_RATIO:
            yield _Part(layer, "index", GROWING_TOKENS, None, _aligned(entries * index_bytes(cache.index_dim)))
    yield _Part(layer, "window", WINDOW_TOKENS, cache.window, _aligned(WINDOW_TOKENS * entry))
    if ratio:
        tokens = _STATE_TOKENS.get(ratio, _OTHER_STATE_TOKENS)
        kept = 2 * ratio if ratio == OVERLAPPING_RATIO else ratio
        yield _Part(layer, "state", tokens, kept, _aligned(tokens * compressor_state_bytes(cache)))
        if ratio == OVERLAPPING_RATIO:
            yield _Part(layer, "state of the index", tokens, kept, _aligned(tokens * indexer_state_bytes(cache)))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _layers(bucket: Sequence[_Part]) -> int:
    """Layers that have the commonest of the bucket's parts."""
    return max(Counter(part.page_bytes for part in bucket).values())


def _group_layers(counts: Sequence[int]) -> int:
    """Layers in a group: at least those of the first bucket, and so many that all buckets together are padded least;
    of several, the most (``_approximate_gcd``).

    >>> _group_layers([21, 43, 21, 20]), _group_layers([31, 61, 30, 31])
    (22, 31)
    """
    return min(range(counts[0], max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))


def _dealt(bucket: Sequence[_Part], size: int) -> list[list[_Part]]:
    """What grows is one group; of the rest, a layer's parts stay together and layers are dealt out in turn."""
    holders = sorted({part.layer for part in bucket})
    number = 1 if bucket[0].kept is None else -(-len(holders) // size)
    turn = {layer: position % number for position, layer in enumerate(holders)}
    return [[part for part in bucket if turn[part.layer] == i] for i in range(number)]


def _block_bytes(groups: Sequence[Sequence[_Part]], packing: Packing) -> int:
    widest = max((sum(part.page_bytes for part in group) for group in groups), default=0)
    if packing == "groups":
        return widest
    sizes = sorted({part.page_bytes for group in groups for part in group if part.kept is None})
    if not sizes:
        return widest
    # Pages of windows and states are padded up to those of what grows.
    counts = [Counter(next(s for s in sizes if s >= part.page_bytes) for part in group) for group in groups]
    if packing == "sizes":
        return sum(size * max(count[size] for count in counts) for size in sizes)
    return sum(sizes) * max(max(count.values(), default=0) for count in counts)


def _cache_group(parts: Sequence[_Part], options: PoolOptions) -> CacheGroup:
    lead = parts[0]
    names = "+".join(dict.fromkeys(part.name for part in parts))
    if lead.kept is None:
        return CacheGroup(kind=names, layers=len(parts), block_tokens=lead.block_tokens, shares=options.shares)
    return CacheGroup(
        kind=names,
        layers=len(parts),
        block_tokens=lead.block_tokens,
        bound_tokens=lead.kept - 1 + options.in_flight_tokens,
        extra_pages=1,
    )
