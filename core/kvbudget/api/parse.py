"""Manifest → model, with every problem in one answer and paths as in the manifest."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvbudget.api.base import SpecModel
from kvbudget.api.gpuclass import GPUClass
from kvbudget.api.service import LLMService
from kvbudget.errors import ObjectError, Problem

_SCHEMA_CHECK = "InvalidField"
"""Check id of everything that the schema itself refuses."""
_UNKNOWN_CHECK = "UnknownField"

_Kind = TypeVar("_Kind", LLMService, GPUClass)


def parse_service(obj: Mapping[str, Any]) -> LLMService:
    """The LLMService of a manifest (or of a watched object). Raises :class:`ObjectError` with every problem found."""
    return _parse(LLMService, obj)


def parse_gpu_class(obj: Mapping[str, Any]) -> GPUClass:
    """The GPUClass of a manifest (or of a watched object). Raises :class:`ObjectError` with every problem found."""
    return _parse(GPUClass, obj)


def _parse(kind: type[_Kind], obj: Mapping[str, Any]) -> _Kind:
    if not isinstance(obj, Mapping):
        raise ObjectError((Problem("", f"must be a {kind.__name__} object, is {_shown(obj)}", _SCHEMA_CHECK),))
    try:
        parsed = kind.model_validate(dict(obj), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        found = (_problem(kind, details) for details in error.errors(include_url=False))
        raise ObjectError(tuple(found)) from error
    broken = tuple(broken_rules(parsed))
    if broken:
        raise ObjectError(broken)
    return parsed


def broken_rules(value: object, path: str = "") -> Iterator[Problem]:
    """Every rule that ``value`` or something inside it breaks, outermost first."""
    if isinstance(value, SpecModel):
        for rule in value.rules:
            if not rule.holds(value):
                yield Problem(_join(path, rule.field), rule.message, rule.check)
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from broken_rules(getattr(value, name), _join(path, field.alias or name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from broken_rules(item, f"{path}[{index}]")


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path and field else path or field


def _problem(kind: type[BaseModel], details: ErrorDetails) -> Problem:
    path = ""
    for part in details["loc"]:
        path = f"{path}[{part}]" if isinstance(part, int) else _join(path, part)
    check = _UNKNOWN_CHECK if details["type"] == "extra_forbidden" else _SCHEMA_CHECK
    return Problem(path, _message(kind, details), check)


def _message(kind: type[BaseModel], details: ErrorDetails) -> str:
    context, given = details.get("ctx", {}), details["input"]
    match details["type"]:
        case "missing":
            return "is required; set it"
        case "extra_forbidden":
            return _unknown(kind, details["loc"])
        case "literal_error":
            hint = " (YAML reads an unquoted On, Off, Yes or No so: quote it)" if isinstance(given, bool) else ""
            return f"must be {context['expected']}; is {_shown(given)}{hint}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}; is {_shown(given)}"
        case "less_than_equal":
            return f"must be at most {context['le']}; is {_shown(given)}"
        case "string_pattern_mismatch":
            return f"must match {context['pattern']}; is {_shown(given)}"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters; has {len(given)}"
        case "string_too_short":
            return f"must have at least {context['min_length']} characters; has {len(given)}"
        case "too_long":
            return f"must have at most {context['max_length']} entries; has {context['actual_length']}"
        case "too_short":
            return f"must have at least {context['min_length']} entries; has {context['actual_length']}"
        case "value_error":
            return str(context["error"])
        case type_ if type_ in _TYPES:
            return f"must be {_TYPES[type_]}; is {_shown(given)}"
        case _:
            return f"{details['msg']}; is {_shown(given)}"


_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "a string; quote it",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}


def _unknown(kind: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    known = _fields_at(kind, loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    if close:
        return f"is not a field; did you mean {close[0]}?"
    return f"is not a field; remove it. Fields here: {', '.join(known)}"


def _fields_at(kind: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    model = kind
    for part in loc:
        if isinstance(part, str):
            field = next(field for name, field in model.model_fields.items() if part in (field.alias, name))
            model = next(model_in(field.annotation))
    return [field.alias or name for name, field in model.model_fields.items()]


def model_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every model class inside a type annotation (``X | None``, ``list[X]``, ``Annotated[X, …]``)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from model_in(argument)


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
