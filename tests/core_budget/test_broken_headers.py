"""Headers that lie about their size: refused with a reason, in a time that does not grow with the lie."""

import json
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.errors import WeightsError
from kvbudget.shapes.files import checkpoint_in, read_model
from kvbudget.shapes.gguf import read_header
from kvbudget.shapes.safetensors import checkpoint_of, header_length, tensors_of

SOON_S = 0.05
"""CPU seconds in which a lie in a small file is found: some hundred times what it takes."""
LONG_S = 15.0
"""CPU seconds for the worst header that is walked over to its bound."""
UINT32, FLOAT32, TEXT, ARRAY = 4, 6, 8, 9


def gguf(tensors: int, keys: int, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def array(inner: int, length: int) -> bytes:
    return text(b"k") + struct.pack("<IIQ", ARRAY, inner, length)


def tensor(dimensions: list[int], kind: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return text(b"t") + sizes + struct.pack("<IQ", kind, 0)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


LIES = {
    "tensors": (gguf(2**60, 0), "says that it has 1152921504606846976 tensors, where 65536 are the most"),
    "a few more tensors": (gguf(2**16 + 1, 0), "says that it has 65537 tensors"),
    "keys": (gguf(0, 2**60), "says that it has 1152921504606846976 keys, where 4096 are the most"),
    "a million keys": (gguf(0, 10**6, (text(b"k") + struct.pack("<II", UINT32, 1)) * 4096), "says that it has 1000000"),
    "the name of a key": (gguf(0, 1, text(b"k", 2**40)), "has a text of 1099511627776 bytes"),
    "a text": (gguf(0, 1, text(b"k") + struct.pack("<I", TEXT) + text(b"v", 2**40)), "has a text of 1099511627776"),
    "a text of 2^63": (gguf(0, 1, text(b"k", 2**63)), "has a text of 9223372036854775808 bytes"),
    "numbers": (gguf(0, 1, array(FLOAT32, 2**60)), "says that it has 1152921504606846976 entries of an array"),
    "fewer numbers": (gguf(0, 1, array(FLOAT32, 2**27)), "has a header of more than"),
    "texts": (gguf(0, 1, array(TEXT, 2**27)), "has more than 2097152 entries in its header"),
    "a text in an array": (gguf(0, 1, array(TEXT, 1) + text(b"v", 2**40)), "has a text of 1099511627776 bytes"),
    "arrays of arrays": (gguf(0, 1, array(ARRAY, 2**28)), "has more than 2097152 entries in its header"),
    "deeper arrays": (
        gguf(0, 1, array(ARRAY, 1) + struct.pack("<IQIQIQ", ARRAY, 1, ARRAY, 1, ARRAY, 1)), "of the unknown type 9"
    ),
    "the name of a tensor": (gguf(1, 0, text(b"t", 2**40)), "has a text of 1099511627776 bytes"),
    "dimensions": (gguf(1, 0, text(b"t") + struct.pack("<I", 2**31)), "with 2147483648 dimensions"),
    "the size of a tensor": (gguf(1, 0, tensor([2**63] * 8)), "not whole blocks"),
    "its end": (gguf(3, 0, tensor([32])), "within its header"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_gguf_header_that_lies_is_refused_at_once(lie: str) -> None:
    data, said = LIES[lie]
    with within(SOON_S), pytest.raises(WeightsError, match=said.replace("^", r"\^")) as raised:
        read_header(data, "m.gguf")
    assert str(raised.value).startswith("m.gguf: ")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(gguf(0, 1, array(TEXT, 2**21 - 1) + bytes(8 * 2**21)), id="two million empty texts"),
        pytest.param(gguf(0, 1, array(ARRAY, 2**18) + struct.pack("<IQ", ARRAY, 0) * 2**18), id="arrays of nothing"),
        pytest.param(gguf(2**16, 0, tensor([32] * 8) * 2**16), id="as many tensors as may be"),
    ],
)
def test_the_longest_header_that_is_walked_over_takes_seconds(data: bytes) -> None:
    with within(LONG_S):
        read_header(data)


def test_a_gguf_file_that_is_shorter_than_its_tensors_is_refused(tmp_path: Path) -> None:
    data = gguf(1, 0, tensor([32])) + bytes(32 * 4)
    assert read_header(data, whole=True).tensor_bytes == 128
    with pytest.raises(WeightsError, match="at least 1 fewer than its header says"):
        read_header(data[:-1], whole=True)
    (tmp_path / "m.gguf").write_bytes(data[:-1])
    with pytest.raises(WeightsError, match="download the file again"):
        read_model(tmp_path / "m.gguf")


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=120))
def test_whatever_a_header_counts_it_is_read_or_refused_soon(tensors: int, keys: int, body: bytes) -> None:
    with within(SOON_S):
        try:
            header = read_header(gguf(tensors, keys, body))
        except WeightsError:
            return
    assert (header.tensor_count, header.tensor_bytes >= 0) == (tensors, True)


# --- safetensors ------------------------------------------------------------------------------------------------------


def entry(begin: int, end: int) -> dict[str, object]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


def write(folder: Path, header: bytes, *, length: int | None = None, data: bytes = b"") -> Path:
    stated = len(header) if length is None else length
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", stated) + header + data)
    return folder


@pytest.mark.parametrize("length", [0, 1, 2**25 + 1, 10**8, 2**50, 2**64 - 1])
def test_a_header_length_that_no_file_has_is_refused_at_once(tmp_path: Path, length: int) -> None:
    with within(SOON_S), pytest.raises(WeightsError, match=f"says that its header has {length} bytes"):
        checkpoint_in(write(tmp_path, b"{}", length=length))
    with pytest.raises(WeightsError, match="says that its header has"):
        header_length(struct.pack("<Q", length), "m.safetensors")


@pytest.mark.parametrize("kept", [0, 1, 20, 60])
def test_a_header_that_was_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    whole = json.dumps({"a": entry(0, 4), "b": entry(4, 8)}).encode()
    with within(SOON_S), pytest.raises(WeightsError, match="within its header"):
        checkpoint_in(write(tmp_path, whole[:kept], length=len(whole)))
    with pytest.raises(WeightsError, match=r"is not JSON|says that its header has"):
        checkpoint_in(write(tmp_path, whole[:kept]))


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a": entry(0, 4), "b": entry(3, 8)}, "tensors a and b lie over each other"),
        ({"a": entry(0, 8), "b": entry(2, 4)}, "tensors a and b lie over each other"),
        ({"b": entry(0, 4), "a": entry(0, 4)}, "lie over each other"),
        ({"a": entry(0, 8), "b": entry(8, 9), "c": entry(7, 8)}, "tensors a and c lie over each other"),
    ],
)
def test_tensors_that_lie_over_each_other_are_refused(tensors: dict[str, object], said: str) -> None:
    with pytest.raises(WeightsError, match=said):
        tensors_of(json.dumps(tensors).encode(), "m.safetensors")


@given(st.lists(st.integers(0, 9), max_size=6).flatmap(lambda sizes: st.permutations(list(enumerate(sizes)))))
def test_tensors_beside_each_other_are_taken_in_any_order_and_an_overlap_never(order: list[tuple[int, int]]) -> None:
    sizes = [size for _, size in sorted(order)]
    entries = {f"t{i}": entry(sum(sizes[:i]), sum(sizes[: i + 1])) for i, _ in order}
    assert checkpoint_of([("m", tensors_of(json.dumps(entries).encode(), "m"))]).weight_bytes == sum(sizes)
    if sum(sizes):
        over = {**entries, "over": entry(sum(sizes) - 1, sum(sizes) + 1)}
        with pytest.raises(WeightsError, match="lie over each other"):
            tensors_of(json.dumps(over).encode(), "m")


def test_deep_nesting_is_refused() -> None:
    with within(1.0), pytest.raises(WeightsError, match="is not JSON"):
        tensors_of(b'{"a":' + b"[" * 10**6, "m.safetensors")
