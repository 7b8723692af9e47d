"""The part of ``metadata`` that we read."""

from pydantic import Field

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
