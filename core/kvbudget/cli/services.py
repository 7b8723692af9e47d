"""``plan -f``: LLMService manifests through the very checks that the webhook and the operator call."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvbudget.api import GPUClass, LLMService, parse_service
from kvbudget.checks import Verdict, evaluate
from kvbudget.cli.codes import EXIT_DOES_NOT_FIT, EXIT_FITS
from kvbudget.cli.output import errors_told, print_data, print_text
from kvbudget.cli.reading import class_named, naming, read_documents, read_text
from kvbudget.errors import InputError, Problem
from kvbudget.explain import as_json, explain
from kvbudget.gpu import CATALOGUE
from kvbudget.shape import ModelShape, from_config_text


def plan_services(paths: tuple[str, ...], config: str | None, output: str) -> None:
    """Prints the verdict on every service and ends the program with the code that says whether all fit."""
    with errors_told():
        results = list(_plan(paths, config))
    if output == "table":
        print_text("\n".join(explain(*result) for result in results))
    else:
        items = [as_json(*result) for result in results]
        print_data(items[0] if len(items) == 1 else {"items": items}, output)
    sys.exit(EXIT_DOES_NOT_FIT if any(verdict.errors for verdict, _, _ in results) else EXIT_FITS)


def _plan(paths: tuple[str, ...], config: str | None) -> Iterator[tuple[Verdict, LLMService, GPUClass | None]]:
    shape = None if config is None else from_config_text(read_text(config), config)
    documents = read_documents(paths)
    if not documents.services:
        kinds = [*(["GPUClass"] if documents.gpu_classes else []), *documents.other_kinds]
        found = f"found {', '.join(kinds)}" if kinds else "found nothing"
        raise InputError(", ".join(paths), f"has no LLMService ({found}); give a file with kind: LLMService")
    for path, manifest in documents.services:
        with naming(path, manifest):
            service = parse_service(manifest if shape is None else _with_shape(manifest, shape))
        gpu_class = class_named(service.spec.gpu.class_, documents)
        verdict = evaluate(service, gpu_class, apply=False)
        if gpu_class is None:
            hint = f"put the GPUClass into a file, or use a class of the catalogue: {', '.join(CATALOGUE)}"
            verdict = replace(verdict, notes=(*verdict.notes, Problem("spec.gpu.class", hint, "Catalogue")))
        yield verdict, service, gpu_class


def _with_shape(manifest: dict[str, Any], shape: ModelShape) -> dict[str, Any]:
    """The manifest with the config's shape, unless it has one."""
    spec = manifest.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(model, dict) or model.get("shape") is not None:
        return manifest
    facts = shape.model_dump(by_alias=True, exclude_none=True)
    return {**manifest, "spec": {**spec, "model": {**model, "shape": facts}}}
