"""A Hugging Face folder: config.json and model.safetensors, or several shards and their index. Files stay mapped."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from kvbudget.errors import WeightsError
from kvbudget_worker.model.config import read_config, read_eos_ids

_ONE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""Others are codes of a quantisation; taken for values they would be served as nonsense."""
_COPY = "copy it again and compare its checksum"


class SafetensorsFolder:
    """See :class:`kvbudget_worker.weights.checkpoint.Checkpoint`. Tensors keep the dtype they have in the file."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self.config = read_eos_ids(read_config(folder / "config.json"), folder / "generation_config.json")
        names = [_ONE] if (folder / _ONE).exists() else _shards(folder / _INDEX)
        self._owner: dict[str, Any] = {}
        self._files: dict[str, Path] = {}
        for name in names:
            handle = _open(folder / name)
            for tensor in handle.keys():  # noqa: SIM118 (a safetensors handle is no dict)
                self._owner[tensor] = handle
                self._files[tensor] = folder / name

    @staticmethod
    def present(folder: Path) -> bool:
        return (folder / _ONE).exists() or (folder / _INDEX).exists()

    def has(self, name: str) -> bool:
        return name in self._owner

    def tensor(self, name: str) -> torch.Tensor:
        handle = self._owner.get(name)
        if handle is None:
            raise WeightsError(self.path, f"has no tensor {name}: it is no complete model of its config.json")
        try:
            found: torch.Tensor = handle.get_tensor(name)
        except SafetensorError as e:
            raise WeightsError(str(self._files[name]), f"tensor {name} cannot be read ({e}): {_COPY}") from None
        if found.dtype not in _DTYPES:
            raise WeightsError(
                str(self._files[name]), f"tensor {name} is {found.dtype}: use BF16, FP16 or FP32 weights of this model"
            )
        return found


def _open(path: Path) -> Any:
    try:
        path.open("rb").close()  # to safetensors, a file that may not be read is not there
        return safe_open(str(path), framework="pt", device="cpu")
    except FileNotFoundError:
        raise WeightsError(str(path), f"named by {_INDEX} but not there: copy all shards of the model") from None
    except OSError as e:
        raise WeightsError(
            str(path), f"cannot be read ({e.strerror or e}): check the volume and its permissions"
        ) from None
    except SafetensorError as e:
        raise WeightsError(str(path), f"the file is damaged or truncated ({e}): {_COPY}") from None


def _shards(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise WeightsError(str(index), f"no valid index of shards ({e}): {_COPY}") from None
    outside = [n for n in names if not isinstance(n, str) or Path(n).name != n]
    if outside:
        raise WeightsError(str(index), f"names a file outside its folder ({outside[0]}): {_COPY}")
    return names
