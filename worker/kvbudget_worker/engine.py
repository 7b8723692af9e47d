"""The engine: schedule a step, compute it on the device thread, hand its tokens out; again while anything is live.

Gate, ledger, pool and scheduler belong to the event loop's thread; only ``step`` runs elsewhere. Between the end of a
step and the start of the next one nothing is awaited, so a stop string or a disconnect seen by then frees its pages
before the next step. A step that raises ends the engine: every request gets an error, every page is released, and the
probes fail so that the pod is restarted.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from kvbudget.demand import DemandWindow
from kvbudget.ledger import TokenLedger
from kvbudget.plan import Plan
from kvbudget_worker.batch import Sampled, StepBatch
from kvbudget_worker.blocks import BlockPool
from kvbudget_worker.device_thread import DeviceThread
from kvbudget_worker.gate import Ask, Gate
from kvbudget_worker.generation import Generation, TextRules
from kvbudget_worker.observer import Observer
from kvbudget_worker.refusals import Refusal, Refused, engine_dead, internal_error
from kvbudget_worker.scheduler import Scheduler
from kvbudget_worker.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class StepRunner(Protocol):
    """What computes a step: :class:`kvbudget_worker.runner.Runner`."""

    def step(self, batch: StepBatch) -> list[Sampled]:
        """Blocking; one result for each chunk that asks for one."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def page_pool(plan: Plan) -> BlockPool:
    """The pool of a Plan; its pages are found again only by the same model in the same precisions."""
    return BlockPool(
        plan.kv.pages,
        plan.kv.page_tokens,
        prefix_cache=plan.kv.prefix_cache_mode != "Off",
        content=(plan.model.name, plan.model.weight_precision, plan.kv.precision),
    )


class Engine:
    """See the module. One per process; made and used in the event loop."""

    def __init__(
        self, plan: Plan, runner: StepRunner, tokenizer: Tokenizer, thread: DeviceThread, observer: Observer
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._thread = thread
        self._observer = observer
        self.ledger = TokenLedger(plan.kv.pages, plan.kv.page_tokens)
        self.scheduler = Scheduler(
            page_pool(plan),
            self.ledger,
            max_batched_tokens=plan.engine.max_batched_tokens,
            max_sequences=plan.engine.max_sequences,
            max_model_len=plan.limits.max_model_len,
        )
        self.demand = DemandWindow()
        self._holding: set[str] = set()
        self.gate = Gate(self.scheduler, self.ledger, plan.limits, self.demand)
        self._max_wait_seconds = plan.limits.queue_max_wait_seconds
        self._waiting: dict[Ask, tuple[Generation, asyncio.Future[None]]] = {}
        self._live: dict[str, Generation] = {}
        self._work = asyncio.Event()
        self.death: str | None = None

    @property
    def idle(self) -> bool:
        """No request waits, is computed or still holds a page."""
        return not (self._waiting or self._live or self.scheduler.has_work)

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Computes steps until the engine dies. To be run as one task for the engine's whole life."""
        try:
            while True:
                batch = self.scheduler.schedule(monotonic_ms())
                if batch is None:
                    self._work.clear()
                    await self._work.wait()
                    continue
                sampled = await self._thread.run(self._runner.step, batch)
                self._hand_out(sampled)
                self._observer.step(batch.tokens, len(sampled))
                self._pump()
        except Exception as error:
            log.exception("the engine failed: %s", error)
            self._die(f"{type(error).__name__}: {error}")

    def _hand_out(self, sampled: Sequence[Sampled]) -> None:
        for event in self.scheduler.apply(sampled, monotonic_ms()):
            generation = self._live.get(event.request_id)
            if generation is None:
                continue
            now = time.monotonic()
            try:
                self._observer.token(generation, event, now)
                stopped = generation.feed(event, now)
            except Exception as error:
                # One request whose text cannot be made must not end the others.
                log.exception("request %s failed: %s", event.request_id, error)
                generation.fail(internal_error())
                self._release(generation)
                continue
            if stopped:
                self.scheduler.finish(event.request_id, event.choice, "stop")
            if not generation.parts[event.request_id].open:
                self._leave(event.request_id)
                self._observer.finished(generation, event.request_id, now)

    def _pump(self) -> None:
        """Admits what fits from the queue. A request is live from here on, although its handler has yet to wake up."""
        for ask in self.gate.pump(monotonic_ms()):
            generation, admitted = self._waiting.pop(ask)
            self._enter(generation)
            if not admitted.done():
                admitted.set_result(None)

    def _die(self, why: str) -> None:
        self.death = why
        if self.scheduler.in_flight:
            self.scheduler.abandon()
        self.fail_all(lambda request_id: engine_dead(request_id, why))

    # --- a request's life --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def generate(self, ask: Ask, rules: TextRules) -> AsyncIterator[Generation]:
        """Admits a request, after waiting in the queue where there is one, and holds its pages until it is finished or
        the block is left, however it is left. Raises Refused."""
        if self.death is not None:
            raise Refused(engine_dead(ask.request_id, self.death))
        generation = Generation(ask, self._tokenizer, rules)
        try:
            if self.gate.offer(ask, monotonic_ms()):
                self._enter(generation)
            else:
                await self._queue(generation)
            yield generation
        finally:
            self._release(generation)

    async def _queue(self, generation: Generation) -> None:
        ask = generation.ask
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[ask] = generation, admitted
        try:
            async with asyncio.timeout(self._max_wait_seconds):
                await admitted
        except TimeoutError:
            # Admitted at the very moment: it is live, so it goes on.
            if self._waiting.pop(ask, None) is not None:
                raise Refused(self.gate.expire(ask, monotonic_ms())) from None

    def _enter(self, generation: Generation) -> None:
        ask = generation.ask
        # Two live requests may carry the same id of a client; each is demand of its own.
        generation.demand_id = ask.requests[0].request_id if ask.request_id in self._holding else ask.request_id
        self._holding.add(generation.demand_id)
        self.demand.started(generation.demand_id, monotonic_ms())
        for request in ask.requests:
            self._live[request.request_id] = generation
        self._observer.admitted(ask)
        self._work.set()

    def _leave(self, request_id: str) -> bool:
        """The prompt holds no page any more, or none once the step in flight is applied. False: it had left before."""
        generation = self._live.pop(request_id, None)
        if generation is None:
            return False
        if not any(request.request_id in self._live for request in generation.ask.requests):
            self._holding.remove(generation.demand_id)
            self.demand.ended(generation.demand_id, monotonic_ms())
        return True

    def _release(self, generation: Generation) -> None:
        """Gives back whatever the request still holds; nothing if it is finished. Safe to call again."""
        ask = generation.ask
        if self._waiting.pop(ask, None) is not None:
            self.gate.withdraw(ask)
        for request in ask.requests:
            if self._leave(request.request_id):
                self.scheduler.abort(request.request_id)
                self._observer.aborted()
        self._pump()

    def fail_all(self, refusal: Callable[[str], Refusal]) -> int:
        """Ends every request with an error and releases its pages; returns how many requests that were. ``refusal``
        makes the error of a request id."""
        generations = dict.fromkeys([*(g for g, _ in self._waiting.values()), *self._live.values()])
        # First the queue: what is released must not let another one in.
        waiting, self._waiting = self._waiting, {}
        for ask, (_, admitted) in waiting.items():
            self.gate.withdraw(ask)
            if not admitted.done():
                admitted.set_exception(Refused(refusal(ask.request_id)))
        for generation in generations:
            generation.fail(refusal(generation.ask.request_id))
            self._release(generation)
        return len(generations)
