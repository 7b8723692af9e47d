"""The header of a .gguf file: the model's facts, and the exact bytes of its tensors without reading one.

Format: github.com/ggml-org/ggml, docs/gguf.md. Versions 2 and 3, little endian.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from typing import Final

from kvbudget.errors import ShapeError, WeightsError
from kvbudget.layers import Architecture, uniform
from kvbudget.shapes.config import from_config
from kvbudget.shapes.ggufkeys import config_of
from kvbudget.weights import count

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_ITEMS: Final = 2**24
_MAX_TEXT_BYTES: Final = 2**26
_SCALARS: Final[dict[int, str]] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
BLOCKS: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""Tensor types: name, elements of a block, bytes of a block (ggml.h)."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the file says of itself. ``elements`` and ``tensor_bytes`` are sums over all tensors; ``main_type`` is the
    type of most bytes. Long arrays (the tokenizer's) are given by their length alone."""

    values: Mapping[str, object]
    tensor_count: int
    elements: int
    tensor_bytes: int
    main_type: str


class _Reader:
    """Walks over the bytes and refuses to leave them."""

    def __init__(self, data: bytes | mmap, path: str) -> None:
        self.data = data
        self.at = 0
        self.path = path

    def fail(self, reason: str) -> WeightsError:
        return WeightsError(self.path, f"{reason}; download the file again")

    def skip(self, size: int) -> int:
        """Where the next ``size`` bytes begin."""
        if self.at + size > len(self.data):
            raise self.fail(f"ends after {len(self.data)} bytes, within its header")
        begin = self.at
        self.at += size
        return begin

    def take(self, size: int) -> bytes:
        begin = self.skip(size)
        return self.data[begin : begin + size]

    def number(self, form: str) -> int | float | bool:
        found: int | float | bool = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return found

    def whole(self, form: str = "<Q") -> int:
        return int(self.number(form))

    def text(self) -> str:
        length = self.whole()
        if length > _MAX_TEXT_BYTES:
            raise self.fail(f"has a text of {length} bytes in its header")
        return self.take(length).decode("utf-8", "replace")

    def items(self, what: str) -> int:
        number = self.whole()
        if number > _MAX_ITEMS:
            raise self.fail(f"says that it has {number} {what}")
        return number

    def value(self, kind: int, *, depth: int = 0) -> object:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY and depth < 2:
            inner, length = self.whole("<I"), self.items("entries of an array")
            return self._array(inner, length, depth)
        if kind not in _SCALARS:
            raise self.fail(f"has a value of the unknown type {kind} in its header")
        return self.number(_SCALARS[kind])

    def _array(self, inner: int, length: int, depth: int) -> object:
        if inner in _SCALARS:
            form = _SCALARS[inner]
            size = length * struct.calcsize(form)
            if length > _SHORT_ARRAY:
                self.skip(size)
                return length
            return [v[0] for v in struct.iter_unpack(form, self.take(size))]
        if inner == _TEXT:
            for _ in range(length):
                self.skip(min(self.whole(), _MAX_TEXT_BYTES))
            return length
        for _ in range(length):
            self.value(inner, depth=depth + 1)
        return length


_SHORT_ARRAY: Final = 4096


def read_header(data: bytes | mmap, path: str = "model.gguf") -> Header:
    """Reads the header at the start of ``data``, which may be the whole file or any part that holds the header.

    Raises WeightsError for another format, a version that is not known, or data that end too soon."""
    reader = _Reader(data, path)
    if reader.take(4) != _MAGIC:
        raise reader.fail("is no GGUF file")
    version = reader.whole("<I")
    if version not in _VERSIONS:
        raise WeightsError(path, f"is GGUF of version {version}; versions 2 and 3 in little endian can be read")
    tensors, pairs = reader.items("tensors"), reader.items("keys")
    values: dict[str, object] = {}
    for _ in range(pairs):
        key = reader.text()
        values[key] = reader.value(reader.whole("<I"))
    elements = total = 0
    by_type: dict[str, int] = {}
    for _ in range(tensors):
        name = reader.text()
        number, size, kind = _tensor(reader, name)
        elements, total = elements + number, total + size
        by_type[kind] = by_type.get(kind, 0) + size
    main = max(by_type, key=lambda kind: by_type[kind], default="none")
    return Header(values, tensors, elements, total, main)


def _tensor(reader: _Reader, name: str) -> tuple[int, int, str]:
    """Elements, bytes and type of the next tensor."""
    dimensions = reader.whole("<I")
    if not 1 <= dimensions <= 8:
        raise reader.fail(f"has tensor {name[:100]} with {dimensions} dimensions")
    number = 1
    for _ in range(dimensions):
        number *= reader.whole()
    kind = reader.whole("<I")
    reader.whole()  # its place
    if kind not in BLOCKS:
        raise WeightsError(reader.path, f"has tensor {name[:100]} of type {kind}, whose size is not known")
    label, block, size = BLOCKS[kind]
    if number % block or number >= 2**62:
        raise reader.fail(f"has tensor {name[:100]} of {number} elements, not whole blocks of {block}")
    return number, number // block * size, label


def from_header(header: Header, path: str = "model.gguf", *, name: str | None = None) -> Architecture:
    """The model of a GGUF file, with the exact bytes of its tensors. ``header`` is that of the file, or :func:`joined`.
    Raises ShapeError for an architecture or a fact that is not known, and for one part of several."""
    parts = parts_of(header)
    if parts > 1:
        raise ShapeError(path, f"is one of {parts} files; give the first of them, with the others beside it")
    shape = from_config(config_of(header.values, path), path, name=name)
    counted = count(shape).total
    if not header.elements:
        raise ShapeError(path, "holds no tensors (a vocabulary?); give the file with the weights")
    notes = shape.assumptions
    if abs(header.elements - counted) > counted // 20:
        notes = (*notes, f"the file holds {header.elements} parameters where its facts give {counted}")
    millibits = 8000 * header.tensor_bytes // header.elements
    return replace(
        shape,
        weights=uniform(f"GGUF {header.main_type}", millibits, table_millibits=max(millibits, 16000)),
        weight_bytes=header.tensor_bytes,
        drafts=None,
        assumptions=notes,
    )


def parts_of(header: Header) -> int:
    """Files over which the model was split."""
    parts = header.values.get(_PARTS, 1)
    return parts if isinstance(parts, int) and parts > 1 else 1


def joined(headers: Sequence[Header], path: str) -> Header:
    """The header of a model that was split over several files: the first has the facts, all have tensors. Raises
    WeightsError where their number is not the one that the first states."""
    first = headers[0]
    if len(headers) != parts_of(first):
        raise WeightsError(path, f"says that there are {parts_of(first)} files; {len(headers)} are there")
    return replace(
        first,
        values={key: value for key, value in first.values.items() if key != _PARTS},
        tensor_count=sum(header.tensor_count for header in headers),
        elements=sum(header.elements for header in headers),
        tensor_bytes=sum(header.tensor_bytes for header in headers),
    )


_PARTS: Final = "split.count"
