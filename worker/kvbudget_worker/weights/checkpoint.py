"""One view of a model's files, whatever their format: its config, and its tensors under Hugging Face's names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from kvbudget.errors import UnsupportedError, WeightsError
from kvbudget_worker.model.config import ModelConfig
from kvbudget_worker.weights.gguf import GGUFFile
from kvbudget_worker.weights.gguf_model import parse_header, to_gguf_name, undo_permutation
from kvbudget_worker.weights.safetensors_model import SafetensorsFolder


class Checkpoint(Protocol):
    """``path`` names it in messages. ``tensor`` may return a view of a file map: copy before writing to it; raises
    WeightsError when the tensor is missing."""

    path: str
    config: ModelConfig

    def has(self, name: str) -> bool: ...

    def tensor(self, name: str) -> torch.Tensor: ...


class GGUFCheckpoint:
    """A model in one GGUF file; tensors come as fp32, Q and K in Hugging Face's row order."""

    def __init__(self, file: GGUFFile) -> None:
        self.path = str(file.path)
        self._file = file
        self.config = parse_header(file)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._file.metadata

    def has(self, name: str) -> bool:
        return to_gguf_name(name) in self._file.tensors

    def tensor(self, name: str) -> torch.Tensor:
        values = undo_permutation(name, self._file.tensor(to_gguf_name(name)), self.config)
        return torch.from_numpy(values if values.flags.writeable else values.copy())


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that ``path`` is, or the only one in the folder ``path``. Raises WeightsError when it holds
    several."""
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise WeightsError(
            str(path), f"holds {len(found)} GGUF files ({found[0].name}, …): name one of them in the source's path"
        )
    return found[0] if found else None


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a folder with config.json and safetensors, a GGUF file, or a folder with one. Raises WeightsError or
    ShapeError with the path and the fix, UnsupportedError for what we know but cannot run."""
    if not path.exists():
        raise WeightsError(str(path), "does not exist: check spec.model.source and the volume that it names")
    if path.is_dir() and SafetensorsFolder.present(path):
        return SafetensorsFolder(path)
    gguf = find_gguf(path)
    if gguf is not None:
        return GGUFCheckpoint(GGUFFile(gguf))
    if path.is_file():
        raise UnsupportedError(str(path), "is neither a folder nor a .gguf file; point the source at one of these")
    raise WeightsError(
        str(path), "holds neither model.safetensors (or its index) nor a .gguf file: copy the weights into it"
    )
