"""The parts of the image build that are programs: stand-ins for CUDA libraries, and requirements without torch."""

import ctypes
import importlib.util
import shutil
from pathlib import Path

import pytest

import dependencies
import stub_library

ROOT = Path(__file__).resolve().parents[2]
CUDA_ERROR_INVALID_VALUE = 1


@pytest.fixture
def cuda_runtime(tmp_path: Path) -> Path:
    """A copy of a CUDA library that PyPI's torch for Linux brings."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [path for folder in folders for path in Path(folder).rglob("libcudart.so.*")]
    assert found, "the locked torch brings the CUDA runtime"
    return Path(shutil.copy(found[0], tmp_path))


def test_a_stand_in_loads_and_every_function_fails(cuda_runtime: Path) -> None:
    whole = cuda_runtime.stat().st_size
    stub_library.replace(cuda_runtime)
    assert cuda_runtime.stat().st_size < whole / 10
    count = ctypes.c_int(-1)
    library = ctypes.CDLL(str(cuda_runtime))
    assert library.cudaGetDeviceCount(ctypes.byref(count)) == CUDA_ERROR_INVALID_VALUE
    assert count.value == -1


def test_a_stand_in_of_a_stand_in_is_refused(cuda_runtime: Path) -> None:
    """It has no sections any more: nothing is there to read names from."""
    stub_library.replace(cuda_runtime)
    with pytest.raises(stub_library.Unsupported, match="no section"):
        stub_library.stand_in(cuda_runtime.read_bytes())


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(64)])
def test_what_is_no_64_bit_library_is_refused(content: bytes) -> None:
    with pytest.raises(stub_library.Unsupported, match="not a little-endian x86-64 ELF file"):
        stub_library.stand_in(content)


def test_other_hard_links_keep_the_library(cuda_runtime: Path) -> None:
    kept = cuda_runtime.with_name("kept.so")
    kept.hardlink_to(cuda_runtime)
    before = kept.read_bytes()
    stub_library.replace(cuda_runtime)
    assert kept.read_bytes() == before


def test_another_torch_replaces_torch_and_what_it_brings() -> None:
    blocks = list(dependencies.blocks((ROOT / "requirements" / "worker.txt").read_text()))
    cuda = {block.split("==")[0] for block in blocks if dependencies.CUDA_PACKAGES.match(block)}
    rest = {block.split("==")[0] for block in blocks} - cuda
    assert {"torch", "triton", "nvidia-cublas"} <= cuda
    assert {"safetensors", "tokenizers", "numpy"} <= rest
    assert all("--hash=sha256:" in block for block in blocks)


def test_the_operator_needs_no_torch() -> None:
    blocks = dependencies.blocks((ROOT / "requirements" / "operator.txt").read_text())
    assert [block for block in blocks if dependencies.CUDA_PACKAGES.match(block)] == []
