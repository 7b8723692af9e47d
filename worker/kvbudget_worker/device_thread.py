"""The one thread that touches the device: it loads the weights and computes every step."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class DeviceThread:
    """Runs blocking calls one after another, on one thread.

    A daemon thread, unlike the threads of ``concurrent.futures``: a step or a load that hangs must not keep the process
    from exiting when its time is up.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="device", daemon=True)
        self._thread.start()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Awaits ``call(*args)``; whatever it raises is raised here. A cancelled caller does not stop the call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def resolve(value: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)  # type: ignore[arg-type]

        def job() -> None:
            value: T | None = None
            error: BaseException | None = None
            try:
                value = call(*args)
            except BaseException as raised:  # noqa: BLE001 (the awaiting side decides)
                # StopIteration cannot be set on a future.
                error = RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else raised
            try:
                loop.call_soon_threadsafe(resolve, value, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

        self._jobs.put(job)
        return await future

    def close(self, timeout_seconds: float) -> bool:
        """Ends the thread after what it is doing; False if that takes longer than the timeout."""
        self._jobs.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
