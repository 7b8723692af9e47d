"""The Plan: everything a worker must know, decided once, carried to it as JSON, hashed into the pods' revision."""

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kvbudget.api.base import Model
from kvbudget.api.service import DEFAULT_OUTPUT_TOKENS
from kvbudget.budget import Budget
from kvbudget.contract import MODEL_DIR
from kvbudget.layout import KVPrecision
from kvbudget.shape import ModelShape

if TYPE_CHECKING:
    from kvbudget.api import LLMService


Positive = Annotated[int, Field(ge=1)]
"""What a worker divides by or waits for: with 0 it would break or stand still, so such a Plan is refused."""


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
    """Geometry of the paged cache: ``pages`` can be granted, ``reserved_pages`` are held back (worker scratch)."""

    precision: KVPrecision
    page_tokens: Positive
    pages: Positive
    reserved_pages: int
    page_bytes: Positive
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
    max_batched_tokens: Positive
    max_sequences: Positive


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


def max_model_len(service: "LLMService", budget: Budget) -> int:
    """``spec.maxModelLen``; where it is left out the largest that fits and that the model can do (0: nothing fits)."""
    given = service.spec.max_model_len
    return min(budget.tokens, budget.inputs.shape.max_position_embeddings) if given is None else given


def make_limits(service: "LLMService", budget: Budget) -> PlanLimits:
    """Limits of one replica in tokens. Left out, prompt and output may each be all of a sequence but one token, since
    neither can be empty; a request that names no output gets 512 tokens, or maxOutputTokens where that is less."""
    admission, longest = service.spec.admission, max_model_len(service, budget)
    max_input = longest - 1 if admission.max_input_tokens is None else admission.max_input_tokens
    max_output = longest - 1 if admission.max_output_tokens is None else admission.max_output_tokens
    default_output = admission.default_output_tokens
    queue = admission.queue
    return PlanLimits(
        max_model_len=longest,
        max_input_tokens=max_input,
        max_output_tokens=max_output,
        default_output_tokens=min(DEFAULT_OUTPUT_TOKENS, max_output) if default_output is None else default_output,
        tokens_in_flight=budget.tokens,
        queue_tokens=0 if queue is None else queue.max_tokens,
        queue_max_wait_seconds=0 if queue is None else queue.max_wait_seconds,
        overload_status=admission.overload_status,
    )


def make_plan(service: "LLMService", resource_name: str, budget: Budget) -> Plan:
    """The Plan of a service whose checks have passed. ``resource_name`` is the class's. A fixed point: it depends on
    nothing that itself depends on a Plan."""
    spec, inputs = service.spec, budget.inputs
    limits = make_limits(service, budget)
    return Plan(
        service_name=service.metadata.name,
        namespace=service.metadata.namespace,
        model=PlanModel(
            name=service.served_name,
            weights_path=weights_path(service),
            weight_precision=inputs.weight_precision,
            shape=inputs.shape,
        ),
        gpu=PlanGPU(
            class_name=spec.gpu.class_,
            resource_name=resource_name,
            tensor_parallel=inputs.tensor_parallel,
            pipeline_parallel=inputs.pipeline_parallel,
            count=inputs.tensor_parallel * inputs.pipeline_parallel,
        ),
        budget=plan_budget(budget, limits.max_model_len),
        kv=PlanKV(
            precision=inputs.kv_precision,
            page_tokens=inputs.page_tokens,
            pages=budget.pages,
            reserved_pages=budget.worst.reserved_pages,
            page_bytes=budget.worst.page_bytes,
            prefix_cache_mode="Off" if spec.kv_cache.prefix_cache.mode == "Off" else "Shared",
        ),
        limits=limits,
        engine=PlanEngine(
            type="Bundled", max_batched_tokens=inputs.max_batched_tokens, max_sequences=inputs.max_sequences
        ),
        drain_timeout_seconds=spec.drain.timeout_seconds,
    )


def plan_budget(budget: Budget, longest: int) -> PlanBudget:
    """The terms of the rank that decides; ``longest`` is the maxModelLen."""
    worst = budget.worst
    return PlanBudget(
        gpu_memory_bytes=budget.inputs.memory_bytes,
        usable_bytes=budget.usable_bytes,
        weight_bytes=worst.weight_bytes,
        activation_bytes=worst.activation_bytes,
        graph_bytes=worst.graph_bytes,
        runtime_bytes=worst.runtime_bytes,
        kv_bytes=worst.kv_bytes,
        remainder_bytes=worst.remainder_bytes,
        page_bytes=worst.page_bytes,
        pages=budget.pages,
        reserved_pages=worst.reserved_pages,
        tokens=budget.tokens,
        kv_bytes_per_token=budget.kv_bytes_per_token,
        sequences_at_max_len=budget.sequences(longest) if longest else 0,
        precision=budget.inputs.kv_precision,
    )


def weights_path(service: "LLMService") -> str:
    """Where the weights lie in the worker's container: a claim is mounted whole on MODEL_DIR and ``pvc.path`` leads
    into it; a hostPath (folder or file) is mounted under its own last name. Other sources are refused
    before there is a Plan."""
    source = service.spec.model.source
    path = ""
    if source.pvc is not None:
        path = source.pvc.path.strip("/")
    elif source.host_path is not None:
        path = source.host_path.path.rstrip("/").rpartition("/")[2]
    return f"{MODEL_DIR}/{path}" if path else MODEL_DIR
