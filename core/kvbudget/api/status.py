"""Status of an LLMService: what the operator decided, what the workers measured, and conditions."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from kvbudget.api.base import ListMap, LongText, ShortText, StatusModel

Count = Annotated[int, Field(ge=0)]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"}), StringConstraints(max_length=64)]

ConditionType = Literal[
    "Accepted",
    "Budgeted",
    "BudgetMatchesEngine",
    "Progressing",
    "Available",
    "MetricsAvailable",
    "ScalingActive",
    "Degraded",
    "Ready",
]


class Condition(StatusModel):
    """One aspect of the object's state, as ``metav1.Condition``."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """One of Accepted, Budgeted, BudgetMatchesEngine, Progressing, Available, MetricsAvailable, ScalingActive, Degraded
    and Ready. A condition that is absent is Unknown."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """Why, as one stable CamelCase word."""
    message: LongText = ""
    """Why, for people."""
    last_transition_time: Time = ""
    """When ``status`` last changed."""
    observed_generation: Count | None = None
    """The generation of the object that this was decided for."""


class BudgetStatus(StatusModel):
    """Budget of one replica (worst rank), in bytes unless the name says tokens or pages.

    usable = weight + activation + graph + runtime + kv, and kv = (pages + reservedPages) × pageBytes + remainder.
    """

    gpu_memory_bytes: Count | None = None
    """Memory of the class."""
    usable_bytes: Count | None = None
    """memory × memoryPercent ÷ 100."""
    weight_bytes: Count | None = None
    """Weights in memory."""
    activation_bytes: Count | None = None
    """Activations of the largest step."""
    graph_bytes: Count | None = None
    """Captured graphs."""
    runtime_bytes: Count | None = None
    """The runtime's own memory, measured per kind of device."""
    kv_bytes: int | None = None
    """What is left for the KV cache; negative when the weights alone do not fit."""
    remainder_bytes: int | None = None
    """Part of kvBytes that is smaller than one page."""
    page_bytes: Count | None = None
    """One page over all layers of the rank."""
    pages: Count | None = None
    """Pages that requests can hold."""
    reserved_pages: Count | None = None
    """Pages held back for the worker itself."""
    tokens: Count | None = None
    """KV tokens of one replica: pages × pageTokens."""
    kv_bytes_per_token: Count | None = None
    """KV bytes of one token over all layers of the rank."""
    sequences_at_max_len: Count | None = None
    """How many sequences of maxModelLen fit at once."""
    precision: ShortText | None = None
    """KV precision that was chosen."""


class LimitsStatus(StatusModel):
    """Limits of one replica, in tokens."""

    max_model_len: Count | None = None
    """Longest sequence: prompt and output together."""
    max_input_tokens: Count | None = None
    """Longest prompt."""
    max_output_tokens: Count | None = None
    """Longest output."""
    tokens_in_flight: Count | None = None
    """Tokens that admitted requests may hold together."""
    queue_tokens: Count | None = None
    """Tokens that may wait for budget; 0: no queue."""


class MeasuredStatus(StatusModel):
    """What the workers report of themselves; the smallest over all workers."""

    pages: Count | None = None
    """KV pages of the real pool."""
    tokens: Count | None = None
    """KV tokens of the real pool."""
    weight_bytes: Count | None = None
    """Bytes of the loaded weights."""
    free_bytes: Count | None = None
    """Memory free after the pool was made."""


class DemandStatus(StatusModel):
    """Demand on the KV budget over all workers, in tokens. Written at most every 15 s."""

    held_tokens: Count | None = None
    """Tokens that live requests hold."""
    queued_tokens: Count | None = None
    """Tokens of requests that wait."""
    refused_tokens: Count | None = None
    """Refused demand: tokens refused in the last minute, weighted by how long requests hold theirs."""
    percent: Count | None = None
    """Demand ÷ supply × 100."""


class DecisionStatus(StatusModel):
    """One scaling decision with its inputs."""

    time: Time = ""
    """When it was made."""
    current: Count | None = None
    """Replicas before."""
    desired: Count | None = None
    """Replicas after."""
    reason: ShortText = ""
    """Why, as one CamelCase word."""
    message: LongText = ""
    """Why, with the arithmetic."""
    held_tokens: Count | None = None
    """Tokens that live requests held."""
    queued_tokens: Count | None = None
    """Tokens of requests that waited."""
    refused_tokens: Count | None = None
    """Refused demand."""
    tokens_per_replica: Count | None = None
    """KV tokens of one replica."""


class LLMServiceStatus(StatusModel):
    """What the operator last observed and decided. Written by the operator only."""

    observed_generation: Count | None = None
    """The generation that this status speaks of."""
    model: ShortText | None = None
    """Name that clients use: spec.model.name, else the object's own name."""
    replicas: Count | None = None
    """All worker pods, ready or not."""
    ready_replicas: Count | None = None
    """Worker pods that take requests."""
    selector: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Label selector of the worker pods, for the scale subresource."""
    budget: BudgetStatus | None = None
    """KV budget of one replica."""
    limits: LimitsStatus | None = None
    """Limits of one replica."""
    measured: MeasuredStatus | None = None
    """What the workers report."""
    demand: DemandStatus | None = None
    """Demand on the budget."""
    decisions: Annotated[list[DecisionStatus], Field(max_length=5)] = Field(default_factory=list)
    """The last five scaling decisions, newest first."""
    conditions: Annotated[list[Condition], ListMap("type"), Field(max_length=16)] = Field(default_factory=list)
    """One condition of each type at most."""
