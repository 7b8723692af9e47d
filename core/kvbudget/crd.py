"""The CustomResourceDefinitions, from the pydantic models of :mod:`kvbudget.api`.

A structural schema is a small part of what pydantic writes: references are inlined, ``T | None`` becomes ``T``, titles
and ``additionalProperties: false`` go (the API server prunes, and refuses unknown fields under strict validation), and
any keyword that a structural schema does not know stops the generator.
"""

from typing import Any

from pydantic import BaseModel

from kvbudget.api import GPUClass, LLMService
from kvbudget.contract import GROUP, VERSION

Schema = dict[str, Any]

_KEPT = {
    "type",
    "description",
    "enum",
    "default",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}
_DROPPED = {"title", "$defs"}


class SchemaError(TypeError):
    """A model uses a keyword that a structural schema cannot say: a bug of the model, found when the CRDs are made."""


def crds() -> list[dict[str, Any]]:
    """Every CRD as the API server takes it, in the order in which they are to be applied."""
    return [
        _crd(
            GPUClass,
            scope="Cluster",
            plural="gpuclasses",
            short="gpuc",
            columns=[
                _column("Memory", ".spec.memory"),
                _column("Resource", ".spec.resourceName"),
                _column("KV", ".spec.kvPrecisions"),
                _column("Age", ".metadata.creationTimestamp", "date"),
            ],
            subresources={},
        ),
        _crd(
            LLMService,
            scope="Namespaced",
            plural="llmservices",
            short="llm",
            columns=[
                _column("Model", ".status.model"),
                _column("GPU", ".spec.gpu.class"),
                _column("MaxLen", ".status.limits.maxModelLen", "integer"),
                _column("KVTokens", ".status.budget.tokens", "integer", "KV tokens of one replica"),
                _column("Replicas", ".status.replicas", "integer"),
                _column("KV%", ".status.demand.percent", "integer", "Demand on the KV budget over its supply"),
                _column("Ready", _condition("Ready", "status")),
                _column("Age", ".metadata.creationTimestamp", "date"),
                {**_column("Reason", _condition("Ready", "reason")), "priority": 1},
            ],
            subresources={
                "status": {},
                "scale": {
                    "specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector",
                },
            },
        ),
    ]


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of ``model``. Raises :class:`SchemaError` where there is none."""
    source = model.model_json_schema(by_alias=True)
    return _schema(source, source.get("$defs", {}), model.__name__)


def _crd(
    kind: type[BaseModel], *, scope: str, plural: str, short: str, columns: list[Schema], subresources: Schema
) -> dict[str, Any]:
    schema = structural(kind)
    properties = schema["properties"]
    for name in ("apiVersion", "kind"):
        properties[name] = {"type": "string", "description": properties[name]["description"]}
    # The name is all that a schema may say of metadata; named here, a rule can point at it.
    properties["metadata"] = {"type": "object", "properties": {"name": {"type": "string"}}}
    if "status" in properties:
        properties["status"] = _without_defaults(properties["status"])
    # The API server itself asks for apiVersion, kind and metadata, in its own words.
    schema["required"] = ["spec"]
    name = kind.__name__
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "kvbudget"}},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": name,
                "listKind": f"{name}List",
                "plural": plural,
                "singular": name.lower(),
                "shortNames": [short],
                "categories": ["kvbudget"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    **({"subresources": subresources} if subresources else {}),
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _column(name: str, path: str, type_: str = "string", description: str = "") -> Schema:
    column = {"name": name, "type": type_, "jsonPath": path}
    return {**column, "description": description} if description else column


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


def _schema(source: Schema, defs: dict[str, Schema], path: str) -> Schema:
    source = _inline(source, defs)
    if source.get("x-kubernetes-int-or-string"):
        # The only anyOf with types that a structural schema allows.
        return _kept(source, path, also={"anyOf"})
    if "anyOf" in source:
        return _schema(_without_null(source, path), defs, path)
    made = _kept(source, path)
    if "const" in source:
        made["enum"] = [source["const"]]
    if isinstance(made.get("default"), dict):
        # The API server fills an empty object from the defaults of its fields.
        made["default"] = {}
    if "properties" in source:
        made["properties"] = {
            name: _schema(field, defs, f"{path}.{name}") for name, field in source["properties"].items()
        }
    if "items" in source:
        made["items"] = _schema(source["items"], defs, f"{path}[]")
    match source.get("additionalProperties"):
        case dict() as values:
            made["additionalProperties"] = _schema(values, defs, f"{path}.*")
        case True:
            made["x-kubernetes-preserve-unknown-fields"] = True
    return made


def _inline(source: Schema, defs: dict[str, Schema]) -> Schema:
    if "$ref" not in source:
        return source
    own = {key: value for key, value in source.items() if key != "$ref"}
    return {**defs[source["$ref"].removeprefix("#/$defs/")], **own}


def _without_null(source: Schema, path: str) -> Schema:
    """``anyOf: [T, null]`` as T; the description beside it wins, ``default: null`` goes."""
    types = [option for option in source["anyOf"] if option != {"type": "null"}]
    if len(types) != 1:
        raise SchemaError(f"{path}: a structural schema has one type, this has {len(types)}")
    own = {key: value for key, value in source.items() if key != "anyOf" and (key, value) != ("default", None)}
    return {**types[0], **own}


def _kept(source: Schema, path: str, also: frozenset[str] | set[str] = frozenset()) -> Schema:
    handled = {"properties", "items", "additionalProperties", "const"}
    unknown = source.keys() - _KEPT - _DROPPED - handled - also
    if unknown:
        raise SchemaError(f"{path}: not in a structural schema: {', '.join(sorted(unknown))}")
    made = {key: value for key, value in source.items() if key in _KEPT or key in also}
    if "description" in made:
        made["description"] = " ".join(made["description"].replace("``", "").split())
    return made


def _without_defaults(schema: Schema) -> Schema:
    """Status is observed, never defaulted."""
    made = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in made:
        made["properties"] = {name: _without_defaults(field) for name, field in made["properties"].items()}
    if "items" in made:
        made["items"] = _without_defaults(made["items"])
    return made


def to_yaml(crd: dict[str, Any]) -> str:
    """The text of ``crds/<name>.yaml``. Needs PyYAML (extra ``cli``)."""
    import yaml

    return yaml.safe_dump(crd, sort_keys=False, allow_unicode=True, width=110, explicit_start=True)
