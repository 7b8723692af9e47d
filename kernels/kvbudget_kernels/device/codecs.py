"""Codes to numbers and back, with integers where Triton's own conversions are slow, missing or wrong in the
interpreter."""

import triton
import triton.language as tl


@triton.jit
def e4m3_over_256(code):
    """uint8 e4m3 -> fp16 value / 256, exact for every finite code. The caller folds the 256 into a scale."""
    wide = code.to(tl.uint16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def to_e4m3(x):
    """fp32, finite, |x| <= 448 -> uint8, rounded to nearest even."""
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    u = bits & 0x7FFFFFFF
    normal = ((u + 0x7FFFF + ((u >> 20) & 1)) >> 20) - (120 << 3)
    magnitude = tl.abs(x)
    subnormal = (magnitude + 16384.0).to(tl.int32, bitcast=True) & 0xFF
    return (tl.where(magnitude >= 0.015625, normal, subnormal) | sign).to(tl.uint8)


@triton.jit
def to_bf16(x):
    """fp32, finite -> bf16, rounded to nearest even (the interpreter's own cast cuts off)."""
    u = x.to(tl.uint32, bitcast=True)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def round_even(x):
    """fp32, |x| < 2^22, to the nearest whole number, ties to even."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def finite(x, LARGEST: tl.constexpr):
    """fp32 with NaN as 0, clamped to ±LARGEST."""
    x = tl.where(x == x, x, 0.0)
    return tl.minimum(tl.maximum(x, -LARGEST), LARGEST)


@triton.jit
def is_not_finite(x):
    return (x.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000


@triton.jit
def low_half(word):
    """int32 -> the fp16 in its low half, as fp32."""
    return (word & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def high_half(word):
    """int32 -> the fp16 in its high half, as fp32."""
    return ((word >> 16) & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def pack_halves(low, high):
    """fp32, fp32 holding fp16 values -> int32."""
    lo = low.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    hi = high.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    return lo | (hi << 16)


@triton.jit
def nibble_to_fp16(nibble):
    """0 … 15 -> fp16: put into the mantissa of 1024, so that nothing is converted."""
    return (nibble.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1024.0
