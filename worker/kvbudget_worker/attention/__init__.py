"""Attention over the paged KV cache: the cache, the backend interface, the torch and the Triton backend."""

from kvbudget_worker.attention.backend import AttentionBackend
from kvbudget_worker.attention.cache import PagedCache, check_precision
from kvbudget_worker.attention.choose import choose_backend
from kvbudget_worker.attention.torch_backend import TorchAttention

__all__ = ["AttentionBackend", "PagedCache", "TorchAttention", "check_precision", "choose_backend"]
