"""The GGUF container: header, metadata and a memory map of the tensors. Versions 2 and 3, little endian.

Layout: magic, version u32, tensor count u64, metadata count u64; per metadata entry key, type u32, value; per tensor
name, dimension count u32, dimensions u64 (innermost first), type u32, offset u64; then, aligned, the tensors' bytes.
A string is its length u64 and UTF-8 bytes.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from kvbudget.errors import UnsupportedError, WeightsError
from kvbudget_worker.weights.dequant import TYPES, Floats, TensorType, dequantise

MAGIC = b"GGUF"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_DAMAGED = "the file is damaged or truncated: copy it again and compare its checksum"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """``shape`` is outermost first, as torch has it. ``start`` is the first byte's place in the file."""

    shape: tuple[int, ...]
    kind: TensorType
    start: int

    @property
    def values(self) -> int:
        return prod(self.shape)


class GGUFFile:
    """An open GGUF file. ``metadata`` holds every key; tensors are decoded one at a time, straight from the map."""

    def __init__(self, path: Path) -> None:
        """Raises WeightsError for a file that is missing, no GGUF, damaged or truncated, UnsupportedError for a tensor
        type that we do not read."""
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            raise WeightsError(str(path), f"cannot be read ({e.strerror}): check the volume and the path") from None
        except ValueError:
            raise WeightsError(str(path), f"is empty: {_DAMAGED}") from None
        self._at = 0
        try:
            self.metadata, self.tensors = self._read_header()
        except (struct.error, UnicodeDecodeError, IndexError):
            raise WeightsError(str(path), f"its header ends early: {_DAMAGED}") from None
        for name, info in self.tensors.items():
            end = info.start + info.kind.nbytes(info.values)
            if end > len(self._map):
                raise WeightsError(
                    str(path), f"tensor {name} ends at byte {end}, the file has {len(self._map)}: {_DAMAGED}"
                )

    def tensor(self, name: str) -> Floats:
        """fp32, in its shape; read-only when the file holds fp32 itself. Raises WeightsError when there is none."""
        info = self.tensors.get(name)
        if info is None:
            raise WeightsError(str(self.path), f"has no tensor {name}: it is no complete model of its architecture")
        raw = np.frombuffer(self._map, np.uint8, info.kind.nbytes(info.values), info.start)
        return dequantise(raw, info.kind, info.values).reshape(info.shape)

    def _read_header(self) -> tuple[Mapping[str, Any], Mapping[str, TensorInfo]]:
        if self._map[:4] != MAGIC:
            raise WeightsError(str(self.path), "is no GGUF file (its first four bytes are not GGUF)")
        self._at = 4
        version = self._scalar("<I")
        if version not in (2, 3):
            raise UnsupportedError(str(self.path), f"GGUF version {version} is not supported; 2 and 3 are")
        tensor_count, key_count = self._scalar("<Q"), self._scalar("<Q")
        metadata = {self._string(): self._value(self._scalar("<I")) for _ in range(key_count)}
        found = [(self._string(), self._tensor_entry()) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise WeightsError(str(self.path), f"alignment {alignment!r}: {_DAMAGED}")
        data = -(-self._at // alignment) * alignment
        return metadata, {name: self._info(name, *entry, data) for name, entry in found}

    def _tensor_entry(self) -> tuple[tuple[int, ...], int, int]:
        dims = tuple(self._scalar("<Q") for _ in range(self._scalar("<I")))
        return dims[::-1], self._scalar("<I"), self._scalar("<Q")

    def _info(self, name: str, shape: tuple[int, ...], number: int, offset: int, data: int) -> TensorInfo:
        kind = TYPES.get(number)
        if kind is None:
            names = ", ".join(t.name for t in TYPES.values())
            raise UnsupportedError(str(self.path), f"tensor {name} has type number {number}; we read {names}")
        if shape and shape[-1] % kind.block:
            raise WeightsError(str(self.path), f"tensor {name} of shape {shape} is not in whole blocks: {_DAMAGED}")
        return TensorInfo(shape, kind, data + offset)

    def _scalar(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self._map, self._at)
        self._at += struct.calcsize(layout)
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        raw = self._map[self._at : self._at + length]
        if len(raw) < length:
            raise IndexError(length)
        self._at += length
        return raw.decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise WeightsError(str(self.path), f"metadata of type {kind}: {_DAMAGED}")
        item, count = self._scalar("<I"), self._scalar("<Q")
        if item in _SCALARS:
            layout = _SCALARS[item]
            values = np.frombuffer(self._map, np.dtype(layout), self._checked(count, layout), self._at)
            self._at += values.nbytes
            return values.tolist()
        if count > len(self._map):
            raise IndexError(count)
        return [self._value(item) for _ in range(count)]

    def _checked(self, count: int, layout: str) -> int:
        if count * struct.calcsize(layout) > len(self._map) - self._at:
            raise IndexError(count)
        return int(count)
