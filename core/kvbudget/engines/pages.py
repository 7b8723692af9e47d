"""Bytes that one layer keeps per token on one rank in the layouts of the engines.

They agree with the bundled layouts (``cachebytes``) but for the scales: vLLM keeps an FP32 scale for K and one for V
per token and head (``INT8``, ``INT4``; v1/kv_cache_interface.py, "per_token_head"), and a latent in FP8 beside an
indexer is ``fp8_ds_mla``: FP8 codes, an FP32 scale per 128 of them, and the rope part in 16 bits.

>>> from kvbudget.layers import AttentionCache, LatentCache
>>> gqa = AttentionCache(kv_heads=8, head_dim=128, v_head_dim=128)
>>> [layer_token_bytes(gqa, f) for f in ("BF16", "FP8E4M3", "INT8", "INT4", "NVFP4")]
[4096, 2048, 2112, 1088, 1152]
>>> dsa = LatentCache(latent_dim=512, rope_dim=64, index_dim=128)
>>> layer_token_bytes(dsa, "FP8E4M3") - 132, layer_token_bytes(dsa, "BF16") - 132
(656, 1152)
"""

from kvbudget.cachebytes import index_bytes
from kvbudget.engines.settings import KVFormat
from kvbudget.layers import Architecture, AttentionCache, Cache, CompressedCache, LatentCache
from kvbudget.layout import kv_heads_per_rank

_BITS = {"BF16": 16, "FP16": 16, "FP32": 32, "FP8E4M3": 8, "INT8": 8, "INT4": 4, "NVFP4": 4}
_HEAD_SCALE_BYTES = {"INT8": 8, "INT4": 8}
_NVFP4_GROUP = 16
_DS_MLA_GROUP = 128
_COMPRESSED_SCALE_BYTES = 8


def resolved_format(arch: Architecture, wanted: KVFormat | None) -> KVFormat:
    """The wanted format; else the checkpoint's own, else that of the model (``auto``): FP32 weights mean FP32 KV."""
    if wanted is not None:
        return wanted
    found = arch.kv_dtype or arch.dtype
    return found if found in ("FP16", "FP32", "FP8E4M3", "INT8", "NVFP4") else "BF16"


def layer_token_bytes(cache: Cache, kv_format: str, *, tensor_parallel: int = 1) -> int:
    """Bytes that one layer keeps for one token while it is kept; 0 for a layer that keeps none. Heads are divided by
    the ranks but never below one; a latent is whole on every rank."""
    match cache:
        case AttentionCache():
            heads = kv_heads_per_rank(cache.kv_heads, tensor_parallel)
            codes = _codes(cache.head_dim, kv_format) + _codes(cache.v_head_dim, kv_format)
            return heads * (codes + _HEAD_SCALE_BYTES.get(kv_format, 0)) + 2 * cache.index_dim
        case LatentCache():
            return latent_bytes(cache, kv_format) + index_bytes(cache.index_dim)
        case CompressedCache():
            return compressed_entry_bytes(cache)
        case _:
            return 0


def latent_bytes(cache: LatentCache, kv_format: str) -> int:
    """The latent of one token without the indexer's key.

    >>> latent_bytes(LatentCache(latent_dim=512, rope_dim=64), "FP8E4M3")
    576
    >>> latent_bytes(LatentCache(latent_dim=512, rope_dim=64), "NVFP4")
    352
    """
    if kv_format == "NVFP4":  # codes and scales of the latent; the rope part stays in 8 bits
        return _codes(cache.latent_dim, kv_format) + cache.rope_dim
    if kv_format == "FP8E4M3" and cache.index_dim:
        return cache.latent_dim + -(-cache.latent_dim // _DS_MLA_GROUP) * 4 + 2 * cache.rope_dim
    return _codes(cache.latent_dim + cache.rope_dim, kv_format)


def compressed_entry_bytes(cache: CompressedCache) -> int:
    """One entry of a compressed cache, window or compressed: FP8 codes, a 16-bit rope part, 8 bytes of scales.

    >>> compressed_entry_bytes(CompressedCache(latent_dim=448, rope_dim=64, window=128, ratio=4, index_dim=128))
    584
    """
    return cache.latent_dim + 2 * cache.rope_dim + _COMPRESSED_SCALE_BYTES


def _codes(elements: int, kv_format: str) -> int:
    scales = -(-elements // _NVFP4_GROUP) if kv_format == "NVFP4" else 0
    return -(-elements * _BITS[kv_format] // 8) + scales
