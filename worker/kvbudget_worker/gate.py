"""Admission by tokens: a request is reserved in full, waits in a queue that is bounded in tokens, or is refused.

The check *is* the reservation: between "it fits" and "it is charged" nothing else can run. The queue is first in, first
out, and nobody overtakes it, so that a long request cannot starve behind short ones. No clock and no asyncio in here:
the engine tells the time and wakes whoever was admitted.
"""

from collections import deque
from dataclasses import dataclass

from kvbudget.demand import DemandWindow
from kvbudget.ledger import Reject, TokenLedger, pages_needed
from kvbudget.plan import PlanLimits
from kvbudget.promises import Promises
from kvbudget_worker.refusals import Refusal, Refused, Room, budget_full, exceeds_budget, queue_timeout
from kvbudget_worker.requests import Request
from kvbudget_worker.scheduler import Scheduler


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One HTTP request: all its prompts are admitted together or not at all. ``request_id`` is the client's where it
    gave one, so that a refused request that comes back counts as demand once."""

    request_id: str
    requests: tuple[Request, ...]
    arrived_ms: int


@dataclass(slots=True, eq=False)
class _Waiting:
    ask: Ask
    pages: int


class Gate:
    """See the module. ``limits``: queue and overload status; prompt and output were checked before."""

    def __init__(self, scheduler: Scheduler, ledger: TokenLedger, limits: PlanLimits, demand: DemandWindow) -> None:
        self._scheduler = scheduler
        self._ledger = ledger
        self._limits = limits
        self._demand = demand
        self._promises = Promises()
        self._queue: deque[_Waiting] = deque()
        self._queued_pages = 0
        self._tried_free_pages: int | None = None
        """Free pages when the head of the queue was last tried in vain: with as many it need not be tried again."""
        self.refused_tokens = 0
        """Tokens refused for lack of budget so far, each request id once a minute."""

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(len(w.ask.requests) for w in self._queue)

    @property
    def queued_tokens(self) -> int:
        return self._queued_pages * self._ledger.page_tokens

    def offer(self, ask: Ask, now_ms: int) -> bool:
        """Admits (True) or queues (False). Raises Refused: it can never fit, or pool and queue are full now."""
        pages = sum(self._pages(request) for request in ask.requests)
        if pages > self._ledger.capacity_pages:
            raise Refused(exceeds_budget(self._tokens(pages), self._tokens(self._ledger.capacity_pages)))
        if not self._queue and self._try(ask, now_ms):
            return True
        if self._tokens(self._queued_pages + pages) <= self._limits.queue_tokens:
            self._queue.append(_Waiting(ask, pages))
            self._queued_pages += pages
            return False
        room = self._refuse(ask, pages, self._queued_pages, now_ms)
        raise Refused(
            budget_full(self._limits.overload_status, self._tokens(pages), room, queue_tokens=self._limits.queue_tokens)
        )

    def pump(self, now_ms: int) -> list[Ask]:
        """Admits from the head of the queue what fits now; to be called whenever pages were released."""
        admitted: list[Ask] = []
        while self._queue and self._ledger.free_pages != self._tried_free_pages:
            head = self._queue[0]
            if not self._try(head.ask, now_ms):
                self._tried_free_pages = self._ledger.free_pages
                break
            self._leave(head)
            admitted.append(head.ask)
        return admitted

    def expire(self, ask: Ask, now_ms: int) -> Refusal:
        """Takes a request that has waited too long out of the queue."""
        ahead = 0
        for waiting in self._queue:
            if waiting.ask is ask:
                break
            ahead += waiting.pages
        pages = self.withdraw(ask)
        room = self._refuse(ask, pages, ahead, now_ms)
        waited_ms = now_ms - ask.arrived_ms
        return queue_timeout(self._limits.overload_status, waited_ms, self._tokens(pages), room)

    def withdraw(self, ask: Ask) -> int:
        """Takes a request out of the queue (its client has gone); returns the pages it waited for, 0 if it was not
        there."""
        for waiting in self._queue:
            if waiting.ask is ask:
                self._leave(waiting)
                return waiting.pages
        return 0

    def _try(self, ask: Ask, now_ms: int) -> bool:
        for index, request in enumerate(ask.requests):
            if isinstance(self._scheduler.try_admit(request, now_ms), Reject):
                for admitted in ask.requests[:index]:
                    self._scheduler.abort(admitted.request_id)
                return False
        self._promises.kept(ask.request_id)
        return True

    def _leave(self, waiting: _Waiting) -> None:
        self._queue.remove(waiting)
        self._queued_pages -= waiting.pages
        self._tried_free_pages = None

    def _refuse(self, ask: Ask, pages: int, ahead_pages: int, now_ms: int) -> Room:
        """Counts the demand, and tells when there will be room behind ``ahead_pages`` of the queue and behind those who
        were told to come back before."""
        tokens = self._tokens(pages)
        if self._demand.refused(ask.request_id, tokens, now_ms):
            self.refused_tokens += tokens
        ahead_pages += self._promises.ahead_pages(ask.request_id, now_ms)
        retry_after_ms = self._ledger.retry_after_ms(ask.request_id, pages, now_ms, ahead_pages=ahead_pages)
        self._promises.add(ask.request_id, pages=pages, retry_after_ms=retry_after_ms, now_ms=now_ms)
        return Room(
            limit_tokens=self._tokens(self._ledger.capacity_pages),
            remaining_tokens=self._tokens(self._ledger.free_pages),
            retry_after_ms=retry_after_ms,
        )

    def _pages(self, request: Request) -> int:
        return pages_needed(self._ledger.page_tokens, len(request.prompt), request.max_output_tokens, request.n)

    def _tokens(self, pages: int) -> int:
        return pages * self._ledger.page_tokens
