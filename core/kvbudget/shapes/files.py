"""The shell around the parsers: opens a model's folder or one of its files. Only this module reads files here."""

import json
import mmap
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvbudget.errors import InputError, ShapeError, WeightsError
from kvbudget.layers import Architecture
from kvbudget.shapes import gguf, safetensors
from kvbudget.shapes.config import from_config
from kvbudget.shapes.mistral import from_params
from kvbudget.weights import total_parameters

INDEX: Final = "model.safetensors.index.json"
MISTRAL_INDEX: Final = "consolidated.safetensors.index.json"
_MAX_CONFIG_BYTES: Final = 64 * 2**20


def read_model(path: Path, *, name: str | None = None) -> Architecture:
    """The model in a folder (config.json or params.json, with safetensors files beside it if they are there), in a
    .gguf file, or of a config.json or params.json alone. ``name`` fills what the files leave out from the known models.

    Raises InputError (ShapeError, WeightsError) with the file and what to do."""
    if path.is_dir():
        return _read_folder(path, name)
    if not path.is_file():
        raise InputError(str(path), "is not there; give a model's folder, a .gguf file or a config.json")
    if path.suffix == ".gguf":
        return _read_gguf(path, name)
    return _read_config(path, name)


def _read_folder(folder: Path, name: str | None) -> Architecture:
    found = next((folder / file for file in ("config.json", "params.json") if (folder / file).is_file()), None)
    if found is None:
        ggufs = sorted(folder.glob("*.gguf"))
        firsts = [file for file in ggufs if (split := _SPLIT.search(file.name)) is None or int(split["number"]) == 1]
        if len(firsts) == 1:
            return _read_gguf(firsts[0], name)
        held = f"{len(firsts)} .gguf files; give one of them" if firsts else "none of config.json, params.json, *.gguf"
        raise ShapeError(str(folder), f"holds {held}")
    shape = _read_config(found, name)
    checkpoint = checkpoint_in(folder, mistral=found.name == "params.json")
    if checkpoint is None:
        return shape
    counted = total_parameters(shape, drafts=True)
    notes = shape.assumptions
    if not checkpoint.packed and abs(checkpoint.elements - counted) > counted // 20:
        notes = (*notes, f"the checkpoint holds {checkpoint.elements} elements where its configuration gives {counted}")
    return replace(shape, weight_bytes=checkpoint.weight_bytes, assumptions=notes)


def _read_config(path: Path, name: str | None) -> Architecture:
    parsed = _json(path)
    if path.name == "params.json" or (isinstance(parsed, dict) and "n_layers" in parsed and "dim" in parsed):
        return from_params(parsed, str(path), name=name)
    beside = path.with_name("hf_quant_config.json")
    if isinstance(parsed, dict) and beside.is_file():  # modelopt's lists are only there
        extra = _json(beside)
        told = extra.get("quantization") if isinstance(extra, dict) else None
        own = parsed.get("quantization_config")
        if isinstance(told, dict):
            parsed = {**parsed, "quantization_config": {**told, **(own if isinstance(own, dict) else {})}}
    return from_config(parsed, str(path), name=name)


def _json(path: Path) -> object:
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise ShapeError(str(path), "is larger than 64 MiB; give the model's own config.json")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        detail = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "not UTF-8"
        raise ShapeError(str(path), f"is not JSON ({detail}); download the file again") from None


def _read_gguf(path: Path, name: str | None) -> Architecture:
    header = _gguf_header(path)
    split = _SPLIT.search(path.name)
    if gguf.parts_of(header) > 1 and split is not None and int(split["number"]) == 1:
        others = [
            path.with_name(f"{path.name[: split.start()]}-{part:05}-of-{split['of']}.gguf")
            for part in range(2, min(int(split["of"]), _MAX_PARTS) + 1)
        ]
        missing = [other.name for other in others if not other.is_file()]
        if missing:
            raise WeightsError(str(path), f"needs {missing[0]} beside it, which is not there; download it")
        header = gguf.joined([header, *(_gguf_header(other) for other in others)], str(path))
    return gguf.from_header(header, str(path), name=name)


_SPLIT: Final = re.compile(r"-(?P<number>\d{5})-of-(?P<of>\d{5})\.gguf$")
_MAX_PARTS: Final = 1000


def _gguf_header(path: Path) -> gguf.Header:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise WeightsError(str(path), "is empty; download the file again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return gguf.read_header(data, str(path), whole=True)


def checkpoint_in(folder: Path, *, mistral: bool = False) -> safetensors.Checkpoint | None:
    """Exact bytes of the safetensors files of a folder, from their headers; None where there are none.

    Mistral's repositories hold the weights twice: ``consolidated*`` belong to params.json, the others to config.json.
    Raises WeightsError where a file that the index, or the numbers in the names, ask for is missing or cut off."""
    index = folder / (MISTRAL_INDEX if mistral else INDEX)
    if index.is_file():
        names, _ = safetensors.shards_of(_json(index), str(index))
    else:
        found = sorted(file.name for file in folder.glob("*.safetensors") if not file.name.startswith(_NOT_WEIGHTS))
        own = [name for name in found if name.startswith("consolidated") == mistral]
        names = _with_all_parts(tuple(own or found))
    if not names:
        return None
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise WeightsError(str(folder), f"lacks {missing[0]} ({len(missing)} of {len(names)} missing); download it")
    return safetensors.checkpoint_of((name, _tensors(folder / name)) for name in names)


_NOT_WEIGHTS: Final = ("adapter_", "training_", "optimizer")
_PART: Final = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<of>\d{5})\.safetensors$")


def _with_all_parts(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, and those of the parts that their numbers say there must be."""
    wanted = set(names)
    for part in filter(None, map(_PART.match, names)):
        of = min(int(part["of"]), _MAX_PARTS)
        wanted.update(f"{part['stem']}-{number:05}-of-{part['of']}.safetensors" for number in range(1, of + 1))
    return tuple(sorted(wanted))


def _tensors(path: Path) -> dict[str, safetensors.Tensor]:
    with path.open("rb") as file:
        length = safetensors.header_length(file.read(safetensors.LENGTH_BYTES), str(path))
        header = file.read(length)
    if len(header) != length:
        raise WeightsError(
            str(path), f"ends within its header, after {len(header)} of {length} bytes; download it again"
        )
    return safetensors.tensors_of(header, str(path), file_bytes=path.stat().st_size)
