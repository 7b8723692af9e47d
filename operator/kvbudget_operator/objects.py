"""The one type of everything that the Kubernetes API takes and gives."""

from typing import Any

Object = dict[str, Any]
"""A Kubernetes object, as decoded JSON."""
