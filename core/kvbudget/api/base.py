"""The one pydantic base of every kind and of the Plan: frozen, camelCase outside, snake_case inside, no extras."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """Frozen value with camelCase names in JSON. Unknown keys are an error, never dropped."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )
