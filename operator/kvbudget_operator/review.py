"""One AdmissionReview in, one out. Pure: the class comes from a lookup that the caller has filled."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvbudget.api import GPUClass, parse_gpu_class, parse_service
from kvbudget.checks import evaluate
from kvbudget.errors import ObjectError, Problem
from kvbudget_operator.gather import class_name

Lookup = Callable[[str], Mapping[str, Any] | None]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_INVALID = 422
_BAD_REQUEST = 400
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

    DELETE, objects under deletion and updates that leave the spec as it is always pass.
    """
    if _passes(request):
        return answer(request)
    obj, old = request.get("object"), request.get("oldObject")
    if not isinstance(obj, Mapping):
        return refuse(request, [Problem("object", "is missing from the request", "InvalidField")], code=_BAD_REQUEST)
    match _kind(request):
        case "LLMService":
            errors, warnings = _review_service(obj, old if isinstance(old, Mapping) else None, lookup)
        case "GPUClass":
            errors, warnings = _review_class(obj), ()
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
        "reason": "Invalid" if code == _INVALID else "BadRequest",
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
    try:
        service = parse_service(obj)
    except ObjectError as error:
        return error.problems, ()
    before = None
    if old is not None:
        try:
            before = parse_service(old)
        except ObjectError:  # stored by another release: nothing of it can be compared
            before = None
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


def _review_class(obj: Mapping[str, Any]) -> Sequence[Problem]:
    try:
        parse_gpu_class(obj)
    except ObjectError as error:
        return error.problems
    return ()


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
