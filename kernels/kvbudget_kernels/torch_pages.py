"""Pages written and read with torch alone: what the reference is made of, and what the worker runs where no kernel
does. So both have one codec (:mod:`kvbudget_kernels.quantise`) and one format (:mod:`kvbudget_kernels.storage`).
"""

import torch

from kvbudget_kernels.quantise import Coded, decode, encode, pack_fp16, unpack_fp16
from kvbudget_kernels.storage import PagedKV


def store(cache: PagedKV, key_value: torch.Tensor, page: torch.Tensor, offset: torch.Tensor) -> None:
    """``key_value``: [tokens, 2, kv_heads, head_dim], K and V of the token that goes to slot ``offset[i]`` of page
    ``page[i]``, both int64 [tokens]. No slot may occur twice. What is not finite is stored as
    :func:`kvbudget_kernels.quantise.finite` says."""
    layout = cache.layout
    per_head = None
    if cache.k_scale is not None and cache.v_scale is not None:
        per_head = torch.stack((cache.k_scale, cache.v_scale))
    coded = encode(key_value, layout, per_head)
    cache.key[page, :, offset] = coded.codes[:, 0]
    if layout.v_transposed:
        cache.value[page, :, :, offset] = coded.codes[:, 1]
    else:
        cache.value[page, :, offset] = coded.codes[:, 1]
    if cache.scales is None or coded.scale is None:
        return
    if coded.zero is None:
        cache.scales[page, :, offset] = pack_fp16(coded.scale[:, 0], coded.scale[:, 1])
    else:
        words = pack_fp16(coded.scale, coded.zero)  # [tokens, 2, kv_heads, groups]; in a page K and V of a group adjoin
        cache.scales[page, :, offset] = words.permute(0, 2, 3, 1).flatten(-2)


def load(cache: PagedKV) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of all pages, each [pages, kv_heads, page_tokens, head_dim]: views of the cache where the codes are the
    numbers themselves (BF16, FP16, FP32), else fp32. Slots without a token come out as whatever stands there."""
    layout = cache.layout
    value = cache.value.transpose(-1, -2) if layout.v_transposed else cache.value
    match layout.precision:
        case "FP8E4M3":
            assert cache.k_scale is not None
            assert cache.v_scale is not None
            k_scale, v_scale = cache.k_scale.unsqueeze(-1), cache.v_scale.unsqueeze(-1)
            return decode(Coded(cache.key), layout, k_scale), decode(Coded(value), layout, v_scale)
        case "INT8":
            assert cache.scales is not None
            k, v = unpack_fp16(cache.scales)
            return decode(Coded(cache.key, k), layout, None), decode(Coded(value, v), layout, None)
        case "INT4":
            assert cache.scales is not None
            scale, zero = unpack_fp16(cache.scales)
            key = decode(Coded(cache.key, scale[..., 0::2], zero[..., 0::2]), layout, None)
            return key, decode(Coded(value, scale[..., 1::2], zero[..., 1::2]), layout, None)
        case _:
            return cache.key, value
