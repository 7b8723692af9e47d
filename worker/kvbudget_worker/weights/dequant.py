"""GGUF tensor types that we read, decoded to fp32 with numpy.

A block of 32 values: Q4_1 is fp16 scale, fp16 minimum, 16 bytes of which the low nibbles are values 0…15 and the high
nibbles values 16…31 (x = q·scale + minimum); Q8_0 is fp16 scale and 32 int8 (x = q·scale).

>>> block = np.array([1.0, -2.0], np.float16).tobytes() + bytes([0x31] * 16)
>>> row = dequantise(np.frombuffer(block, np.uint8), Q4_1, 32)
>>> float(row[0]), float(row[16])
(-1.0, 1.0)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorType:
    """``block`` values take ``block_bytes`` bytes."""

    name: str
    block: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]

    def nbytes(self, values: int) -> int:
        return values // self.block * self.block_bytes


def _f32(raw: Bytes) -> Floats:
    return raw.view("<f4").astype(np.float32, copy=False)


def _f16(raw: Bytes) -> Floats:
    return raw.view("<f2").astype(np.float32)


def _bf16(raw: Bytes) -> Floats:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 34)
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(-1)


def _q4_1(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 20)
    head = np.ascontiguousarray(blocks[:, :4]).view("<f2").astype(np.float32)
    codes = blocks[:, 4:]
    values = np.concatenate((codes & 0x0F, codes >> 4), axis=1).astype(np.float32)
    values *= head[:, :1]
    values += head[:, 1:]
    return values.reshape(-1)


F32 = TensorType("F32", 1, 4, _f32)
F16 = TensorType("F16", 1, 2, _f16)
Q4_1 = TensorType("Q4_1", 32, 20, _q4_1)
Q8_0 = TensorType("Q8_0", 32, 34, _q8_0)
BF16 = TensorType("BF16", 1, 2, _bf16)

TYPES: dict[int, TensorType] = {0: F32, 1: F16, 3: Q4_1, 8: Q8_0, 30: BF16}
"""By the type number in the file."""


def dequantise(raw: Bytes, kind: TensorType, values: int) -> Floats:
    """``values`` fp32 numbers from exactly ``kind.nbytes(values)`` bytes. The result may share memory with ``raw``."""
    return kind.decode(raw[: kind.nbytes(values)])
