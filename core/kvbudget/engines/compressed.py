"""The pool of compressed caches (DeepSeek-V4), as rates: what grows, and what a window holds.

A layer keeps one entry per ``ratio`` tokens for good, an entry for each token of its window, and, for what is not yet
compressed, FP32 states of the compressor as wide as two (ratio 4: four, its entries overlap) latents a token; the
indexer has states too. vLLM gives all of them blocks of one pool; how they are packed there is not reproduced block by
block. A page of this pool is 256 tokens of what grows.
"""

from collections.abc import Sequence
from typing import Final

from kvbudget.cachebytes import index_bytes
from kvbudget.engines.cachegroups import PoolOptions
from kvbudget.engines.pages import compressed_entry_bytes
from kvbudget.engines.result import CacheGroup, Pool
from kvbudget.layers import Architecture, Cache, CompressedCache

PAGE_TOKENS: Final = 256
PACKED: Final = (4, 3)
"""Bytes that windows and states take in vLLM's pool, to those that they are: pages of one width, padded groups. From a
log of 0.22, where a request of 30000 tokens needs 6.66 GiB and one of 13528 tokens 5.44 GiB."""
OVERLAPPING_RATIO: Final = 4
_FP32 = 4


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


def growing_bytes(cache: CompressedCache, tokens: int) -> int:
    """Compressed entries of ``tokens`` tokens in one layer, rounded up to whole entries."""
    if not cache.ratio:
        return 0
    entries = -(-tokens // cache.ratio)
    index = index_bytes(cache.index_dim) if cache.ratio == OVERLAPPING_RATIO else 0
    return entries * (compressed_entry_bytes(cache) + index)


def compressed_pool(layers: Sequence[Cache], options: PoolOptions) -> Pool:
    """The pool of one stage; ``layers`` are what its layers keep."""
    caches = [cache for cache in layers if isinstance(cache, CompressedCache)]
    page = max(1, sum(growing_bytes(cache, PAGE_TOKENS) for cache in caches))
    held = sum(compressed_entry_bytes(c) + compressor_state_bytes(c) + indexer_state_bytes(c) for c in caches)
    held = held * PACKED[0] // PACKED[1]
    window = max((cache.window for cache in caches), default=1)
    groups = (
        CacheGroup(kind="compressed", layers=len(caches), block_tokens=PAGE_TOKENS, shares=options.shares),
        CacheGroup(
            kind="window and compressor state",
            layers=len(caches),
            block_tokens=max(1, page // max(1, held)),
            bound_tokens=window - 1 + options.in_flight_tokens,
            extra_pages=1,
        ),
    )
    return Pool(page_bytes=page, groups=groups, reserved_pages=options.reserved_pages)
