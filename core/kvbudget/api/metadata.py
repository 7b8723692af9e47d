"""The part of ``metadata`` that we read."""

from typing import Any

from pydantic import Field, model_validator

from kvbudget.api.base import StatusModel


class Metadata(StatusModel):
    """``metadata`` of an object; what is not listed here is the API server's business and is dropped."""

    name: str = ""
    """Empty at CREATE with generateName."""
    namespace: str = ""
    """Empty for a cluster-scoped kind."""
    uid: str = ""
    """Set by the API server."""
    generation: int = 0
    """Counts changes of the spec; set by the API server."""
    deletion_timestamp: str | None = None
    """Set while the object is being deleted."""
    labels: dict[str, str] = Field(default={})
    """Labels."""
    annotations: dict[str, str] = Field(default={})
    """Annotations."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_null(cls, data: Any) -> Any:
        """``labels:`` with nothing below it is null in YAML, and left out to the API server."""
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data
