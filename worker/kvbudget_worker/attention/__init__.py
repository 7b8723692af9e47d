"""Attention over the paged KV cache: the cache, the backend interface, and the torch backend."""

from kvbudget_worker.attention.backend import AttentionBackend
from kvbudget_worker.attention.cache import KV_DTYPES, PagedCache, kv_dtype
from kvbudget_worker.attention.torch_backend import TorchAttention

__all__ = ["KV_DTYPES", "AttentionBackend", "PagedCache", "TorchAttention", "kv_dtype"]
