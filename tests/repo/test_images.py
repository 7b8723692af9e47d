"""What the images promise, and the parts of their build that are programs: stand-ins for CUDA libraries, requirements
without torch."""

import ctypes
import importlib.util
import re
import shutil
from pathlib import Path

import pytest

import dependencies
import stub_library

ROOT = Path(__file__).resolve().parents[2]
CUDA_ERROR_INVALID_VALUE = 1
DOCKERFILES = sorted((ROOT / "images").glob("*.Dockerfile"))
BASE = re.compile(r"ARG BASE=(python:3\.11-slim-bookworm@sha256:[0-9a-f]{64})")


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Names and arguments, without comments."""
    text = dockerfile.read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def final_stage(dockerfile: Path) -> list[tuple[str, str]]:
    steps = instructions(dockerfile)
    return steps[max(n for n, (name, _) in enumerate(steps) if name == "FROM") :]


def test_both_images_are_made_of_one_base_that_is_pinned_by_digest() -> None:
    """As a default: the build argument BASE takes any other."""
    bases = [BASE.findall(path.read_text()) for path in DOCKERFILES]
    assert len(bases) == 2
    assert bases[0] == bases[1]
    assert len(bases[0]) == 1
    for path in DOCKERFILES:
        froms = [rest for name, rest in instructions(path) if name == "FROM"]
        assert froms == ["${BASE} AS build", "${BASE}"], "nothing but the pinned base is fetched"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_runs_as_a_user_that_kubernetes_can_tell_from_root(dockerfile: Path) -> None:
    """runAsNonRoot needs a number: of a name the kubelet cannot know."""
    users = [rest for name, rest in final_stage(dockerfile) if name == "USER"]
    assert users
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_needs_to_write_nowhere_but_to_tmp(dockerfile: Path) -> None:
    """With a read-only root file system: no bytecode beside the sources, and a home that is a mounted folder."""
    stage = final_stage(dockerfile)
    settings = " ".join(rest for name, rest in stage if name == "ENV").split()
    assert {"PYTHONDONTWRITEBYTECODE=1", "HOME=/tmp"} <= set(settings)
    assert ("WORKDIR", "/tmp") in stage


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_the_code_is_the_last_layer_and_alone_in_it(dockerfile: Path) -> None:
    """Loading an image into the cluster after a change of code rests on it (e2e/kind/last_layer.py)."""
    layers = [(name, rest) for name, rest in final_stage(dockerfile) if name in {"RUN", "COPY", "ADD", "WORKDIR"}]
    assert layers[-1] == ("COPY", "--from=build /build/application /opt/kvbudget/application")
    assert not any("/opt/kvbudget/application" in rest for _, rest in layers[:-1])


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
