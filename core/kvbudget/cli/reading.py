"""Files with manifests, read with the file's name in every problem."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvbudget.api import GPUClass, parse_gpu_class
from kvbudget.cli.codes import MAX_INPUT_BYTES
from kvbudget.errors import InputError, ObjectError
from kvbudget.gpu import CATALOGUE
from kvbudget.manifests import read_manifests


@dataclass(frozen=True, slots=True)
class Documents:
    """What the files hold. ``services``: (file, raw manifest), since ``--config`` may still add a shape. The
    ``other_kinds`` are named where no service is among them."""

    services: tuple[tuple[str, dict[str, Any]], ...]
    gpu_classes: dict[str, GPUClass]
    other_kinds: tuple[str, ...]


def read_documents(paths: tuple[str, ...]) -> Documents:
    """Every object in the files. Raises InputError."""
    services: list[tuple[str, dict[str, Any]]] = []
    gpu_classes: dict[str, GPUClass] = {}
    other: list[str] = []
    for path in paths:
        for manifest in read_manifests(read_text(path), path):
            kind = manifest.get("kind")
            if kind == "LLMService":
                services.append((path, manifest))
            elif kind == "GPUClass":
                with naming(path, manifest):
                    gpu_class = parse_gpu_class(manifest)
                name = gpu_class.metadata.name
                if name in gpu_classes:
                    raise InputError(path, f"GPUClass {name} occurs twice; leave out the one that does not count")
                gpu_classes[name] = gpu_class
            else:
                other.append(str(kind)[:40] if kind else "an object without kind")
    return Documents(tuple(services), gpu_classes, tuple(other))


def class_named(name: str, documents: Documents) -> GPUClass | None:
    """The class of the files, else that of the catalogue."""
    if name in documents.gpu_classes:
        return documents.gpu_classes[name]
    entry = CATALOGUE.get(name)
    return None if entry is None else parse_gpu_class(entry.manifest(name))


@contextmanager
def naming(path: str, manifest: dict[str, Any]) -> Iterator[None]:
    """Problems of an object begin with its file, kind and name."""
    try:
        yield
    except ObjectError as error:
        metadata = manifest.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        where = f"{path}: {manifest['kind']} {name}".rstrip()
        raise InputError("", "\n".join(f"{where}: {problem}" for problem in error.problems)) from None
    except RecursionError:
        raise InputError(path, "is nested without end (a YAML alias inside itself?); write it out") from None


def read_text(path: str, what: str = "a Kubernetes manifest") -> str:
    """The text of a file, or of stdin for ``-``. Raises :class:`InputError` for all that is no text of sane size."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}; check the path") from None
    except ValueError:
        raise InputError(repr(path), "is no path; check it") from None
    if len(data) > MAX_INPUT_BYTES:
        raise InputError(path, f"is larger than {MAX_INPUT_BYTES // 1024**2} MiB; give {what}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(path, f"is no text (byte {error.start} is not UTF-8); give {what}") from None
