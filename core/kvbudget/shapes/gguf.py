"""The header of a .gguf file: the model's facts, and the exact bytes of its tensors without reading one.

Format: github.com/ggml-org/ggml, docs/gguf.md. Versions 2 and 3, little endian. A header is bounded before it is walked
over: by the counts it states, by the length of each text, and by all that is walked over together; published files have
some 50 keys, 2,000 tensors and 600,000 texts (a tokenizer's).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from typing import Final

from kvbudget.errors import ShapeError, WeightsError
from kvbudget.layers import Architecture, uniform
from kvbudget.shapes.config import from_config
from kvbudget.shapes.ggufkeys import config_of, untranslated
from kvbudget.weights import count

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_KEYS: Final = 2**12
_MAX_TENSORS: Final = 2**16
_MAX_ENTRIES: Final = 2**28
"""Of one array of numbers, which is skipped in one step."""
_MAX_STEPS: Final = 2**21
"""Keys, tensors and array entries that are walked over one by one, together."""
_MAX_TEXT_BYTES: Final = 2**25
_MAX_NAME_BYTES: Final = 2**12
_MAX_HEADER_BYTES: Final = 2**28
_LENGTH: Final = struct.Struct("<Q")
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
        self.steps = 0

    def fail(self, reason: str) -> WeightsError:
        return WeightsError(self.path, f"{reason}; download the file again")

    def skip(self, size: int) -> int:
        """Where the next ``size`` bytes begin."""
        if self.at + size > _MAX_HEADER_BYTES:
            raise self.fail(f"has a header of more than {_MAX_HEADER_BYTES} bytes")
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

    def text(self, most: int = _MAX_TEXT_BYTES) -> str:
        length = self.whole()
        if length > most:
            raise self.fail(f"has a text of {length} bytes in its header, where {most} are the most")
        return self.take(length).decode("utf-8", "replace")

    def skip_texts(self, number: int) -> None:
        """Passes over so many texts; a tokenizer has some 600,000."""
        for _ in self.walk(number):
            at = self.skip(_LENGTH.size)
            length = _LENGTH.unpack_from(self.data, at)[0]
            if length > _MAX_TEXT_BYTES:
                raise self.fail(f"has a text of {length} bytes in its header, where {_MAX_TEXT_BYTES} are the most")
            self.skip(length)

    def items(self, what: str, most: int) -> int:
        number = self.whole()
        if number > most:
            raise self.fail(f"says that it has {number} {what}, where {most} are the most")
        return number

    def walk(self, number: int) -> range:
        """``number`` steps. Raises WeightsError where they are more than a header can need."""
        self.steps += number
        if self.steps > _MAX_STEPS:
            raise self.fail(f"has more than {_MAX_STEPS} entries in its header")
        return range(number)

    def value(self, kind: int, *, depth: int = 0) -> object:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY and depth < 2:
            inner, length = self.whole("<I"), self.items("entries of an array", _MAX_ENTRIES)
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
            self.skip_texts(length)
            return length
        for _ in self.walk(length):
            self.value(inner, depth=depth + 1)
        return length


_SHORT_ARRAY: Final = 4096


def read_header(data: bytes | mmap, path: str = "model.gguf", *, whole: bool = False) -> Header:
    """Reads the header at the start of ``data``: any part of the file that holds it, or the ``whole`` file, which must
    then be long enough for its tensors.

    Raises WeightsError for another format, a version that is not known, counts and lengths that no header has, or data
    that end too soon."""
    reader = _Reader(data, path)
    if reader.take(4) != _MAGIC:
        raise reader.fail("is no GGUF file")
    version = reader.whole("<I")
    if version not in _VERSIONS:
        raise WeightsError(path, f"is GGUF of version {version}; versions 2 and 3 in little endian can be read")
    tensors, pairs = reader.items("tensors", _MAX_TENSORS), reader.items("keys", _MAX_KEYS)
    values: dict[str, object] = {}
    for _ in reader.walk(pairs):
        key = reader.text(_MAX_NAME_BYTES)
        values[key] = reader.value(reader.whole("<I"))
    elements = total = 0
    by_type: dict[str, int] = {}
    for _ in reader.walk(tensors):
        name = reader.text(_MAX_NAME_BYTES)
        number, size, kind = _tensor(reader, name)
        elements, total = elements + number, total + size
        by_type[kind] = by_type.get(kind, 0) + size
    if whole and reader.at + total > len(data):
        missing = reader.at + total - len(data)
        raise reader.fail(f"has {len(data)} bytes, at least {missing} fewer than its header says")
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
    shape = from_config({**config_of(header.values, path), **untranslated(header.values)}, path, name=name)
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
