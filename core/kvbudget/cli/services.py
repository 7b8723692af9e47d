"""``plan -f``: LLMService manifests through the very checks that the webhook and the operator call."""

from dataclasses import replace
from typing import Any

from kvbudget.api import GPUClass, LLMService, parse_service
from kvbudget.checks import Verdict, evaluate
from kvbudget.cli.output import print_data, print_text
from kvbudget.cli.reading import Documents, class_named, naming, read_documents, read_text
from kvbudget.errors import InputError, Problem
from kvbudget.explain import as_json, explain
from kvbudget.gpu import nearest
from kvbudget.shape import ModelShape, from_config_text

Judged = tuple[Verdict, LLMService, GPUClass | None]


def read_services(paths: tuple[str, ...], config: str | None) -> Documents:
    """What the files hold, at least one service; services without a shape get that of ``config``. Raises InputError."""
    documents = read_documents(paths)
    if not documents.services:
        kinds = [*(["GPUClass"] if documents.gpu_classes else []), *documents.other_kinds]
        found = f"found {', '.join(kinds)}" if kinds else "found nothing"
        raise InputError(", ".join(paths), f"has no LLMService ({found}); give a file with kind: LLMService")
    if config is None:
        return documents
    shape = from_config_text(read_text(config, "a config.json"), config)
    return replace(documents, services=tuple((path, _with_shape(one, shape)) for path, one in documents.services))


def the_only_service(documents: Documents, option: str) -> tuple[str, dict[str, Any]]:
    """The file and the manifest of the one service. Raises InputError where there are several."""
    if len(documents.services) > 1:
        names = ", ".join(str(one.get("metadata", {}).get("name", "?"))[:40] for _, one in documents.services[:5])
        raise InputError(option, f"takes one LLMService, and the files hold {len(documents.services)} ({names})")
    return documents.services[0]


def judge_services(documents: Documents) -> list[Judged]:
    """The verdict on every service, by the checks of `kubectl apply`. Raises InputError for one that is no service."""
    return [_judged(path, manifest, documents) for path, manifest in documents.services]


def print_services(results: list[Judged], output: str) -> None:
    """Every verdict, for people or for programs."""
    if output == "table":
        print_text("\n".join(explain(*result) for result in results))
        return
    items = [as_json(*result) for result in results]
    print_data(items[0] if len(items) == 1 else {"items": items}, output)


def _judged(path: str, manifest: dict[str, Any], documents: Documents) -> Judged:
    with naming(path, manifest):
        service = parse_service(manifest)
    gpu_class = class_named(service.spec.gpu.class_, documents)
    verdict = evaluate(service, gpu_class, apply=False)
    if gpu_class is None:
        verdict = replace(verdict, errors=tuple(without_cluster(problem, service) for problem in verdict.errors))
    return verdict, service, gpu_class


def without_cluster(problem: Problem, service: LLMService) -> Problem:
    """The problem as one who has only files can mend it."""
    if problem.check != "UnknownGPUClass":
        return problem
    name = service.spec.gpu.class_
    near = ", ".join(nearest(name)) or "`kvbudget gpus` lists them"
    fix = f"add the GPUClass with another -f, or use one of the catalogue's: {near}"
    return Problem(problem.path, f"GPUClass {name} is in none of the files; {fix}", problem.check)


def _with_shape(manifest: dict[str, Any], shape: ModelShape) -> dict[str, Any]:
    """The manifest with the config's shape, unless it has one."""
    spec = manifest.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(model, dict) or model.get("shape") is not None:
        return manifest
    facts = shape.model_dump(by_alias=True, exclude_none=True)
    return {**manifest, "spec": {**spec, "model": {**model, "shape": facts}}}
