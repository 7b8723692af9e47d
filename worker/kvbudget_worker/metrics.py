"""The worker's metrics: children made once from the contract, and a cached exposition.

Pickers poll gauges every 50 ms, while rendering 300 histogram samples costs milliseconds. So gauges and counters are
rendered when they are older than 50 ms, histograms when they are older than a second, both outside the event loop.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from kvbudget import contract
from kvbudget.contract import Metric
from kvbudget_worker.refusals import CODES

FINISHED_REASONS: Final = ("stop", "length", "abort")
MAX_AGE_SECONDS: Final = 0.05
HISTOGRAM_MAX_AGE_SECONDS: Final = 1.0
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_EXTRA_LABELS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    contract.REQUEST_SUCCESS.name: ("finished_reason", FINISHED_REASONS),
    contract.REJECTIONS.name: ("reason", CODES),
}
_MEASURED_LATER: Final = frozenset(
    m.name
    for m in (
        contract.MEASURED_WEIGHT_BYTES,
        contract.MEASURED_PAGE_BYTES,
        contract.MEASURED_PAGES,
        contract.MEASURED_FREE_BYTES,
    )
)
"""These have no sample until they are measured: 0 would look like a mismatch between plan and reality."""


class WorkerMetrics:
    """All of ``contract.WORKER_METRICS``; histograms in one registry, the rest in another. A counter or a gauge starts
    at 0, except facts that are yet to be measured."""

    def __init__(self, model_name: str, labels: Mapping[str, str]) -> None:
        """``labels``: values of the labels that only one metric has (``plan``, ``block_size``, …)."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._values = CollectorRegistry()
        self._histograms = CollectorRegistry()
        self._fixed = {"model_name": model_name, "engine": "0", **labels}
        self._children: dict[tuple[str, str], Counter | Gauge | Histogram] = {}
        self._gauges: dict[str, Gauge] = {}
        for metric in contract.WORKER_METRICS:
            family = self._family(metric)
            if isinstance(family, Gauge):
                self._gauges[metric.name] = family
            if metric.name not in _MEASURED_LATER:
                for value in _EXTRA_LABELS.get(metric.name, ("", ("",)))[1]:
                    self._children[metric.name, value] = family.labels(**self._labels(metric, value))

    def increment(self, metric: Metric, value: str = "") -> Callable[[float], None]:
        """How to add to a counter; ``value``: of its own label, one of the values known beforehand."""
        child = self._children[metric.name, value]
        if not isinstance(child, Counter):
            raise TypeError(f"{metric.name} is no counter")
        return child.inc

    def observe(self, metric: Metric) -> Callable[[float], None]:
        """How to observe into a histogram."""
        child = self._children[metric.name, ""]
        if not isinstance(child, Histogram):
            raise TypeError(f"{metric.name} is no histogram")
        return child.observe

    def set(self, metric: Metric, value: float) -> None:
        """Sets a gauge."""
        self._gauges[metric.name].labels(**self._labels(metric, "")).set(value)

    def render_values(self) -> bytes:
        """Gauges and counters, in Prometheus' text format."""
        return generate_latest(self._values)

    def render_histograms(self) -> bytes:
        """Histograms, in Prometheus' text format."""
        return generate_latest(self._histograms)

    def _labels(self, metric: Metric, value: str) -> dict[str, str]:
        own = _EXTRA_LABELS.get(metric.name, ("", ()))[0]
        return {label: value if label == own else self._fixed[label] for label in metric.labels}

    def _family(self, metric: Metric) -> Counter | Gauge | Histogram:
        if metric.type == "histogram":
            return Histogram(metric.name, metric.help, metric.labels, registry=self._histograms, buckets=metric.buckets)
        kind = Counter if metric.type == "counter" else Gauge
        return kind(metric.name, metric.help, metric.labels, registry=self._values)


class Page:
    """One part of the exposition, rendered in a thread when it is older than ``max_age`` seconds, once at a time."""

    def __init__(self, render: Callable[[], bytes], max_age: float) -> None:
        self._render = render
        self._max_age = max_age
        self._body = b""
        self._rendered_at = float("-inf")
        self._rendering: asyncio.Future[bytes] | None = None

    async def body(self) -> bytes:
        if time.monotonic() - self._rendered_at < self._max_age:
            return self._body
        if self._rendering is None:
            self._rendering = asyncio.ensure_future(asyncio.to_thread(self._render))
            self._rendering.add_done_callback(self._rendered)
        # Shielded: a scraper that goes away must not cancel the page of the others.
        return await asyncio.shield(self._rendering)

    def _rendered(self, rendering: asyncio.Future[bytes]) -> None:
        self._rendering = None
        if not rendering.cancelled() and rendering.exception() is None:
            self._body = rendering.result()
            self._rendered_at = time.monotonic()


class Exposition:
    """What ``/metrics`` answers. ``refresh`` sets the gauges; it is called in the event loop."""

    def __init__(
        self,
        metrics: WorkerMetrics,
        refresh: Callable[[], None],
        *,
        max_age: float = MAX_AGE_SECONDS,
        histogram_max_age: float = HISTOGRAM_MAX_AGE_SECONDS,
    ) -> None:
        self._refresh = refresh
        self._values = Page(metrics.render_values, max_age)
        self._histograms = Page(metrics.render_histograms, histogram_max_age)

    async def body(self) -> bytes:
        self._refresh()
        return await self._values.body() + await self._histograms.body()
