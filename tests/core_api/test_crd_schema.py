"""Traps on the way from pydantic to a structural schema."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from kvbudget import crd
from kvbudget.api import GPUClass, LLMService
from kvbudget.api.base import Rule, SpecModel
from kvbudget.api.parse import model_in

ROOT = Path(__file__).resolve().parents[2]


class Inner(SpecModel):
    """Described here."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("NotOne", "size", "self.size != 1", "must not be 1", lambda inner: inner.size != 1),
    )

    size: Annotated[int, Field(ge=1, le=9)] = 3
    """In ``units``
    of one."""


class Outer(SpecModel):
    plain: Inner
    defaulted: Inner = Inner(size=4)
    """Described there."""
    optional: Inner | None = None
    constant: Literal["only"] = "only"
    sizes: Annotated[list[Inner], Field(max_length=2)] | None = None


def test_references_are_inlined_and_descriptions_made_one_line() -> None:
    made = crd.structural(Outer)
    assert "$defs" not in made
    plain = made["properties"]["plain"]
    assert plain["description"] == "Described here."
    assert plain["properties"]["size"]["description"] == "In units of one."
    assert made["properties"]["defaulted"]["description"] == "Described there."
    assert made["properties"]["sizes"]["items"]["properties"].keys() == {"size"}


def test_an_optional_field_has_its_type_and_no_default() -> None:
    optional = crd.structural(Outer)["properties"]["optional"]
    assert optional["type"] == "object"
    assert not {"anyOf", "default", "nullable"} & optional.keys()


def test_an_object_is_defaulted_by_its_own_fields() -> None:
    assert crd.structural(Outer)["properties"]["defaulted"]["default"] == {}


def test_a_constant_is_an_enum_of_one() -> None:
    assert crd.structural(Outer)["properties"]["constant"]["enum"] == ["only"]


def test_a_rule_stands_beside_its_fields() -> None:
    assert crd.structural(Outer)["properties"]["plain"]["x-kubernetes-validations"] == [
        {"rule": "self.size != 1", "message": "must not be 1", "reason": "FieldValueInvalid", "fieldPath": ".size"}
    ]


@pytest.mark.parametrize(
    "annotation",
    [Annotated[int, Field(gt=0)], Annotated[int, Field(multiple_of=16)], tuple[int, str], int | str],
    ids=["exclusiveMinimum", "multipleOf", "prefixItems", "two types"],
)
def test_what_a_structural_schema_cannot_say_stops_the_generator(annotation: Any) -> None:
    model = type("Wrong", (SpecModel,), {"__annotations__": {"field": annotation}})
    with pytest.raises(crd.SchemaError, match="structural schema"):
        crd.structural(model)


def _nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from _nodes(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _nodes(schema[key], f"{path}[]")


NODES = [
    node
    for one in crd.crds()
    for part in ("spec", "status")
    if part in (fields := one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"])
    for node in _nodes(fields[part], f"{one['spec']['names']['kind']}.{part}")
]


def test_every_list_string_and_map_is_bounded() -> None:
    bounds = {"array": "maxItems", "string": "maxLength"}
    for path, schema in NODES:
        kind = schema.get("type")
        if kind in bounds and "enum" not in schema:
            assert bounds[kind] in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path


def test_no_field_is_a_float() -> None:
    assert [path for path, schema in NODES if schema.get("type") == "number"] == []


def test_every_field_is_described() -> None:
    assert [path for path, schema in NODES if "[]" not in path[-2:] and not schema.get("description")] == []


def test_status_has_no_defaults() -> None:
    assert [path for path, schema in NODES if ".status" in path and "default" in schema] == []


def test_every_list_of_named_objects_is_merged_by_name() -> None:
    lists = {path: schema for path, schema in NODES if schema.get("type") == "array"}
    named = {path for path, schema in lists.items() if "name" in schema["items"].get("properties", {})}
    assert named == {path for path in named if lists[path].get("x-kubernetes-list-type") == "map"}


def _models(model: type[Any], seen: set[type[Any]]) -> Iterator[type[Any]]:
    if model not in seen:
        seen.add(model)
        yield model
        for field in model.model_fields.values():
            for inner in model_in(field.annotation):
                yield from _models(inner, seen)


def test_a_check_id_always_means_the_same() -> None:
    messages: dict[str, set[str]] = {}
    seen: set[type[Any]] = set()
    for kind in (LLMService, GPUClass):
        for model in _models(kind, seen):
            for rule in getattr(model, "rules", ()):
                messages.setdefault(rule.check, set()).add(rule.message)
    assert "OneSource" in messages
    assert {check: found for check, found in messages.items() if len(found) > 1} == {}


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "scripts" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_files_are_fresh(generate: ModuleType) -> None:
    assert generate.stale() == []


def test_a_stale_a_missing_and_a_left_over_file_are_found(generate: ModuleType, tmp_path: Path) -> None:
    generate.write(tmp_path)
    assert generate.stale(tmp_path) == []
    (tmp_path / "docs/api.md").write_text("old")
    (tmp_path / "crds/gone.yaml").write_text("old")
    (tmp_path / "crds/llmservices.kvbudget.dev.yaml").unlink()
    assert generate.stale(tmp_path) == [
        "crds/llmservices.kvbudget.dev.yaml is missing",
        "docs/api.md is stale",
        "crds/gone.yaml is left over",
    ]
    generate.write(tmp_path)
    assert generate.stale(tmp_path) == []
