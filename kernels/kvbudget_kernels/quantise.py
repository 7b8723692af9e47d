"""Codes and scales in plain torch: what ``kv_write`` stores, and what the kernels read it as.

Whatever is not finite is made so first: NaN becomes 0, and ±inf the largest number that a page may hold
(:data:`LARGEST`). All arithmetic is fp32, division is correctly rounded, ties go to even.
"""

from dataclasses import dataclass

import torch

from kvbudget_kernels.storage import INT4_GROUP, Layout

E4M3_MAX = 448.0
LARGEST = {"FP16": 65504.0, "BF16": 1e15, "FP32": 1e15, "FP8E4M3": 1e15, "INT8": 57344.0, "INT4": 57344.0}
"""Largest magnitude that is stored. 57344 keeps ``15 · scale + zero`` finite in fp16; the product of a query with 1e15
stays finite in fp32."""
SMALLEST_SCALE = 2.0**-20
"""An fp16 subnormal with four bits: the scale of a row of zeros, so that nothing is divided by 0."""


@dataclass(frozen=True, slots=True)
class Coded:
    """One token row per leading index. ``codes``: [..., row_codes] of the layout's code dtype. ``scale``, ``zero``:
    fp32 holding fp16 values, [..., 1] for INT8 (no zero), [..., groups] for INT4, None otherwise."""

    codes: torch.Tensor
    scale: torch.Tensor | None = None
    zero: torch.Tensor | None = None


def finite(x: torch.Tensor, precision: str) -> torch.Tensor:
    """fp32, NaN as 0, clamped to ±LARGEST."""
    return x.float().nan_to_num(0.0, float("inf"), float("-inf")).clamp(-LARGEST[precision], LARGEST[precision])


def encode(x: torch.Tensor, layout: Layout, head_scale: torch.Tensor | None) -> Coded:
    """Rows ``x`` [..., kv_heads, head_dim] as they are stored. ``head_scale``: FP8E4M3 only, fp32 that broadcasts to
    [..., kv_heads]."""
    x = finite(x, layout.precision)
    match layout.precision:
        case "FP8E4M3":
            assert head_scale is not None
            scaled = (x / head_scale.unsqueeze(-1)).clamp(-E4M3_MAX, E4M3_MAX)
            return Coded(scaled.to(torch.float8_e4m3fn).view(torch.uint8))
        case "INT8":
            scale = _fp16((x.abs().amax(-1, keepdim=True) / 127.0).clamp(min=SMALLEST_SCALE))
            return Coded((x / scale).round().clamp(-127, 127).to(torch.int8), scale)
        case "INT4":
            return _encode_int4(x, layout)
        case _:
            return Coded(x.to(layout.code_dtype))


def decode(coded: Coded, layout: Layout, head_scale: torch.Tensor | None) -> torch.Tensor:
    """fp32 of rows [..., head_dim]; ``head_scale``: as in :func:`encode`, broadcast to the rows. A NaN code of e4m3 is
    read as ±480: the kernels take its bits as a number."""
    match layout.precision:
        case "FP8E4M3":
            assert head_scale is not None
            # Seven places up, e4m3's bits are those of the fp16 number of a 256th; the sign's copy below it goes away.
            wide = coded.codes.view(torch.int8).to(torch.int16) << 7
            half = wide.bitwise_and_(~0x4000).view(torch.float16)
            return half.float() * (256.0 * head_scale.unsqueeze(-1))
        case "INT8":
            assert coded.scale is not None
            return coded.codes.float() * coded.scale
        case "INT4":
            assert coded.scale is not None
            assert coded.zero is not None
            nibbles = torch.cat((coded.codes & 15, coded.codes >> 4), dim=-1).float()
            return nibbles * _per_channel(coded.scale, layout) + _per_channel(coded.zero, layout)
        case _:
            return coded.codes.float()


def _encode_int4(x: torch.Tensor, layout: Layout) -> Coded:
    groups = torch.split(x, INT4_GROUP, dim=-1)  # the last one may be shorter: only real channels count
    low = torch.stack([group.amin(-1) for group in groups], dim=-1)
    high = torch.stack([group.amax(-1) for group in groups], dim=-1)
    zero = _fp16(low)
    scale = _fp16(((high - low) / 15.0).clamp(min=SMALLEST_SCALE))
    codes = ((x - _per_channel(zero, layout)) / _per_channel(scale, layout)).round().clamp(0, 15).to(torch.uint8)
    half = layout.head_dim // 2
    return Coded(codes[..., :half] | codes[..., half:] << 4, scale, zero)


def _per_channel(groups: torch.Tensor, layout: Layout) -> torch.Tensor:
    return groups.repeat_interleave(INT4_GROUP, dim=-1)[..., : layout.head_dim]


def _fp16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float16).float()


def pack_fp16(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """int32 words: fp16 of ``low`` | fp16 of ``high`` << 16."""
    pair = torch.stack((low.to(torch.float16), high.to(torch.float16)), dim=-1)
    return pair.view(torch.int32).squeeze(-1)


def unpack_fp16(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two halves of int32 words, as fp32."""
    pair = words.unsqueeze(-1).contiguous().view(torch.float16).float()
    return pair[..., 0], pair[..., 1]
