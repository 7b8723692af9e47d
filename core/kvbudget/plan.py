"""The Plan: everything a worker must know, decided once, carried to it as JSON, hashed into the pods' revision."""

import hashlib
import json
from typing import Literal

from kvbudget.api.base import Model
from kvbudget.shape import ModelShape


class PlanModel(Model):
    """Which model, and where its files lie inside the worker's container."""

    name: str
    weights_path: str
    weight_precision: str
    shape: ModelShape


class PlanGPU(Model):
    """What the pod asks for. ``resource_name`` is ``cpu`` for a class without devices; ``count`` is TP × PP."""

    class_name: str
    resource_name: str
    tensor_parallel: int
    pipeline_parallel: int
    count: int


class PlanBudget(Model):
    """Bytes per replica (worst rank). They add up exactly: usable = weight + activation + graph + runtime + kv, and
    kv = (pages + reservedPages) × pageBytes + remainder."""

    gpu_memory_bytes: int
    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    graph_bytes: int
    runtime_bytes: int
    kv_bytes: int
    remainder_bytes: int
    page_bytes: int
    pages: int
    reserved_pages: int
    tokens: int
    kv_bytes_per_token: int
    sequences_at_max_len: int
    precision: str


class PlanKV(Model):
    """Geometry of the paged cache: ``pages`` can be granted, ``reserved_pages`` are held back (the worker's scratch)."""

    precision: Literal["BF16", "FP16", "FP32", "FP8E4M3", "INT8", "INT4", "NVFP4"]
    page_tokens: int
    pages: int
    reserved_pages: int
    page_bytes: int
    prefix_cache_mode: Literal["Shared", "Off"]


class PlanLimits(Model):
    """Limits in tokens. ``queue_tokens`` 0 switches the queue off."""

    max_model_len: int
    max_input_tokens: int
    max_output_tokens: int
    default_output_tokens: int
    tokens_in_flight: int
    queue_tokens: int
    queue_max_wait_seconds: int
    overload_status: Literal[429, 503]


class PlanEngine(Model):
    type: Literal["Bundled"]
    max_batched_tokens: int
    max_sequences: int


class Plan(Model):
    """See the module. Holds nothing that changes without the pods having to change (no replicas, no traffic)."""

    plan_version: Literal[1] = 1
    service_name: str
    namespace: str
    model: PlanModel
    gpu: PlanGPU
    budget: PlanBudget
    kv: PlanKV
    limits: PlanLimits
    engine: PlanEngine
    drain_timeout_seconds: int

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, camelCase."""
        return json.dumps(self.model_dump(by_alias=True), sort_keys=True, separators=(",", ":"))

    def hash(self) -> str:
        """First 10 hex digits of the SHA-256 of :meth:`to_json`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:10]
