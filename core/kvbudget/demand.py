"""Demand that a worker could not take, in tokens: what was refused, and how long a request holds its pages.

Refused requests would have held tokens for as long as the others do. By Little's law their demand is

    refused demand = tokens refused in the last 60 s ÷ 60 × mean holding seconds

with each request id counted once, however often its client comes back.

>>> demand = DemandWindow()
>>> demand.started("x", now_ms=0); demand.ended("x", now_ms=30_000)   # held its pages for 30 s
>>> demand.refused("a", 400, now_ms=31_000), demand.refused("a", 400, now_ms=33_000)
(True, False)
>>> demand.refused("b", 800, now_ms=34_000)
True
>>> demand.refused_demand_tokens(now_ms=35_000)                       # 1200 ÷ 60 × 30
600
>>> demand.refused_demand_tokens(now_ms=94_001)
0
"""

from collections import OrderedDict, deque

from kvbudget.errors import LedgerError

WINDOW_MS = 60_000
_SLOT_MS = 1_000


class _Slots:
    """Sums of pairs over a sliding window, in slots of one second: bounded memory, exact to a second."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, int, int]] = deque(maxlen=WINDOW_MS // _SLOT_MS + 1)

    def add(self, first: int, second: int, now_ms: int) -> None:
        slot = now_ms // _SLOT_MS
        if self._slots and self._slots[-1][0] >= slot:
            slot, before_first, before_second = self._slots.pop()
            first, second = before_first + first, before_second + second
        self._slots.append((slot, first, second))

    def totals(self, now_ms: int) -> tuple[int, int]:
        inside = [s for s in self._slots if s[0] >= (now_ms - WINDOW_MS) // _SLOT_MS]
        return sum(s[1] for s in inside), sum(s[2] for s in inside)


class DemandWindow:
    """See the module. ``now_ms`` is any clock that never runs backwards. Memory is bounded by ``max_ids`` remembered
    refusals (older ones still count, but a request among them may be counted twice) and by the live requests."""

    def __init__(self, *, max_ids: int = 10_000) -> None:
        if max_ids < 1:
            raise LedgerError(f"max_ids is {max_ids}: must be at least 1")
        self._max_ids = max_ids
        self._refused: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._refused_tokens = 0
        self._forgotten = _Slots()
        self._live: dict[str, int] = {}
        self._live_started_ms = 0
        self._ended = _Slots()
        self._last_mean_seconds = 0.0

    def refused(self, request_id: str, tokens: int, now_ms: int) -> bool:
        """A request was refused for lack of budget. True if this id was not refused within the window before: then,
        and only then, its tokens count anew. A later refusal of the same id keeps it in the window."""
        self._expire(now_ms)
        before = self._refused.pop(request_id, None)
        self._refused_tokens += tokens - (before[1] if before else 0)
        self._refused[request_id] = (now_ms, tokens)
        if len(self._refused) > self._max_ids:
            _, (refused_ms, forgotten_tokens) = self._refused.popitem(last=False)
            self._refused_tokens -= forgotten_tokens
            self._forgotten.add(forgotten_tokens, 0, refused_ms)
        return before is None

    def started(self, request_id: str, now_ms: int) -> None:
        """A request was granted pages. If it had been refused before, that demand is served now."""
        served = self._refused.pop(request_id, None)
        if served is not None:
            self._refused_tokens -= served[1]
        self._live[request_id] = now_ms
        self._live_started_ms += now_ms

    def ended(self, request_id: str, now_ms: int) -> None:
        """A request that had started has released its pages; unknown ids raise LedgerError."""
        try:
            started_ms = self._live.pop(request_id)
        except KeyError:
            raise LedgerError(f"request {request_id!r} ended but had not started") from None
        self._live_started_ms -= started_ms
        self._ended.add(now_ms - started_ms, 1, now_ms)

    def mean_holding_seconds(self, now_ms: int) -> float:
        """Mean time for which the requests that ended within the window held their pages. If none did: what it was
        last, or the mean age of the live ones if that is longer. 0 before the first request."""
        held_ms, requests = self._ended.totals(now_ms)
        if requests:
            self._last_mean_seconds = held_ms / requests / 1000
            return self._last_mean_seconds
        live = len(self._live)
        live_age_seconds = (live * now_ms - self._live_started_ms) / live / 1000 if live else 0.0
        return max(self._last_mean_seconds, live_age_seconds)

    def refused_demand_tokens(self, now_ms: int) -> int:
        """Refused demand as in the module, rounded up."""
        self._expire(now_ms)
        refused_tokens = self._refused_tokens + self._forgotten.totals(now_ms)[0]
        return -int(-refused_tokens * 1000 * self.mean_holding_seconds(now_ms) // WINDOW_MS)

    def _expire(self, now_ms: int) -> None:
        while self._refused:
            refused_ms, tokens = next(iter(self._refused.values()))
            if refused_ms > now_ms - WINDOW_MS:
                return
            self._refused.popitem(last=False)
            self._refused_tokens -= tokens
