"""Names that more than one component must spell alike: labels, headers, environment, ports, metrics.

A name that only one file uses stays in that file.
"""

from dataclasses import dataclass
from typing import Literal

GROUP = "kvbudget.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "kvbudget-operator"

# Labels and annotations of what the operator makes.
LABEL_SERVICE = f"{GROUP}/llmservice"
"""Name of the LLMService that a child belongs to; the schema keeps it to 63 characters."""
LABEL_PLAN = f"{GROUP}/plan"
"""Hash of the Plan that a pod serves; part of the pod template, so a changed plan is a new revision."""
LABEL_ENGINE = "llm-d.ai/engine-type"
"""Set to ``vllm`` on worker pods: endpoint pickers then read vLLM's metric names."""
ANNOTATION_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

# Worker pod.
WORKER_PORT = 8000
WORKER_CONTAINER = "worker"
PLAN_DIR = "/etc/kvbudget"
PLAN_FILE = "plan.json"
MODEL_DIR = "/models"
"""Where the weights volume is mounted; ``source.pvc.path`` and ``source.hostPath.path`` are resolved below it."""
ENV_PLAN = "KVBUDGET_PLAN"
"""Path of the Plan's JSON; default ``PLAN_DIR/PLAN_FILE``."""
ENV_DEVICE = "KVBUDGET_DEVICE"
"""``cuda`` or ``cpu``; unset: ``cuda`` where a device is found. A pod that holds a GPU resource but finds no device
refuses to start unless this says ``cpu``."""
ENV_HOST = "KVBUDGET_HOST"
ENV_PORT = "KVBUDGET_PORT"
ENV_TERMINATION_LOG = "KVBUDGET_TERMINATION_LOG"
"""File whose text the kubelet puts into the pod's status when the worker ends; unset: the worker writes none."""
DRAIN_ABORTED_NOTE = "requests cut off by the drain: "
"""Begins the worker's last note, a number follows: its metrics end with it, so a last count may never be scraped."""
PRE_STOP_SECONDS = 5
"""Endpoints learn of a leaving pod during this sleep, before SIGTERM reaches the worker."""
GRACE_SECONDS = 5
"""A pod's grace period is PRE_STOP_SECONDS, the drain and this: the worker must have ended by then, after the drain has
cut off what it must, or it is killed and its last note is lost."""

# Headers of the serving API.
HEADER_OUTPUT_LIMIT = "x-kvbudget-output-limit-tokens"
HEADER_DROP_REASON = "x-llm-d-request-dropped-reason"
HEADER_REQUEST_ID = "x-request-id"
HEADER_SHOULD_RETRY = "x-should-retry"
HEADER_RETRY_AFTER_MS = "retry-after-ms"
HEADER_LIMIT_TOKENS = "x-ratelimit-limit-tokens"
HEADER_REMAINING_TOKENS = "x-ratelimit-remaining-tokens"
HEADER_RESET_TOKENS = "x-ratelimit-reset-tokens"

MAX_RETRY_AFTER_MS = 120_000
"""Clients of the OpenAI family do not retry at all when told to wait longer."""

# Metrics of the worker. vLLM's names keep their colon; our own never have one, since metric adapters cannot use it.
MetricType = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One exposed metric. ``name`` is the sample's name for gauges and counters (``…_total``), the base name for
    histograms."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_COMMON = ("model_name", "engine")
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def _v(
    name: str, type_: MetricType, help_: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = ()
) -> Metric:
    return Metric(f"vllm:{name}", type_, help_, _COMMON + labels, buckets)


NUM_RUNNING = _v("num_requests_running", "gauge", "Requests in the running batch.")
NUM_WAITING = _v(
    "num_requests_waiting", "gauge", "Requests waiting: queued for budget, or admitted and not yet started."
)
KV_USAGE = _v("kv_cache_usage_perc", "gauge", "Share of KV pages that live requests hold, 0 to 1.")
KV_USAGE_OLD = _v("gpu_cache_usage_perc", "gauge", "Older name of vllm:kv_cache_usage_perc.")
PREFIX_QUERIES = _v("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.")
PREFIX_HITS = _v("prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.")
PROMPT_TOKENS = _v("prompt_tokens_total", "counter", "Prompt tokens of admitted requests.")
GENERATION_TOKENS = _v("generation_tokens_total", "counter", "Tokens generated.")
PREEMPTIONS = _v("num_preemptions_total", "counter", "Running requests preempted.")
REQUEST_SUCCESS = _v("request_success_total", "counter", "Requests that ended well.", ("finished_reason",))
REJECTIONS = _v("admission_rejections_total", "counter", "Requests refused at admission.", ("reason",))
CACHE_CONFIG = _v(
    "cache_config_info",
    "gauge",
    "KV cache configuration; always 1.",
    ("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"),
)
ITERATION_TOKENS = _v("iteration_tokens_total", "histogram", "Tokens computed per engine step.", (), _ITERATION)
TTFT = _v("time_to_first_token_seconds", "histogram", "Time to first token.", (), _TTFT)
ITL = _v("inter_token_latency_seconds", "histogram", "Time between output tokens.", (), _ITL)
ITL_OLD = _v("time_per_output_token_seconds", "histogram", "Older name of vllm:inter_token_latency_seconds.", (), _ITL)
E2E_LATENCY = _v("e2e_request_latency_seconds", "histogram", "From arrival to the last token.", (), _LATENCY)
QUEUE_TIME = _v("request_queue_time_seconds", "histogram", "From arrival to the first step.", (), _LATENCY)
PREFILL_TIME = _v("request_prefill_time_seconds", "histogram", "From the first step to the first token.", (), _LATENCY)
DECODE_TIME = _v("request_decode_time_seconds", "histogram", "From the first to the last token.", (), _LATENCY)
INFERENCE_TIME = _v(
    "request_inference_time_seconds", "histogram", "From the first step to the last token.", (), _LATENCY
)
REQ_PROMPT = _v("request_prompt_tokens", "histogram", "Prompt tokens per request.", (), _TOKENS)
REQ_GENERATION = _v("request_generation_tokens", "histogram", "Generated tokens per request.", (), _TOKENS)
REQ_MAX_TOKENS = _v("request_params_max_tokens", "histogram", "max_tokens per request.", (), _TOKENS)
REQ_N = _v("request_params_n", "histogram", "n per request.", (), (1, 2, 5, 10, 20))

KV_TOKENS = Metric("kvbudget_kv_tokens", "gauge", "KV tokens that this worker's pool can hold.", ("model_name",))
KV_TOKENS_RESERVED = Metric(
    "kvbudget_kv_tokens_reserved",
    "gauge",
    "KV tokens reserved by live requests (pages x page tokens).",
    ("model_name",),
)
KV_TOKENS_USED = Metric(
    "kvbudget_kv_tokens_used", "gauge", "KV tokens in pages that live requests have filled or begun.", ("model_name",)
)
QUEUED_TOKENS = Metric("kvbudget_queued_tokens", "gauge", "Tokens of requests that wait for budget.", ("model_name",))
REFUSED_TOKENS = Metric(
    "kvbudget_refused_tokens_total",
    "counter",
    "Tokens of requests refused for lack of budget, each request id once.",
    ("model_name",),
)
REFUSED_DEMAND = Metric(
    "kvbudget_refused_demand_tokens",
    "gauge",
    "Refused demand: tokens refused in the last 60 s / 60 x mean holding seconds.",
    ("model_name",),
)
HOLDING_SECONDS = Metric(
    "kvbudget_mean_holding_seconds",
    "gauge",
    "Mean time for which a finished request held its pages, last 60 s.",
    ("model_name",),
)
DRAIN_ABORTED = Metric(
    "kvbudget_drain_aborted_total", "counter", "Requests cut off because the drain timed out.", ("model_name",)
)
DRAINING = Metric("kvbudget_draining", "gauge", "1 while the worker drains.", ("model_name",))
MEASURED_WEIGHT_BYTES = Metric(
    "kvbudget_measured_weight_bytes", "gauge", "Bytes of the loaded weights.", ("model_name",)
)
MEASURED_PAGE_BYTES = Metric(
    "kvbudget_measured_page_bytes",
    "gauge",
    "Bytes of one KV page over all layers, from the real tensors.",
    ("model_name",),
)
MEASURED_PAGES = Metric(
    "kvbudget_measured_pages",
    "gauge",
    "KV pages that the real pool holds, without the held-back page.",
    ("model_name",),
)
MEASURED_FREE_BYTES = Metric(
    "kvbudget_measured_free_bytes",
    "gauge",
    "Device (or container) memory free after the pool was made.",
    ("model_name",),
)
PLAN_INFO = Metric("kvbudget_plan_info", "gauge", "The Plan that this worker serves; always 1.", ("model_name", "plan"))

WORKER_METRICS: tuple[Metric, ...] = (
    NUM_RUNNING,
    NUM_WAITING,
    KV_USAGE,
    KV_USAGE_OLD,
    PREFIX_QUERIES,
    PREFIX_HITS,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    PREEMPTIONS,
    REQUEST_SUCCESS,
    REJECTIONS,
    CACHE_CONFIG,
    ITERATION_TOKENS,
    TTFT,
    ITL,
    ITL_OLD,
    E2E_LATENCY,
    QUEUE_TIME,
    PREFILL_TIME,
    DECODE_TIME,
    INFERENCE_TIME,
    REQ_PROMPT,
    REQ_GENERATION,
    REQ_MAX_TOKENS,
    REQ_N,
    KV_TOKENS,
    KV_TOKENS_RESERVED,
    KV_TOKENS_USED,
    QUEUED_TOKENS,
    REFUSED_TOKENS,
    REFUSED_DEMAND,
    HOLDING_SECONDS,
    DRAIN_ABORTED,
    DRAINING,
    MEASURED_WEIGHT_BYTES,
    MEASURED_PAGE_BYTES,
    MEASURED_PAGES,
    MEASURED_FREE_BYTES,
    PLAN_INFO,
)
"""Everything that a worker exposes; a test finds a metric above that is not here."""
