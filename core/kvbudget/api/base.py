"""What every kind is made of: the pydantic bases, bounded field types, and rules that a schema alone cannot say."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from kvbudget import quantity
from kvbudget.errors import QuantityError


class Model(BaseModel):
    """Frozen value with camelCase names in JSON. Unknown keys are an error, never dropped."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over several fields of one object, written twice: ``cel`` for the API server, ``holds`` for Python.

    ``check`` is the stable id (CamelCase), ``field`` the JSON name of the field that the problem is told at (empty: the
    object itself), ``message`` says what is wrong and what to do. A table of objects goes through both in the tests.
    """

    check: str
    field: str
    cel: str
    message: str
    holds: Callable[[Any], bool]

    def as_schema(self) -> dict[str, str]:
        """The rule as an item of ``x-kubernetes-validations``."""
        place = {"fieldPath": f".{self.field}"} if self.field else {}
        return {"rule": self.cel, "message": self.message, "reason": "FieldValueInvalid", **place}


class SpecModel(Model):
    """Part of a manifest. A field that is ``null`` counts as left out, as the API server has it."""

    rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler.resolve_ref_schema(handler(schema))
        if cls.rules:
            made["x-kubernetes-validations"] = [rule.as_schema() for rule in cls.rules]
        return made

    @model_validator(mode="before")
    @classmethod
    def _leave_out_null(cls, data: Any) -> Any:
        if not isinstance(data, dict) or None not in data.values():
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in data.items() if value is not None or key not in known}


class StatusModel(Model):
    """Part of a status. A newer operator may have written more than this release knows, so unknown keys are dropped."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class ListMap:
    """Marks a list of objects that are told apart by ``key``: no key twice; server-side apply merges by it."""

    key: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            **handler(schema),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": [to_camel(self.key)],
        }

    def check(self, items: list[Any]) -> list[Any]:
        """Raises ValueError naming the first key that occurs twice."""
        seen: set[object] = set()
        for item in items:
            value = getattr(item, self.key)
            if value in seen:
                raise ValueError(f"{self.key} {value!r} occurs twice")
            seen.add(value)
        return items


def _no_repeats(items: list[Any]) -> list[Any]:
    for index, item in enumerate(items):
        if item in items[:index]:
            raise ValueError(f"{item!r} occurs twice")
    return items


UniqueItems = (AfterValidator(_no_repeats), Field(json_schema_extra={"x-kubernetes-list-type": "set"}))
"""Metadata of a list of scalars without repeats: ``Annotated[list[T], *UniqueItems]``."""


# --- bounded text -----------------------------------------------------------------------------------------------------

ObjectName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
"""Name of a Kubernetes object (DNS subdomain)."""
AbsolutePath = Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^/[A-Za-z0-9._@+=/-]*$")]
"""Absolute POSIX path without blanks."""
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
LeaveOutNull = BeforeValidator(
    lambda data: {key: item for key, item in data.items() if item is not None} if isinstance(data, dict) else data
)
"""Marks a map whose ``null`` entries count as left out."""
Labels = Annotated[dict[str, LabelValue], Field(max_length=32), LeaveOutNull]
ShortText = Annotated[str, StringConstraints(max_length=256)]
LongText = Annotated[str, StringConstraints(max_length=32768)]
AnyObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""An object of the core API that is passed through as it is; the API server checks it when the pod is made."""


def no_parent_path(field: str) -> Rule:
    """The rule that a path has no ``..`` in it."""
    return Rule(
        "PathLeavesVolume",
        field,
        rf"!has(self.{field}) || !self.{field}.matches('(^|/)\\.\\.(/|$)')",
        "must not contain '..'; write the path without it",
        lambda obj: re.search(r"(^|/)\.\.(/|$)", getattr(obj, field) or "") is None,
    )


# --- quantities -------------------------------------------------------------------------------------------------------

MAX_SAFE_INT = 2**53 - 1
"""Largest integer that survives every JSON reader."""


def _number_to_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _whole(text: str) -> str:
    try:
        value = quantity.parse_int(text)
    except QuantityError as error:
        raise ValueError(error.reason) from error
    if not 0 < value <= MAX_SAFE_INT:
        raise ValueError(f"must be above 0 and at most {MAX_SAFE_INT}")
    return text


def _any_quantity(text: str) -> str:
    try:
        numerator, _ = quantity.parse_ratio(text)
    except QuantityError as error:
        raise ValueError(error.reason) from error
    if numerator < 0:
        raise ValueError("must not be negative")
    return text


def _quantity_schema(cel: str, message: str) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": quantity.PATTERN,
            "maxLength": quantity.MAX_LENGTH,
            "x-kubernetes-validations": [{"rule": cel, "message": message}],
        }
    )


WholeQuantity = Annotated[
    str,
    BeforeValidator(_number_to_text),
    AfterValidator(_whole),
    # quantity().isInteger() is false for 1.5Gi, so the fraction is looked for in the value itself.
    _quantity_schema(
        f"type(self) == int ? self > 0 && self <= {MAX_SAFE_INT} : isQuantity(self) && "
        f"quantity(self).asApproximateFloat() > 0.0 && quantity(self).asApproximateFloat() <= {MAX_SAFE_INT}.0 && "
        "quantity(self).asApproximateFloat() == double(int(quantity(self).asApproximateFloat()))",
        f"must be a whole quantity above 0 and at most {MAX_SAFE_INT}, like 16Gi or 85028077568",
    ),
]
"""A whole, positive quantity; a number in the manifest is kept as its text."""

ResourceQuantity = Annotated[
    str,
    BeforeValidator(_number_to_text),
    AfterValidator(_any_quantity),
    _quantity_schema(
        "type(self) == int ? self >= 0 : isQuantity(self) && !quantity(self).isLessThan(quantity('0'))",
        "must be a quantity and not negative, like 500m or 2Gi",
    ),
]
"""A quantity of a container resource; may have a fraction (``500m``)."""
