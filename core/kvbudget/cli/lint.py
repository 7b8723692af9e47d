"""``kvbudget lint``: every manifest below a folder, by the checks of `kubectl apply`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click

from kvbudget.api import GPUClass, LLMService, parse_gpu_class, parse_service
from kvbudget.checks import evaluate
from kvbudget.cli.codes import EXIT_BAD_INPUT, EXIT_DOES_NOT_FIT, EXIT_FITS
from kvbudget.cli.output import output_option, print_data, print_text
from kvbudget.cli.reading import read_text
from kvbudget.cli.services import without_cluster
from kvbudget.errors import InputError, ObjectError, Problem
from kvbudget.gpu import CATALOGUE, CatalogueEntry, lookup
from kvbudget.manifests import numbered_manifests
from kvbudget.quantity import format_bytes, parse_int

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_OURS: Final = ("kvbudget.dev", "LLMService", "GPUClass")
"""A file below a folder that has none of these words is somebody else's."""


@dataclass(frozen=True, slots=True)
class Found:
    """One object, and where it is: ``document`` counts from 1."""

    file: str
    document: int
    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of an object."""

    at: Found
    severity: Literal["error", "warning"]
    problem: Problem


@click.command()
@click.option("-f", "--file", "paths", multiple=True, required=True, metavar="DIR|FILE", help="- is stdin.")
@output_option
def lint(paths: tuple[str, ...], output: str) -> None:
    """Check every LLMService and GPUClass in files and folders: file, document, field, and what to do.

    The checks are those of `kubectl apply`, so what they refuse the cluster refuses too. Of a folder all .yaml, .yml
    and .json files below it are read, but for hidden ones and those that do not mention kvbudget. A service's class may
    be in any of the files; else the built-in catalogue has it.

    Exit code: 0 nothing is wrong (there may be warnings), 1 problems, 2 bad usage, or a file that cannot be read.
    """
    found: list[Found] = []
    unreadable: list[InputError] = []
    files = 0
    for path in paths:
        for file, text in _texts(path, unreadable):
            files += 1
            try:
                found.extend(Found(file, number, manifest) for number, manifest in numbered_manifests(text, file))
            except InputError as error:
                unreadable.append(error)
    ours = [one for one in found if one.manifest.get("kind") in ("LLMService", "GPUClass")]
    findings = list(_findings(ours))
    if not ours and not unreadable:
        unreadable.append(InputError(", ".join(paths), "has no LLMService and no GPUClass; give their file or folder"))
    _print(files, len(ours), findings, unreadable, output)
    if unreadable:
        sys.exit(EXIT_BAD_INPUT)
    sys.exit(EXIT_DOES_NOT_FIT if any(one.severity == "error" for one in findings) else EXIT_FITS)


def _texts(path: str, unreadable: list[InputError]) -> Iterator[tuple[str, str]]:
    """The files of a path, with their text. What cannot be read goes to ``unreadable``."""
    folder = Path(path)
    try:
        is_folder = path not in ("-", "") and folder.is_dir()
    except (OSError, ValueError) as error:
        unreadable.append(InputError(repr(path)[:200], f"cannot be read: {error}; check the path"))
        return
    for name in (str(file) for file in _below(folder, unreadable)) if is_folder else [path]:
        try:
            text = read_text(name)
        except InputError as error:
            unreadable.append(error)
            continue
        if not is_folder or any(word in text for word in _OURS):
            yield name, text


def _below(folder: Path, unreadable: list[InputError]) -> Iterator[Path]:
    """Files of a folder and of those below it, but for hidden ones and what is no file (a pipe would be waited for);
    links to folders are not followed."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        unreadable.append(InputError(str(folder), f"cannot be read: {error.strerror or error}; check the path"))
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if not entry.is_symlink():
                yield from _below(entry, unreadable)
        elif entry.suffix in _SUFFIXES and entry.is_file():
            yield entry


def _findings(ours: list[Found]) -> Iterator[Finding]:
    classes: dict[str, GPUClass] = {}
    services: list[tuple[Found, LLMService]] = []
    for one in ours:
        try:
            if one.manifest["kind"] == "LLMService":
                services.append((one, parse_service(one.manifest)))
                continue
            gpu_class = parse_gpu_class(one.manifest)
        except ObjectError as error:
            for problem in error.problems:
                yield Finding(one, "error", problem)
            continue
        except RecursionError:
            reason = "is nested without end (a YAML alias inside itself?); write it out"
            yield Finding(one, "error", Problem("", reason, "InvalidField"))
            continue
        name = gpu_class.metadata.name
        if name in classes:
            reason = f"{name} is also in another document; the first one counts here"
            yield Finding(one, "warning", Problem("metadata.name", reason, "ClassTwice"))
        classes.setdefault(name, gpu_class)
        for problem in _class_warnings(gpu_class):
            yield Finding(one, "warning", problem)
    for one, service in services:
        verdict = evaluate(service, _class_of(service, classes), apply=True)
        for problem in verdict.errors:
            yield Finding(one, "error", without_cluster(problem, service))
        for problem in verdict.warnings:
            yield Finding(one, "warning", problem)


def _class_of(service: LLMService, classes: dict[str, GPUClass]) -> GPUClass | None:
    name = service.spec.gpu.class_
    entry = CATALOGUE.get(name)
    return classes.get(name) or (None if entry is None else parse_gpu_class(entry.manifest(name)))


def _class_warnings(gpu_class: GPUClass) -> Iterator[Problem]:
    """Memory as the box says it, not as the driver reports it."""
    known, given = lookup(gpu_class.metadata.name), parse_int(gpu_class.spec.memory)
    if isinstance(known, CatalogueEntry) and given > known.memory_high_bytes:
        reason = (
            f"{gpu_class.spec.memory} is more than the {format_bytes(known.memory_high_bytes)} that drivers report for "
            f"this type; set {known.memory}, or what your own devices report"
        )
        yield Problem("spec.memory", reason, "MemoryAboveDriver")


def _print(files: int, objects: int, findings: list[Finding], unreadable: list[InputError], output: str) -> None:
    if output != "table":
        print_data(
            {
                "schema": "kvbudget/lint/v1",
                "files": files,
                "objects": objects,
                "problems": [_finding_json(one) for one in findings],
                "unreadable": [{"file": error.path, "message": error.reason} for error in unreadable],
            },
            output,
        )
        return
    for one in findings:
        where = (
            f"{one.at.file}: document {one.at.document}: {one.at.manifest['kind']} {_name(one.at.manifest)}".rstrip()
        )
        print_text(f"{where}: {one.severity}: {one.problem}\n")
    for error in unreadable:
        click.echo(f"error: {error}", err=True)
    errors = sum(one.severity == "error" for one in findings)
    counts = (_count(errors, "error"), _count(len(findings) - errors, "warning"))
    print_text(f"{_count(objects, 'object')} in {_count(files, 'file')}: {', '.join(counts)}\n")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _finding_json(one: Finding) -> dict[str, object]:
    return {
        "file": one.at.file,
        "document": one.at.document,
        "kind": one.at.manifest["kind"],
        "name": _name(one.at.manifest),
        "severity": one.severity,
        "field": one.problem.path,
        "check": one.problem.check,
        "message": one.problem.message,
    }


def _name(manifest: dict[str, Any]) -> str:
    metadata = manifest.get("metadata")
    return str(metadata.get("name", ""))[:80] if isinstance(metadata, dict) else ""
