"""Models as the bundled worker serves them: what ``spec.model`` of a service means.

In order: ``spec.model.shape`` (single facts there win over the table), then the table of models that the planner knows
too (``shapes.table``), by the same names. A model of the table that the worker cannot run is refused with the reason.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kvbudget.errors import Problem, ShapeError
from kvbudget.shape import GEOMETRY, ModelShape, contradiction, from_config
from kvbudget.shapes import config, table
from kvbudget.weights import count, stored_bytes

if TYPE_CHECKING:
    from kvbudget.api import LLMService

_PATH = "spec.model.name"
_FACTS = (
    "layers, hiddenSize, intermediateSize, attentionHeads, kvHeads, headDim, vocabSize, maxPositionEmbeddings; "
    "they are in the model's config.json"
)


def named(name: str) -> ModelShape:
    """The shape of a model of the table, with the bytes of its checkpoint. Raises ShapeError for a name that is not
    there, or stands for several, and for a model that the bundled worker cannot run.

    >>> named("meta-llama/Llama-3.1-8B").kv_heads, named("llama-3.1-8b") == named("meta-llama/Llama-3.1-8B")
    (8, True)
    """
    found = lookup(name)
    if isinstance(found, Problem):
        raise ShapeError(found.path, found.message)
    return found


def lookup(name: str) -> ModelShape | Problem:
    """:func:`named`, with a Problem (check ``ShapeUnknown`` or ``ModelNotServed``) instead of an exception."""
    found = table.matching(name)
    if len(found) == 1:
        return _served(found[0])
    hint = "set spec.model.shape" if not found else f"it may be {' or '.join(found)}; give one of these"
    return Problem("spec.model.shape", f"shape of {name} is unknown: {hint} ({_FACTS})", "ShapeUnknown")


def served_names() -> tuple[str, ...]:
    """Names of the table whose models the bundled worker runs, sorted."""
    return tuple(name for name in table.known_names() if isinstance(_served(name), ModelShape))


@cache
def _served(name: str) -> ModelShape | Problem:
    facts = table.facts(name) or {}
    try:
        shape = from_config(facts, _PATH)
        model = config.from_config(facts, _PATH)
        if facts.get("quantization_config"):
            raise ShapeError(_PATH, "its checkpoint is quantised, and the worker reads BF16, FP16 and FP32 weights")
        if model.is_multimodal:
            raise ShapeError(_PATH, "it has a vision tower, and the worker reads text alone")
    except ShapeError as error:
        reason = f"{name} is known, but the bundled worker does not run it: {error.reason}"
        return Problem(_PATH, reason, "ModelNotServed")
    return shape.model_copy(update={"weight_bytes": stored_bytes(model, count(model))})


def resolve(service: "LLMService") -> ModelShape | Problem:
    """The shape of a service's model. A Problem (check ``ShapeUnknown``, ``ModelNotServed`` or ``ShapeInvalid``) where
    facts are missing or contradict each other. A whole ``spec.model.shape`` needs no known name."""
    given = service.spec.model.shape
    facts = {} if given is None else {k: v for k, v in given.model_dump().items() if v is not None}
    known = lookup(service.spec.model.name or service.metadata.name)
    merged = _merged(known, facts)
    missing = [n for n, f in ModelShape.model_fields.items() if f.is_required() and n not in merged]
    if missing:
        if isinstance(known, Problem) and (not facts or known.check == "ModelNotServed"):
            return known
        aliases = ", ".join(str(ModelShape.model_fields[n].alias) for n in missing)
        name = service.spec.model.name or service.metadata.name
        reason = f"shape of {name} is unknown: spec.model.shape lacks {aliases} ({_FACTS})"
        return Problem("spec.model.shape", reason, "ShapeUnknown")
    try:
        shape = ModelShape.model_validate(merged)
    except ValidationError as error:
        return Problem("spec.model.shape", _first_reason(error), "ShapeInvalid")
    reason_against = contradiction(shape)
    return shape if reason_against is None else Problem("spec.model.shape", reason_against, "ShapeInvalid")


def _merged(known: ModelShape | Problem, facts: dict[str, Any]) -> dict[str, Any]:
    base = known.model_dump() if isinstance(known, ModelShape) else {}
    if facts.keys() & set(GEOMETRY) and "weight_bytes" not in facts:
        base.pop("weight_bytes", None)  # the table's checkpoint is that of another geometry
    merged = {**base, **facts}
    if "head_dim" not in facts and facts.keys() & {"hidden_size", "attention_heads"}:
        merged.pop("head_dim", None)
    if "head_dim" not in merged and {"hidden_size", "attention_heads"} <= merged.keys():
        merged["head_dim"] = merged["hidden_size"] // merged["attention_heads"]
    if "kv_heads" not in merged and "attention_heads" in merged:
        merged["kv_heads"] = merged["attention_heads"]
    return merged


def _first_reason(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}"
