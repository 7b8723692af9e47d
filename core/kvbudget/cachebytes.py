"""Bytes that one layer keeps on one rank, by the kind of its cache. Engines add their own rounding on top.

    attention    max(1, kv_heads ÷ ranks) × (bytes(head_dim) + bytes(v_head_dim) + scales)      per token
    latent       bytes(latent_dim + rope_dim), not divided by the ranks                          per token
    indexer      index_dim bytes of FP8 and 4 bytes of scale per 128, not divided                per token
    state        conv_steps × channels × bytes + heads × state × bytes, over the ranks           per sequence

>>> from kvbudget.layers import AttentionCache, LatentCache
>>> token_bytes(AttentionCache(kv_heads=8, head_dim=128, v_head_dim=128), "BF16")
4096
>>> token_bytes(LatentCache(latent_dim=512, rope_dim=64), "BF16", tensor_parallel=8)
1152
"""

from kvbudget.layers import (
    DTYPE_BYTES,
    AttentionCache,
    Cache,
    CompressedCache,
    LatentCache,
    StateCache,
)
from kvbudget.layout import element_bits, kv_heads_per_rank, scale_bytes

_INDEX_GROUP = 128
_INDEX_SCALE_BYTES = 4


def index_bytes(index_dim: int) -> int:
    """Bytes of one key of the sparse-attention indexer: FP8 codes and an FP32 scale per 128 (vLLM and SGLang).

    >>> index_bytes(128), index_bytes(0)
    (132, 0)
    """
    return index_dim + -(-index_dim // _INDEX_GROUP) * _INDEX_SCALE_BYTES


def token_bytes(cache: Cache, precision: str, *, tensor_parallel: int = 1) -> int:
    """Bytes that one layer keeps for one token while the token is kept at all: a window and a chunk bound how many
    tokens, not this figure. 0 for states, shared K and V, and layers without a cache; of a compressed cache this is one
    token of the window (:func:`compressed_token_bytes` has the rest)."""
    match cache:
        case AttentionCache():
            heads = kv_heads_per_rank(cache.kv_heads, tensor_parallel)
            bits = element_bits(precision)
            codes = -(-cache.head_dim * bits // 8) + -(-cache.v_head_dim * bits // 8)
            scales = (scale_bytes(precision, cache.head_dim) + scale_bytes(precision, cache.v_head_dim)) // 2
            return heads * (codes + scales) + 2 * cache.index_dim
        case LatentCache():
            return _latent_bytes(cache.latent_dim + cache.rope_dim, precision) + index_bytes(cache.index_dim)
        case CompressedCache():
            return _latent_bytes(cache.latent_dim + cache.rope_dim, precision)
        case _:
            return 0


def compressed_token_bytes(cache: CompressedCache, precision: str) -> int:
    """Bytes of one compressed entry, which stands for ``ratio`` tokens: the latent and the indexer's key."""
    return _latent_bytes(cache.latent_dim + cache.rope_dim, precision) + index_bytes(cache.index_dim)


def _latent_bytes(elements: int, precision: str) -> int:
    return -(-elements * element_bits(precision) // 8) + scale_bytes(precision, elements) // 2


def state_bytes(cache: StateCache, *, tensor_parallel: int = 1, draft_tokens: int = 0) -> int:
    """Bytes of one sequence's state in one layer on one rank; speculation keeps ``draft_tokens`` more conv inputs.

    Qwen3.6-27B, whose 48 such layers have 16 key and 48 value heads of 128 and a convolution over 4 tokens:

    >>> qwen = StateCache(kind="gdn", conv_channels=2 * 16 * 128 + 48 * 128, group_channels=0, state_groups=0,
    ...                   conv_steps=3, heads=48, state_per_head=128 * 128, conv_dtype="BF16", state_dtype="FP32")
    >>> state_bytes(qwen), 48 * state_bytes(qwen) // 2**20
    (3207168, 146)
    """
    return conv_bytes(cache, tensor_parallel=tensor_parallel, draft_tokens=draft_tokens) + recurrent_bytes(
        cache, tensor_parallel=tensor_parallel
    )


def conv_bytes(cache: StateCache, *, tensor_parallel: int = 1, draft_tokens: int = 0) -> int:
    """The convolution's part of :func:`state_bytes`."""
    groups = kv_heads_per_rank(cache.state_groups, tensor_parallel)
    channels = -(-cache.conv_channels // tensor_parallel) + groups * cache.group_channels
    return channels * (cache.conv_steps + draft_tokens) * DTYPE_BYTES[cache.conv_dtype]


def recurrent_bytes(cache: StateCache, *, tensor_parallel: int = 1) -> int:
    """The recurrence's part of :func:`state_bytes`."""
    return -(-cache.heads // tensor_parallel) * cache.state_per_head * DTYPE_BYTES[cache.state_dtype]
