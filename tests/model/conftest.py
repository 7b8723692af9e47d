"""Models of these tests: the real small one, and tiny ones."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kvbudget_worker.runner import Runner
from support.tinymodel import TinyModel, make_tiny_model, tiny_plan


@pytest.fixture(scope="session", autouse=True)
def _quiet_oracle() -> None:
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    torch.manual_seed(0)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbudget"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder that ``make weights`` makes."""
    folder = _cache() / "weights" / "smollm2"
    if not folder.is_dir():
        pytest.fail(f"{folder} is missing: run `make weights`")
    return folder


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The file that ``make weights`` converts."""
    file = _cache() / "downloads" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not file.is_file():
        pytest.fail(f"{file} is missing: run `make weights`")
    return file


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "tiny")


@pytest.fixture
def make_runner(tmp_path: Path) -> Callable[..., Runner]:
    """A runner over a new tiny model; keyword arguments go to :func:`support.tinymodel.tiny_plan`."""

    def make(model: TinyModel | None = None, **changes: object) -> Runner:
        folder = make_tiny_model(tmp_path / "model", model)
        return Runner.load(tiny_plan(folder, model, **changes), "cpu")  # type: ignore[arg-type]

    return make
