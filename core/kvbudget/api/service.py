"""The LLMService: one served model, its KV cache, its traffic and its limits in tokens.

A field that this release does not support yet has no default; :func:`kvbudget.api.unsupported` refuses it by name.
"""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from kvbudget.api.base import ObjectName, Rule, ShortText, SpecModel
from kvbudget.api.metadata import Metadata
from kvbudget.api.model import ModelSpec
from kvbudget.api.pod import PodTemplate
from kvbudget.api.status import LLMServiceStatus

DEFAULT_OUTPUT_TOKENS = 512
"""``admission.defaultOutputTokens`` where neither it nor a smaller maxOutputTokens is given."""

MAX_TOKENS = 2**31 - 1
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Seconds = Annotated[int, Field(ge=0, le=86400)]
Percent = Annotated[int, Field(ge=1, le=100)]
MAX_REPLICAS = 10000
Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]


class GPUSpec(SpecModel):
    """The GPUs of one replica."""

    class_: Annotated[ObjectName, Field(alias="class")]
    """Name of a GPUClass."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that share every layer. Above 1 is planned by the CLI, not supported by the operator yet."""
    pipeline_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that take the layers in turn. Above 1 is planned by the CLI, not supported by the operator yet."""


class PrefixCache(SpecModel):
    """Reuse of the KV pages of equal prompt beginnings."""

    mode: Literal["Shared", "Off", "PerTenant"] = "Shared"
    """Shared: among all clients. Off: none. PerTenant: not supported yet."""


class KVCache(SpecModel):
    """The paged KV cache of one replica."""

    precision: Literal["Auto", "BF16", "FP16", "FP8E4M3", "INT8", "INT4", "NVFP4"] = "Auto"
    """Precision of K and V; Auto: as the weights where the class offers it. NVFP4 can be planned, not served."""
    page_tokens: Literal[16, 32, 64, 128] = 64
    """Tokens of one page."""
    memory_percent: Annotated[int, Field(ge=1, le=100)] = 90
    """Share of the GPU's memory for weights, runtime and KV together; the rest is headroom."""
    prefix_cache: PrefixCache = PrefixCache()
    """Reuse of equal prompt beginnings."""
    overcommit_percent: Annotated[int, Field(ge=100, le=1000)] | None = None
    """Share of the pool that may be reserved; above 100 requests may be preempted. Not supported yet (100 holds)."""


class Traffic(SpecModel):
    """The load that the replicas are sized for: sequences at once, or arrivals and speed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "OneTrafficForm",
            "",
            "has(self.concurrentRequests) != has(self.requestsPerMinute)",
            "set exactly one of concurrentRequests and requestsPerMinute",
            lambda t: (t.concurrent_requests is None) != (t.requests_per_minute is None),
        ),
        Rule(
            "RateNeedsSpeed",
            "outputTokensPerSecond",
            "has(self.requestsPerMinute) == has(self.outputTokensPerSecond)",
            "goes with requestsPerMinute: set both, or neither and concurrentRequests",
            lambda t: (t.requests_per_minute is None) == (t.output_tokens_per_second is None),
        ),
    )

    concurrent_requests: Annotated[int, Field(ge=1, le=1000000)] | None = None
    """Requests that run at the same time."""
    requests_per_minute: Annotated[int, Field(ge=1, le=10000000)] | None = None
    """Arrivals; with outputTokensPerSecond they give the requests that run at the same time (Little's law)."""
    output_tokens_per_second: Annotated[int, Field(ge=1, le=100000)] | None = None
    """Speed of one request."""
    input_tokens: Tokens
    """Prompt of a typical request."""
    output_tokens: Tokens
    """Output of a typical request."""


class Scaling(SpecModel):
    """Replicas follow the demand on the KV budget."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "MinAboveMax",
            "minReplicas",
            "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
            "must not be above maxReplicas; lower it or raise maxReplicas",
            lambda s: s.min_replicas <= s.max_replicas,
        ),
    )

    min_replicas: Replicas = 1
    """Never fewer."""
    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    """Never more."""
    target_percent: Percent = 75
    """Demand ÷ supply that scaling aims at."""
    scale_down_delay_seconds: Seconds = 300
    """A replica is removed only when the demand has fitted without it for so long."""
    driver: Literal["Operator", "HPA", "KEDA"] = "Operator"
    """Who writes the replicas. HPA and KEDA are not supported yet."""


class LongPrompt(SpecModel):
    """A lane of their own for long prompts. Not supported yet."""

    threshold_tokens: Tokens
    """A prompt is long from here on."""
    share_percent: Percent
    """Share of the budget that long prompts may hold together."""


class Queue(SpecModel):
    """Requests that fit later may wait for budget."""

    max_tokens: Tokens
    """Tokens that may wait per replica."""
    max_wait_seconds: Annotated[int, Field(ge=1, le=600)] = 30
    """A request that has waited so long is refused."""


class DegradationStep(SpecModel):
    """What is given up when the budget runs full. Not supported yet."""

    at_percent: Percent
    """KV use from which the step holds."""
    action: Literal["CapOutputTokens", "RefusePriorityBelow"]
    """What happens."""
    output_tokens: Tokens | None = None
    """Cap, with CapOutputTokens."""
    priority: Annotated[int, Field(ge=-1000000, le=1000000)] | None = None
    """Lowest priority that is served, with RefusePriorityBelow."""


class Admission(SpecModel):
    """Which requests are admitted, in tokens."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "DefaultAboveMaxOutput",
            "defaultOutputTokens",
            "!has(self.defaultOutputTokens) || !has(self.maxOutputTokens) || "
            "self.defaultOutputTokens <= self.maxOutputTokens",
            "must not be above maxOutputTokens; lower it or raise maxOutputTokens",
            lambda a: (
                a.default_output_tokens is None
                or a.max_output_tokens is None
                or a.default_output_tokens <= a.max_output_tokens
            ),
        ),
    )

    mode: Literal["Enforce", "Shadow"] | None = None
    """Enforce refuses, Shadow only counts what it would refuse. Not supported yet (Enforce holds)."""
    max_input_tokens: Tokens | None = None
    """Longest prompt; left out: maxModelLen − 1."""
    max_output_tokens: Tokens | None = None
    """Longest output; left out: maxModelLen − 1."""
    default_output_tokens: Tokens | None = None
    """Limit and reservation of a request that names none; left out: 512, or maxOutputTokens where that is smaller."""
    long_prompt: LongPrompt | None = None
    """A lane for long prompts. Not supported yet."""
    queue: Queue | None = None
    """Requests that may wait for budget; left out: none waits."""
    overload_status: Literal[429, 503] = 429
    """HTTP status of a request that is refused because the budget is full."""
    degradation: Annotated[list[DegradationStep], Field(max_length=8)] | None = None
    """Steps of degradation, in order. Not supported yet."""


class Drain(SpecModel):
    """How a worker leaves."""

    timeout_seconds: Seconds = 600
    """Admitted requests may finish for so long; the pod's grace period is this plus preStop plus 5."""


class Engine(SpecModel):
    """The engine that serves."""

    type: Literal["Bundled", "VLLM", "SGLang", "TensorRTLLM"] = "Bundled"
    """Bundled: kvbudget's own worker. The others are not supported yet."""
    version: ShortText | None = None
    """Version of the engine. Not supported yet."""
    max_batched_tokens: Annotated[int, Field(ge=16, le=1048576)] = 2048
    """Tokens that one step computes at most."""
    max_sequences: Annotated[int, Field(ge=1, le=16384)] = 256
    """Sequences that one step advances at most."""
    extra_args: Annotated[list[Annotated[str, StringConstraints(max_length=1024)]], Field(max_length=64)] | None = None
    """Arguments that are passed to the engine. Not supported yet."""


class Router(SpecModel):
    """A router in front of the workers. Not supported yet."""

    replicas: Annotated[int, Field(ge=0, le=100)] | None = None
    """Pods of the router."""


class LLMServiceSpec(SpecModel):
    """What is wanted."""

    model: ModelSpec
    """The model that is served."""
    gpu: GPUSpec
    """The GPUs of one replica."""
    max_model_len: Tokens | None = None
    """Longest sequence, prompt and output together, in tokens; left out: the longest that fits (see status.limits)."""
    kv_cache: KVCache = KVCache()
    """The paged KV cache."""
    traffic: Traffic | None = None
    """The load that the replicas are sized for, where replicas is left out."""
    replicas: Replicas | None = None
    """Worker pods; the scale subresource's field. Left out: scaling.minReplicas, else the size from traffic, else 1."""
    scaling: Scaling | None = None
    """Replicas follow the demand; left out: they stay as they are set."""
    admission: Admission = Admission()
    """Which requests are admitted."""
    drain: Drain = Drain()
    """How a worker leaves."""
    engine: Engine = Engine()
    """The engine that serves."""
    router: Router | None = None
    """A router in front of the workers. Not supported yet."""
    pod_template: PodTemplate | None = None
    """What is added to the worker pod."""


def _readable(value: Any, read: ValidatorFunctionWrapHandler) -> LLMServiceStatus:
    """The status; empty where another release wrote it in a way that we do not read: that is no fault of the spec."""
    try:
        status: LLMServiceStatus = read(value)
    except ValidationError:
        return LLMServiceStatus()
    return status


_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


class LLMService(SpecModel):
    """One served model: N workers whose KV memory is a budget in tokens."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "NameNotALabel",
            "metadata.name",
            "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
            "the name of an LLMService names a Service too: use at most 63 of a-z, 0-9 and '-', a letter first",
            lambda service: not service.metadata.name or _DNS_LABEL.fullmatch(service.metadata.name) is not None,
        ),
    )

    api_version: Literal["kvbudget.dev/v1alpha1"]
    """kvbudget.dev/v1alpha1"""
    kind: Literal["LLMService"]
    """LLMService"""
    metadata: Metadata
    """Name, namespace, labels and annotations."""
    spec: LLMServiceSpec
    """What is wanted."""
    status: Annotated[LLMServiceStatus, WrapValidator(_readable)] = LLMServiceStatus()
    """What the operator observed; written by the operator only."""

    @property
    def served_name(self) -> str:
        """Name that clients use: ``spec.model.name``, else the object's name."""
        return self.spec.model.name or self.metadata.name
