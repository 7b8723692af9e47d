"""Triton finds what an image brings, wherever it lies, and keeps its own beside it."""

import json
from pathlib import Path

import pytest
import triton

from kvbudget_kernels import shipped
from kvbudget_kernels.shipped import ShippedCache


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """What the image brings (one kernel, the launcher), and Triton's own cache."""
    image, own = tmp_path / "image", tmp_path / "own"
    kernel = image / "KEY"
    kernel.mkdir(parents=True)
    for name in ("k.cubin", "k.json", "k.ptx", "k.source"):
        (kernel / name).write_text(name)
    built_at = {name: f"/somewhere/else/KEY/{name}" for name in ("k.source", "k.ptx", "k.cubin", "k.json")}
    (kernel / "__grp__k.json").write_text(json.dumps({"child_paths": built_at}))
    launcher = shipped.launcher_folder(image)
    launcher.mkdir()
    (launcher / "cuda_utils.so").write_text("library")
    monkeypatch.setenv(shipped.FOLDER, str(image))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(own))
    return image, own


def test_a_shipped_kernel_is_found_where_it_lies_now(folders: tuple[Path, Path]) -> None:
    image, own = folders
    shipped.trim(image)
    assert ShippedCache("KEY").get_group("k.json") == {
        "k.cubin": str(image / "KEY/k.cubin"), "k.json": str(image / "KEY/k.json"),
    }  # fmt: skip
    assert sorted(path.name for path in (image / "KEY").iterdir()) == ["__grp__k.json", "k.cubin", "k.json"]
    assert not own.exists()


def test_a_kernel_of_which_a_file_is_missing_is_not_found(folders: tuple[Path, Path]) -> None:
    image, _ = folders
    shipped.trim(image)
    (image / "KEY/k.cubin").unlink()
    assert ShippedCache("KEY").get_group("k.json") is None


def test_what_is_not_shipped_is_kept_in_triton_s_own_cache(folders: tuple[Path, Path]) -> None:
    image, own = folders
    before = sorted(image.rglob("*"))
    cache = ShippedCache("OTHER")
    assert cache.get_group("k.json") is None
    path = cache.put("text", "k.json", binary=False)
    cache.put_group("k.json", {"k.json": path})
    assert ShippedCache("OTHER").get_group("k.json") == {"k.json": path} == {"k.json": str(own / "OTHER/k.json")}
    assert sorted(image.rglob("*")) == before


def test_the_launcher_is_the_one_of_this_triton_whatever_its_key(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    image, _ = folders
    wanted = str(image / f"launcher-{triton.__version__}/cuda_utils.so")
    assert ShippedCache("ANY").get_file("cuda_utils.so") == wanted
    monkeypatch.setattr(triton, "__version__", "0.0")
    assert ShippedCache("ANY").get_file("cuda_utils.so") is None


def test_without_a_folder_it_is_triton_s_own_cache(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(shipped.FOLDER)
    assert ShippedCache("KEY").get_group("k.json") is None
    assert ShippedCache("KEY").get_file("cuda_utils.so") is None
