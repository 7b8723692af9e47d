"""Exact bytes and parameters of a checkpoint, from the headers of its safetensors files and nothing else.

A file begins with eight bytes, the length of a JSON header, which names each tensor with its dtype, shape and place.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

from kvbudget.errors import WeightsError

LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 32 * 2**20
"""Some 200,000 tensors. The format allows 100 MB; the largest published header is below 10 MB."""
_BITS: Final[dict[str, int]] = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_ADVICE: Final = "download the file again"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: ``begin`` … ``end`` are bytes after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def elements(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All files of one checkpoint together."""

    weight_bytes: int
    elements: int
    bytes_by_dtype: Mapping[str, int]

    @property
    def packed(self) -> bool:
        """Whether most bytes are integers, which pack several weights into one element: then ``elements`` is not the
        number of parameters."""
        integers = sum(
            size for dtype, size in self.bytes_by_dtype.items() if dtype in ("U8", "I8", "I32", "U32", "I64")
        )
        return 2 * integers > self.weight_bytes


def header_length(start: bytes, path: str) -> int:
    """Bytes of the JSON header, from the first eight bytes of a file. Raises WeightsError where they cannot be one."""
    if len(start) < LENGTH_BYTES:
        raise WeightsError(path, f"has {len(start)} bytes and so no safetensors header; {_ADVICE}")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise WeightsError(path, f"says that its header has {length} bytes: it is no safetensors file; {_ADVICE}")
    return length


def tensors_of(header: bytes, path: str, *, file_bytes: int | None = None) -> dict[str, Tensor]:
    """The tensors that a header (without its length) lists. With ``file_bytes``, the size of the whole file, checks
    that it ends where its last tensor does. Raises WeightsError."""
    try:
        parsed = json.loads(header)
    except (ValueError, RecursionError):
        raise WeightsError(path, f"has a header that is not JSON; {_ADVICE}") from None
    if not isinstance(parsed, dict):
        raise WeightsError(path, f"has a header that is no object; {_ADVICE}")
    found = {name: _tensor(name, entry, path) for name, entry in parsed.items() if name != "__metadata__"}
    end = _end(found, path)
    if file_bytes is not None and file_bytes != LENGTH_BYTES + len(header) + end:
        missing = LENGTH_BYTES + len(header) + end - file_bytes
        raise WeightsError(path, f"has {file_bytes} bytes, {missing} fewer than its header says; {_ADVICE}")
    return found


def _end(tensors: Mapping[str, Tensor], path: str) -> int:
    """Where the last tensor ends. Raises WeightsError where two have bytes in common."""
    end, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin < end and tensor.begin < tensor.end:
            reason = f"has a header in which tensors {before[:100]} and {name[:100]} lie over each other"
            raise WeightsError(path, f"{reason}; {_ADVICE}")
        if tensor.end > end:
            end, before = tensor.end, name
    return end


def _tensor(name: str, entry: object, path: str) -> Tensor:
    dtype, shape, offsets = (
        entry.get(k) if isinstance(entry, dict) else None for k in ("dtype", "shape", "data_offsets")
    )
    if _is_sizes(shape) and _is_sizes(offsets) and len(offsets) == 2 and isinstance(dtype, str) and dtype in _BITS:
        tensor = Tensor(dtype, tuple(shape), *offsets)
        if -(-tensor.elements * _BITS[dtype] // 8) == tensor.end - tensor.begin:
            return tensor
    raise WeightsError(path, f"has a header in which tensor {name[:100]} is not described; {_ADVICE}")


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) <= 16 and all(type(n) is int and 0 <= n < 2**62 for n in value)


def checkpoint_of(files: Iterable[tuple[str, Mapping[str, Tensor]]]) -> Checkpoint:
    """The sum over the files of a checkpoint, each with its name. Raises WeightsError where two hold one tensor."""
    owners: dict[str, str] = {}
    by_dtype: dict[str, int] = {}
    elements = 0
    for path, tensors in files:
        for name, tensor in tensors.items():
            if name in owners:
                raise WeightsError(
                    path, f"holds tensor {name}, which {owners[name]} holds too; remove one of the files"
                )
            owners[name] = path
            by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.end - tensor.begin
            elements += tensor.elements
    return Checkpoint(sum(by_dtype.values()), elements, by_dtype)


def shards_of(index: object, path: str) -> tuple[tuple[str, ...], int | None]:
    """File names of a model.safetensors.index.json, and the total size that it states. Raises WeightsError."""
    mapping = index.get("weight_map") if isinstance(index, Mapping) else None
    if not isinstance(mapping, Mapping) or not mapping or not all(isinstance(f, str) for f in mapping.values()):
        raise WeightsError(path, f"has no weight_map that names the files; {_ADVICE}")
    names = tuple(sorted({str(name) for name in mapping.values()}))
    strange = [name for name in names if "/" in name or "\\" in name or name.startswith(".")]
    if strange:
        raise WeightsError(path, f"names the file {strange[0]}, which is not beside it")
    metadata = index.get("metadata") if isinstance(index, Mapping) else None
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    return names, total if isinstance(total, int) and not isinstance(total, bool) and total > 0 else None
