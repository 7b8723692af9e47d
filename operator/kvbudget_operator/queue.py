"""A work queue with the semantics of controller-runtime: keys, not events.

A key is held at most once, however often it is added. One key is never reconciled twice at the same time: a key added
while it is being reconciled is reconciled again afterwards. A reconcile that raises is retried with exponential backoff
per key; one that returns seconds is repeated after them. Nothing else is remembered, so a restart loses nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kvbudget.errors import KvbudgetError

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class Observer(Protocol):
    """Told about what the queue does (metrics)."""

    def depth(self, keys: int) -> None: ...

    def done(self, seconds: float, error: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delay before retry ``failures``, in seconds: ``first × 2^(failures − 1)``, at most ``longest``."""

    first: float = 0.5
    longest: float = 60.0

    def delay(self, failures: int) -> float:
        """
        >>> [Backoff(0.5, 5.0).delay(n) for n in (1, 2, 3, 4, 5, 500)]
        [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
        """
        return min(self.first * 2.0 ** min(failures - 1, 30), self.longest)


class WorkQueue(Generic[K]):
    """Call :meth:`add` and :meth:`add_after` from the event loop's thread; :meth:`run` works until it is cancelled."""

    def __init__(
        self,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        workers: int,
        observer: Observer,
        backoff: Backoff | None = None,
    ) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._observer = observer
        self._backoff = backoff or Backoff()
        self._waiting: dict[K, None] = {}  # in order of arrival
        self._active: set[K] = set()
        self._dirty: set[K] = set()  # added while active
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wakeup = asyncio.Event()

    def add(self, key: K) -> None:
        """Reconcile ``key`` as soon as a worker is free. A later delayed add of the key is then pointless: dropped."""
        self._cancel_timer(key)
        if key in self._active:
            self._dirty.add(key)
        else:
            self._waiting[key] = None
            self._observer.depth(len(self._waiting))
            self._wakeup.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Reconcile ``key`` after ``seconds``, or sooner where an earlier time is already set."""
        if key in self._waiting or key in self._dirty:
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_later(seconds, self.add, key)

    async def run(self) -> None:
        """Work until cancelled. Raises only what is a bug of this class."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"reconcile-{number}")
        finally:
            for key in list(self._timers):
                self._cancel_timer(key)

    async def resync(self, keys: Callable[[], Iterable[K]], every_seconds: float) -> None:
        """Add all ``keys`` every so often, until cancelled: what no event told is then noticed too."""
        while True:
            await asyncio.sleep(every_seconds)
            for key in list(keys()):
                self.add(key)

    def _cancel_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._wakeup.clear()
                await self._wakeup.wait()
            key = next(iter(self._waiting))
            del self._waiting[key]
            self._observer.depth(len(self._waiting))
            self._active.add(key)
            try:
                await self._once(key)
            finally:
                self._active.discard(key)
                if key in self._dirty:
                    self._dirty.discard(key)
                    self.add(key)

    async def _once(self, key: K) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            again = await self._reconcile(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = self._backoff.delay(failures)
            is_bug = not isinstance(error, KvbudgetError)  # the others say all that there is to say
            text = "reconcile of %s failed (%d in a row), next try in %.1f s: %s"
            logger.error(text, key, failures, delay, error, exc_info=is_bug)  # noqa: TRY400
            self._observer.done(loop.time() - start, error=True)
            self.add_after(key, delay)
        else:
            self._failures.pop(key, None)
            self._observer.done(loop.time() - start, error=False)
            if again is not None:
                self.add_after(key, again)
