"""The operator's and the webhook's own metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

disable_created_metrics()  # type: ignore[no-untyped-call]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class _Exposition:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def exposition(self) -> tuple[bytes, str]:
        """Body and content type of ``/metrics``."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class OperatorMetrics(_Exposition):
    """Of the work queue (it is the queue's Observer) and the scrape loop."""

    def __init__(self) -> None:
        super().__init__()
        self._reconciles = Counter(
            "kvbudget_operator_reconciles_total",
            "Reconciles by result: noop wrote nothing, changed wrote something, error is retried.",
            ["result"],
            registry=self.registry,
        )
        for result in ("noop", "changed", "error"):
            self._reconciles.labels(result)
        self._seconds = Histogram(
            "kvbudget_operator_reconcile_seconds", "Time of a reconcile.", buckets=_SECONDS, registry=self.registry
        )
        self._depth = Gauge(
            "kvbudget_operator_queue_depth", "Services that wait to be reconciled.", registry=self.registry
        )
        self._writes = Counter(
            "kvbudget_operator_writes_total",
            "Objects written, by what: child, status, replicas, delete, event.",
            ["what"],
            registry=self.registry,
        )
        self._workers = Gauge("kvbudget_operator_workers", "Worker pods with metrics.", registry=self.registry)
        self._rounds = Counter(
            "kvbudget_operator_scrape_rounds_total", "Readings of all workers.", registry=self.registry
        )

    def depth(self, keys: int) -> None:
        self._depth.set(keys)

    def done(self, seconds: float, error: bool) -> None:
        self._seconds.observe(seconds)
        if error:
            self._reconciles.labels("error").inc()

    def reconciled(self, changed: bool) -> None:
        """A reconcile ended well, and did or did not write."""
        self._reconciles.labels("changed" if changed else "noop").inc()

    def wrote(self, what: str, count: int = 1) -> None:
        if count:
            self._writes.labels(what).inc(count)

    def scraped(self, workers: int) -> None:
        """All workers were read; so many of them ever answered."""
        self._rounds.inc()
        self._workers.set(workers)


class AdmissionMetrics(_Exposition):
    """Of the webhook."""

    def __init__(self) -> None:
        super().__init__()
        self._reviews = Counter(
            "kvbudget_admission_reviews_total",
            "Admission reviews by kind and result: allowed, denied, error.",
            ["kind", "result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "kvbudget_admission_review_seconds", "Time of a review.", buckets=_SECONDS, registry=self.registry
        )
        self._not_after = Gauge(
            "kvbudget_admission_certificate_not_after_seconds",
            "Unix time at which the served certificate ends.",
            registry=self.registry,
        )

    def reviewed(self, kind: str, result: str, seconds: float) -> None:
        """``kind`` is one of ours or ``other``."""
        self._reviews.labels(kind, result).inc()
        self._seconds.observe(seconds)

    def certificate(self, not_after_seconds: float) -> None:
        self._not_after.set(not_after_seconds)
