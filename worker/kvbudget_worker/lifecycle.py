"""The worker's life: loading → ready → draining → stopped, and what each phase answers.

Readiness stays 200 until SIGTERM. From then on new requests get 503 and the connection is closed; what was accepted
before goes on, up to the drain timeout; what still runs then ends with an error and is counted.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from kvbudget_worker.engine import Engine
from kvbudget_worker.observer import Observer
from kvbudget_worker.refusals import Refusal, draining, engine_dead, loading

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
"""How long clients may take to receive the error that ends their stream."""


class Phase(Enum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


class Lifecycle:
    """Phase and engine of this process. One thread, the event loop's, uses it."""

    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self.engine: Engine | None = None
        self._requests = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._deadline: asyncio.Timeout | None = None

    def ready(self, engine: Engine) -> None:
        """The model is loaded. A drain that began meanwhile stays one."""
        self.engine = engine
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    @property
    def dead(self) -> str | None:
        """Why the engine is dead, if it is."""
        return self.engine.death if self.engine else None

    def closed(self, request_id: str) -> Refusal | None:
        """Why no new request can be taken now; None when it can."""
        if self.dead is not None:
            return engine_dead(request_id, self.dead)
        if self.phase is Phase.READY:
            return None
        return loading(request_id) if self.phase is Phase.LOADING else draining(request_id)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a generating request: the drain waits for its response to be sent."""
        self._requests += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._quiet.set()

    @property
    def requests(self) -> int:
        """Generating requests that are being answered, waiting ones included."""
        return self._requests

    def hurry(self) -> None:
        """Ends a drain that goes on, as if its time were up."""
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def drain(self, timeout_seconds: float, observer: Observer, *, flush_seconds: float = FLUSH_SECONDS) -> int:
        """Lets what was accepted finish, cuts off what remains, and returns how many requests that was."""
        self.phase = Phase.DRAINING
        log.info("draining: %d requests in flight, at most %s s", self._requests, timeout_seconds)
        if await self._all_quiet(timeout_seconds):
            aborted = 0
        else:
            aborted = self.engine.fail_all(draining) if self.engine else 0
            if not await self._all_quiet(flush_seconds):
                aborted = max(aborted, self._requests)
            observer.drain_aborted(aborted)
            log.error("the drain's time was up after %s s: %d requests were cut off", timeout_seconds, aborted)
        self.phase = Phase.STOPPED
        log.info("drained")
        return aborted

    async def _all_quiet(self, timeout_seconds: float) -> bool:
        """Waits until no request is being answered; False when the time is up."""
        try:
            async with asyncio.timeout(timeout_seconds) as self._deadline:
                await self._quiet.wait()
        except TimeoutError:
            return False
        finally:
            self._deadline = None
        return True
