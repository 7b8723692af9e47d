"""Which backend attends: our kernels on a GPU, torch elsewhere. Kernels that compute wrong numbers are never used."""

import logging
from typing import Any

import torch

from kvbudget import contract
from kvbudget.errors import InputError
from kvbudget_kernels.errors import KernelInputError
from kvbudget_worker.attention.backend import AttentionBackend
from kvbudget_worker.attention.cache import PagedCache
from kvbudget_worker.attention.torch_backend import TorchAttention

log = logging.getLogger(__name__)


def choose_backend(cache: PagedCache, attention_heads: int, compute_dtype: torch.dtype) -> AttentionBackend[Any]:
    """Raises InputError where the kernels do not agree with the reference on this device."""
    if cache.device.type != "cuda":
        return TorchAttention(cache, attention_heads, compute_dtype)
    try:
        cache.layout.check_kernels()
    except KernelInputError as unsupported:
        log.warning("attention by torch, because no kernel fits: %s", unsupported)
        return TorchAttention(cache, attention_heads, compute_dtype)
    return triton_backend(cache, attention_heads, compute_dtype)


def triton_backend(
    cache: PagedCache, attention_heads: int, compute_dtype: torch.dtype, **check: Any
) -> AttentionBackend[Any]:
    """The kernels over ``cache`` after one decode of theirs was compared with the reference on its device. ``check``:
    keyword arguments of :func:`kvbudget_kernels.self_check.check_decode`. Raises InputError where they disagree."""
    # Imported here: an image for CPUs has no Triton.
    from kvbudget_kernels.self_check import check_decode
    from kvbudget_worker.attention.triton_backend import TritonAttention

    device = cache.device
    found = check_decode(cache.layout, attention_heads, compute_dtype, device, **check)
    if not found.passed:
        raise InputError(
            contract.ENV_DEVICE,
            f"the attention kernels give wrong numbers on this {device.type} device (relative error {found.error:.2g}, "
            f"allowed {found.allowed:.2g}), so nothing is served: check driver and device, or set "
            f"{contract.ENV_DEVICE}=cpu",
        )
    log.info("attention by Triton kernels: relative error %.2g against the reference", found.error)
    return TritonAttention(cache, attention_heads)
