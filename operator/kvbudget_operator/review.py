"""One AdmissionReview in, one out. Pure: the class comes from a lookup that the caller has filled."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from kvbudget.api import GPUClass, LLMService, parse_gpu_class, parse_service
from kvbudget.checks import evaluate
from kvbudget.errors import ObjectError, Problem
from kvbudget.quantity import format_bytes, parse_int
from kvbudget_operator.gather import class_name

Lookup = Callable[[str], Mapping[str, Any] | None]
_Kind = TypeVar("_Kind", LLMService, GPUClass)
_Found = tuple[Problem, ...]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_INVALID = 422
_BAD_REQUEST = 400
_REASONS = {_INVALID: "Invalid", _BAD_REQUEST: "BadRequest", 503: "ServiceUnavailable"}
_PATH_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_MAX_WARNING = 256
"""The API server cuts longer ones, and all of them beyond 4096 characters together."""
_MAX_WARNINGS = 4096


class NotAReview(ValueError):
    """The body is no AdmissionReview; the message says what is missing."""


def parse_request(body: object) -> Mapping[str, Any]:
    """The ``request`` of an AdmissionReview. Raises NotAReview."""
    request = body.get("request") if isinstance(body, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise NotAReview("the body must be an AdmissionReview (admission.k8s.io/v1) with request.uid")
    return request


def classes_needed(request: Mapping[str, Any]) -> frozenset[str]:
    """Names of the GPUClasses that :func:`review` will look up: none where it passes without looking."""
    if _kind(request) != "LLMService" or _passes(request):
        return frozenset()
    found = (class_name(obj) for obj in (request.get("object"), request.get("oldObject")) if isinstance(obj, Mapping))
    return frozenset(name for name in found if name is not None and _NAME.fullmatch(name))


def review(request: Mapping[str, Any], lookup: Lookup) -> dict[str, Any]:
    """The AdmissionReview that answers ``request``: every problem of the object in one message, warnings beside it.

    DELETE, objects under deletion and updates that leave the spec as it is always pass. A field that the schema refuses
    (stored before a rule, or while no webhook answered) and that the update leaves as it is passes too, with a warning,
    as the API server itself has it.
    """
    if _passes(request):
        return answer(request)
    obj, old = request.get("object"), request.get("oldObject")
    if not isinstance(obj, Mapping):
        return refuse(request, [Problem("object", "is missing from the request", "InvalidField")], code=_BAD_REQUEST)
    old = old if isinstance(old, Mapping) else None
    match _kind(request):
        case "LLMService":
            errors, warnings = _review_service(obj, old, lookup)
        case "GPUClass":
            errors, warnings = _review_class(obj, old)
        case other:
            unexpected = Problem("kind", f"{other} is not reviewed here; fix the webhook's rules", "InvalidField")
            return refuse(request, [unexpected], code=_BAD_REQUEST)
    return refuse(request, errors, warnings) if errors else answer(request, warnings)


def answer(request: Mapping[str, Any], warnings: Sequence[Problem] = ()) -> dict[str, Any]:
    """Allowed."""
    return _answer(request, {"allowed": True}, warnings)


def refuse(
    request: Mapping[str, Any], errors: Sequence[Problem], warnings: Sequence[Problem] = (), *, code: int = _INVALID
) -> dict[str, Any]:
    """Denied. ``details.causes`` is what kubectl prints, line by line; ``message`` is for all other clients."""
    obj = request.get("object")
    metadata = obj.get("metadata") if isinstance(obj, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    causes = [{"reason": "FieldValueInvalid", "field": each.path, "message": each.message} for each in errors]
    status = {
        "code": code,
        "status": "Failure",
        "reason": _REASONS.get(code, "InternalError"),
        "message": "\n".join(str(each) for each in errors),
        "details": {"kind": _kind(request), "name": name or "", "causes": causes},
    }
    return _answer(request, {"allowed": False, "status": status}, warnings)


def _answer(request: Mapping[str, Any], response: dict[str, Any], warnings: Sequence[Problem]) -> dict[str, Any]:
    texts: list[str] = []
    for warning in warnings:
        text = str(warning)
        text = text if len(text) <= _MAX_WARNING else f"{text[: _MAX_WARNING - 1]}…"
        if sum(map(len, texts)) + len(text) <= _MAX_WARNINGS:
            texts.append(text)
    response = {"uid": request["uid"], **response, **({"warnings": texts} if texts else {})}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _review_service(
    obj: Mapping[str, Any], old: Mapping[str, Any] | None, lookup: Lookup
) -> tuple[Sequence[Problem], Sequence[Problem]]:
    before, old_problems = _parsed(parse_service, old)
    service, problems = _parsed(parse_service, obj)
    if service is None:
        return _ratcheted(problems, obj, old_problems, old)
    gpu_class = _class(lookup, service.spec.gpu.class_)
    if isinstance(gpu_class, Problem):
        return [gpu_class], ()
    old_class = None if before is None else _class(lookup, before.spec.gpu.class_)
    verdict = evaluate(
        service, gpu_class, old=before, old_gpu_class=None if isinstance(old_class, Problem) else old_class
    )
    return verdict.errors, verdict.warnings


def _class(lookup: Lookup, name: str) -> GPUClass | Problem | None:
    found = lookup(name)
    if found is None:
        return None
    try:
        return parse_gpu_class(found)
    except ObjectError as error:
        reasons = "; ".join(str(problem) for problem in error.problems)
        return Problem(
            "spec.gpu.class", f"GPUClass {name} is itself invalid, correct it first: {reasons}", "InvalidClass"
        )


def _review_class(obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> tuple[Sequence[Problem], Sequence[Problem]]:
    before, old_problems = _parsed(parse_gpu_class, old)
    gpu_class, problems = _parsed(parse_gpu_class, obj)
    if gpu_class is None:
        return _ratcheted(problems, obj, old_problems, old)
    return (), () if before is None else tuple(_class_shrinks(before, gpu_class))


def _class_shrinks(before: GPUClass, after: GPUClass) -> Iterator[Problem]:
    """What an edit takes away from the services of the class; they themselves are not asked."""
    then = "services of this class that no longer fit keep their last plan and say why (Accepted=False)"
    old_bytes, new_bytes = parse_int(before.spec.memory), parse_int(after.spec.memory)
    if new_bytes < old_bytes:
        text = f"shrinks from {format_bytes(old_bytes)} to {format_bytes(new_bytes)}"
        yield Problem("spec.memory", f"{text}: the others' pods are replaced; {then}", "ClassShrinks")
    for path, old_offer, new_offer in (
        ("spec.weightPrecisions", before.spec.weight_precisions, after.spec.weight_precisions),
        ("spec.kvPrecisions", before.spec.kv_precisions, after.spec.kv_precisions),
    ):
        gone = [precision for precision in old_offer if precision not in new_offer]
        if gone:
            yield Problem(path, f"no longer offers {', '.join(gone)}: {then}", "ClassShrinks")


def _parsed(parse: Callable[[Mapping[str, Any]], _Kind], obj: Mapping[str, Any] | None) -> tuple[_Kind | None, _Found]:
    """What ``obj`` says, or None and every problem of it."""
    if obj is None:
        return None, ()
    try:
        return parse(obj), ()
    except ObjectError as error:
        return None, error.problems


def _ratcheted(
    problems: _Found, obj: Mapping[str, Any], old_problems: _Found, old: Mapping[str, Any] | None
) -> tuple[_Found, _Found]:
    """``problems`` apart: errors, and as warnings those that the old object has too, of the same value."""
    kept = tuple(each for each in problems if each in old_problems and _at(obj, each.path) == _at(old, each.path))
    return tuple(each for each in problems if each not in kept), kept


def _at(obj: object, path: str) -> object:
    """The value at a problem's path (``spec.podTemplate.env[0].name``); None where there is none."""
    for name, index in _PATH_PART.findall(path):
        if index:
            obj = obj[int(index)] if isinstance(obj, Sequence) and int(index) < len(obj) else None
        else:
            obj = obj.get(name) if isinstance(obj, Mapping) else None
    return obj


def _kind(request: Mapping[str, Any]) -> str:
    kind = request.get("kind")
    return str(kind.get("kind")) if isinstance(kind, Mapping) else ""


def _passes(request: Mapping[str, Any]) -> bool:
    obj, old = request.get("object"), request.get("oldObject")
    if request.get("operation") not in ("CREATE", "UPDATE"):
        return True
    if not isinstance(obj, Mapping):
        return False
    metadata = obj.get("metadata")
    is_leaving = isinstance(metadata, Mapping) and bool(metadata.get("deletionTimestamp"))
    return is_leaving or (isinstance(old, Mapping) and old.get("spec") == obj.get("spec"))
