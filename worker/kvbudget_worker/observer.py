"""What the engine tells the metrics: times per token and request, and the gauges' values when a scrape comes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvbudget import contract
from kvbudget_worker.gate import Ask
from kvbudget_worker.generation import Generation
from kvbudget_worker.metrics import FINISHED_REASONS, WorkerMetrics
from kvbudget_worker.refusals import CODES, Refusal
from kvbudget_worker.requests import TokenEvent

if TYPE_CHECKING:
    from kvbudget_worker.engine import Engine


class Observer:
    """Times are seconds of the monotonic clock. Every child is bound once: a token costs a few microseconds."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._step_tokens = metrics.observe(contract.ITERATION_TOKENS)
        self._generated = metrics.increment(contract.GENERATION_TOKENS)
        self._prompt_tokens = metrics.increment(contract.PROMPT_TOKENS)
        self._ttft = metrics.observe(contract.TTFT)
        self._gaps = metrics.observe(contract.ITL), metrics.observe(contract.ITL_OLD)
        self._e2e = metrics.observe(contract.E2E_LATENCY)
        self._queue = metrics.observe(contract.QUEUE_TIME)
        self._prefill = metrics.observe(contract.PREFILL_TIME)
        self._decode = metrics.observe(contract.DECODE_TIME)
        self._inference = metrics.observe(contract.INFERENCE_TIME)
        self._request_prompt = metrics.observe(contract.REQ_PROMPT)
        self._request_generated = metrics.observe(contract.REQ_GENERATION)
        self._request_max = metrics.observe(contract.REQ_MAX_TOKENS)
        self._request_n = metrics.observe(contract.REQ_N)
        self._success = {reason: metrics.increment(contract.REQUEST_SUCCESS, reason) for reason in FINISHED_REASONS}
        self._rejections = {code: metrics.increment(contract.REJECTIONS, code) for code in CODES}
        self._drain_aborted = metrics.increment(contract.DRAIN_ABORTED)
        self._prefix_queries = _Total(metrics.increment(contract.PREFIX_QUERIES))
        self._prefix_hits = _Total(metrics.increment(contract.PREFIX_HITS))
        self._refused_tokens = _Total(metrics.increment(contract.REFUSED_TOKENS))

    def step(self, tokens: int, sampled: int) -> None:
        self._step_tokens(tokens)
        self._generated(sampled)

    def admitted(self, ask: Ask) -> None:
        for request in ask.requests:
            self._prompt_tokens(len(request.prompt))
            self._request_prompt(len(request.prompt))
            self._request_max(request.max_output_tokens)
            self._request_n(request.n)

    def refused(self, refusal: Refusal) -> None:
        count = self._rejections.get(refusal.reason)
        if count is not None:
            count(1)

    def token(self, generation: Generation, event: TokenEvent, now: float) -> None:
        """To be called before the generation takes the token."""
        part = generation.parts[event.request_id]
        choice = part.choices[event.choice]
        if choice.tokens:
            for gap in self._gaps:
                gap(now - choice.last_token_at)
        if not part.first_token_at:
            part.first_token_at = now
            self._ttft(now - generation.ask.arrived_ms / 1000)

    def finished(self, generation: Generation, request_id: str, now: float) -> None:
        """All choices of one prompt have ended well."""
        part = generation.parts[request_id]
        arrived, started = generation.ask.arrived_ms / 1000, part.started_ms / 1000
        self._e2e(now - arrived)
        self._queue(started - arrived)
        self._prefill(part.first_token_at - started)
        self._decode(now - part.first_token_at)
        self._inference(now - started)
        for choice in part.choices:
            self._request_generated(choice.tokens)
            self._success[choice.finish_reason or "abort"](1)

    def aborted(self) -> None:
        """The client went away, or the worker gave up."""
        self._success["abort"](1)

    def drain_aborted(self, requests: int) -> None:
        self._drain_aborted(requests)

    def refresh(self, engine: "Engine", now_ms: int) -> None:
        """Sets the gauges, and the counters that are kept elsewhere."""
        stats, ledger, page_tokens = engine.scheduler.stats(), engine.ledger, engine.ledger.page_tokens
        self._prefix_queries.reach(stats.prefix_query_tokens)
        self._prefix_hits.reach(stats.prefix_hit_tokens)
        self._refused_tokens.reach(engine.gate.refused_tokens)
        for metric, value in (
            (contract.NUM_RUNNING, stats.running),
            (contract.NUM_WAITING, stats.waiting + engine.gate.waiting),
            (contract.KV_USAGE, ledger.charged_pages / ledger.capacity_pages),
            (contract.KV_USAGE_OLD, ledger.charged_pages / ledger.capacity_pages),
            (contract.KV_TOKENS, ledger.capacity_pages * page_tokens),
            (contract.KV_TOKENS_RESERVED, ledger.charged_pages * page_tokens),
            (contract.KV_TOKENS_USED, stats.used_pages * page_tokens),
            (contract.QUEUED_TOKENS, engine.gate.queued_tokens),
            (contract.REFUSED_DEMAND, engine.demand.refused_demand_tokens(now_ms)),
            (contract.HOLDING_SECONDS, engine.demand.mean_holding_seconds(now_ms)),
        ):
            self._metrics.set(metric, value)


class _Total:
    """A counter that follows a total kept elsewhere."""

    def __init__(self, increment: Callable[[float], None]) -> None:
        self._increment = increment
        self._seen = 0

    def reach(self, total: int) -> None:
        self._increment(total - self._seen)
        self._seen = total
