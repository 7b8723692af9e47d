"""Taking in bodies: how large one may be, how long it may take, and how many large ones are held at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.types import Receive, Scope

from kvbudget_worker.http.asgi import ClientGone
from kvbudget_worker.refusals import Refused, bodies_busy, body_timeout, body_too_large

_SMALL_BYTES: Final = 64 << 10
"""As much as uvicorn reads ahead for each connection: waiting would save no memory."""
_LARGE_AT_ONCE: Final = 16


class Intake:
    """``limit_bytes``: for one body; ``limit_seconds``: for all of it to arrive, and to wait for its turn."""

    def __init__(self, limit_bytes: int, limit_seconds: float, *, large_at_once: int = _LARGE_AT_ONCE) -> None:
        self.limit_bytes = limit_bytes
        self.limit_seconds = limit_seconds
        self._large = asyncio.Semaphore(large_at_once)

    @asynccontextmanager
    async def body(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body, for as long as it is worked on: until its tokens are known, nothing else bounds what requests
        hold. Raises ClientGone and Refused: 413 as soon as it is known to be too long, 408 when it is not there in
        time, 503 when no turn came."""
        declared = dict(scope["headers"]).get(b"content-length", b"")
        size = int(declared) if declared.isdigit() else None
        if size is not None and size > self.limit_bytes:
            raise Refused(body_too_large(self.limit_bytes))
        if size is not None and size <= _SMALL_BYTES:
            yield await self._read(receive)
            return
        try:
            async with asyncio.timeout(self.limit_seconds):
                await self._large.acquire()
        except TimeoutError:
            raise Refused(bodies_busy(self.limit_seconds)) from None
        try:
            yield await self._read(receive)
        finally:
            self._large.release()

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limit_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.limit_bytes:
                        raise Refused(body_too_large(self.limit_bytes))
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(body_timeout(self.limit_seconds)) from None
