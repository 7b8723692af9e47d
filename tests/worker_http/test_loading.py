"""What the loader makes of failures that are the user's to fix."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvbudget.errors import InputError, ShapeError
from kvbudget_worker.loading import load_model
from support.tinymodel import make_tiny_model, tiny_plan


def test_a_pool_that_does_not_fit_names_the_field(tmp_path: Path) -> None:
    plan = tiny_plan(make_tiny_model(tmp_path / "tiny"), pages=1 << 34)
    with pytest.raises(InputError) as caught:
        load_model(plan, "cpu")
    assert caught.value.path == "spec.kvCache.memoryPercent"
    assert "17179869184 pages" in caught.value.reason
    assert "GPUClass test" in caught.value.reason


def test_a_gpu_resource_without_a_device(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this host has a device")
    plan = tiny_plan(make_tiny_model(tmp_path / "tiny"), resource_name="nvidia.com/gpu")
    with pytest.raises(InputError, match=r"KVBUDGET_DEVICE: the pod holds nvidia.com/gpu but no device is found"):
        load_model(plan, None)


@contextmanager
def as_a_user() -> Iterator[None]:
    """Root may read everything; a pod does not run as root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("locked", [".", "tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors"])
def test_what_may_not_be_read_is_named(locked: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_model(tmp_path_factory.mktemp("locked"))
    for parent in (folder, *folder.parents[:2]):  # pytest closes its folders to others
        parent.chmod(0o755)
    plan = tiny_plan(folder)
    load_model(plan, "cpu")  # what it imports is there now
    (folder / locked).chmod(0)
    with as_a_user(), pytest.raises(InputError, match=f"{(folder / locked).name}.*ermission") as caught:
        load_model(plan, "cpu")
    assert "check the volume and its permissions" in str(caught.value) or "copy" in str(caught.value)


def test_weights_of_another_shape(tmp_path: Path) -> None:
    plan = tiny_plan(make_tiny_model(tmp_path / "tiny"))
    shape = plan.model.shape.model_copy(update={"layers": 3})
    other = plan.model_copy(update={"model": plan.model.model_copy(update={"shape": shape})})
    with pytest.raises(ShapeError, match="layers"):
        load_model(other, "cpu")
