"""The command line: the one shell around the pure core. click, rich and yaml come with the extra ``[cli]`` and are
imported where they are used, so that importing the core needs none of them.

Exit codes of ``kvbudget plan``: 0 everything fits, 1 something does not, 2 bad usage or unreadable input.
"""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kvbudget.api import GPUClass, LLMService, parse_gpu_class, parse_service
from kvbudget.checks import Verdict, evaluate
from kvbudget.crd import crds, to_yaml
from kvbudget.errors import InputError, ObjectError, Problem
from kvbudget.explain import as_json, explain
from kvbudget.gpu import CATALOGUE
from kvbudget.manifests import read_manifests
from kvbudget.shape import ModelShape, from_config_text

if TYPE_CHECKING:
    import click

EXIT_FITS: Final = 0
EXIT_DOES_NOT_FIT: Final = 1
EXIT_BAD_INPUT: Final = 2
MAX_INPUT_BYTES: Final = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class Documents:
    """What the files hold. ``services``: (file, raw manifest), since ``--config`` may still add a shape. The
    ``other_kinds`` are named where no service is among them."""

    services: tuple[tuple[str, dict[str, Any]], ...]
    gpu_classes: dict[str, GPUClass]
    other_kinds: tuple[str, ...]


def main() -> None:
    """Entry point. Never shows a traceback for what a user gave."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller: Python then has no stream at all
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (as long as the process)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show ≤ still shows the rest
    try:
        command = app()
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"error: {error.name} is missing; install the command line with: pip install 'kvbudget[cli]'\n"
        )
        sys.exit(EXIT_BAD_INPUT)
    try:
        try:
            command()
        finally:
            sys.stdout.flush()
    except OSError as error:  # input is read elsewhere, so this is the output: a full disk, a pipe that was closed
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"error: the output cannot be written: {error.strerror or error}\n")
        sys.stdout = io.StringIO()  # what is left cannot be written at exit either
        sys.exit(EXIT_BAD_INPUT)


def app() -> "click.Group":
    """The click command group."""
    import click
    import yaml  # noqa: F401  (reading files needs it: say at once that it is missing)

    @click.group(context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(package_name="kvbudget")
    def group() -> None:
        """KV memory as a budget: plan LLM serving in tokens."""

    @group.command("plan")
    @click.option("-f", "--file", "paths", multiple=True, required=True, help="YAML or JSON manifests; - is stdin.")
    @click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
    @click.option("--config", "config", help="A Hugging Face config.json that gives services without a shape theirs.")
    def plan(paths: tuple[str, ...], output: str, config: str | None) -> None:
        """Print every term of the KV budget of each LLMService, what fits and what would.

        A GPUClass in the files wins over the built-in catalogue of the same name.

        Exit code: 0 everything fits, 1 something does not, 2 bad usage or unreadable input.
        """
        try:
            results = list(_plan(paths, config))
        except InputError as error:
            _fail(error)
        if output == "json":
            items = [as_json(*result) for result in results]
            click.echo(json.dumps(items[0] if len(items) == 1 else {"items": items}, indent=2, ensure_ascii=False))
        else:
            _print_text("\n".join(explain(*result) for result in results))
        sys.exit(EXIT_DOES_NOT_FIT if any(verdict.errors for verdict, _, _ in results) else EXIT_FITS)

    @group.command("crd")
    def crd() -> None:
        """Print the CustomResourceDefinitions as YAML."""
        click.echo("".join(to_yaml(definition) for definition in crds()), nl=False)

    return group


def _fail(error: InputError) -> NoReturn:
    for line in str(error).splitlines():
        # A name in a file must not steer the terminal.
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        sys.stderr.write(f"error: {shown}\n")
    sys.exit(EXIT_BAD_INPUT)


def _print_text(text: str) -> None:
    """Plain text; on a terminal the outcome in colour."""
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from rich.console import Console
    from rich.text import Text

    styles = {"FITS": "bold green", "DOES NOT FIT": "bold red", "REFUSED": "bold red"}
    styles |= {"  error:": "red", "  warning:": "yellow", "  note:": "dim"}
    console = Console(soft_wrap=True)
    for line in text.splitlines():
        style = next((style for start, style in styles.items() if line.startswith(start)), "")
        console.print(Text(line, style=style))


# --- reading ----------------------------------------------------------------------------------------------------------


def _plan(paths: tuple[str, ...], config: str | None) -> Iterator[tuple[Verdict, LLMService, GPUClass | None]]:
    shape = None if config is None else from_config_text(_read(config), config)
    documents = _documents(paths)
    if not documents.services:
        kinds = [*(["GPUClass"] if documents.gpu_classes else []), *documents.other_kinds]
        found = f"found {', '.join(kinds)}" if kinds else "found nothing"
        raise InputError(", ".join(paths), f"has no LLMService ({found}); give a file with kind: LLMService")
    for path, manifest in documents.services:
        with _naming(path, manifest):
            service = parse_service(manifest if shape is None else _with_shape(manifest, shape))
        gpu_class = _gpu_class(service.spec.gpu.class_, documents)
        verdict = evaluate(service, gpu_class, apply=False)
        if gpu_class is None:
            hint = f"put the GPUClass into a file, or use a class of the catalogue: {', '.join(CATALOGUE)}"
            verdict = replace(verdict, notes=(*verdict.notes, Problem("spec.gpu.class", hint, "Catalogue")))
        yield verdict, service, gpu_class


def _documents(paths: tuple[str, ...]) -> Documents:
    services: list[tuple[str, dict[str, Any]]] = []
    gpu_classes: dict[str, GPUClass] = {}
    other: list[str] = []
    for path in paths:
        for manifest in read_manifests(_read(path), path):
            kind = manifest.get("kind")
            if kind == "LLMService":
                services.append((path, manifest))
            elif kind == "GPUClass":
                with _naming(path, manifest):
                    gpu_class = parse_gpu_class(manifest)
                name = gpu_class.metadata.name
                if name in gpu_classes:
                    raise InputError(path, f"GPUClass {name} occurs twice; leave out the one that does not count")
                gpu_classes[name] = gpu_class
            else:
                other.append(str(kind)[:40] if kind else "an object without kind")
    return Documents(tuple(services), gpu_classes, tuple(other))


def _gpu_class(name: str, documents: Documents) -> GPUClass | None:
    if name in documents.gpu_classes:
        return documents.gpu_classes[name]
    entry = CATALOGUE.get(name)
    return None if entry is None else parse_gpu_class(entry.manifest(name))


def _with_shape(manifest: dict[str, Any], shape: ModelShape) -> dict[str, Any]:
    """The manifest with the config's shape, unless it has one."""
    spec = manifest.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(model, dict) or model.get("shape") is not None:
        return manifest
    facts = shape.model_dump(by_alias=True, exclude_none=True)
    return {**manifest, "spec": {**spec, "model": {**model, "shape": facts}}}


@contextmanager
def _naming(path: str, manifest: dict[str, Any]) -> Iterator[None]:
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


def _read(path: str) -> str:
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
        raise InputError(path, f"is larger than {MAX_INPUT_BYTES // 1024**2} MiB; give a Kubernetes manifest")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(path, f"is no text (byte {error.start} is not UTF-8); give a Kubernetes manifest") from None


if __name__ == "__main__":
    main()
