"""The few pieces of ASGI that the streaming endpoints need, and the one middleware."""

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvbudget.contract import HEADER_REQUEST_ID
from kvbudget_worker.refusals import Refusal, internal_error

log = logging.getLogger(__name__)

JSON: Final = (b"content-type", b"application/json")
_ID = re.compile(rb"[\x21-\x7e]{1,200}")


async def respond(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = (JSON,)) -> None:
    """Sends a whole response."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, refusal: Refusal) -> None:
    """Sends a refusal."""
    headers = [JSON, *((name.encode(), value.encode()) for name, value in refusal.headers)]
    await respond(send, refusal.status, orjson.dumps(refusal.as_error()), headers)


class ClientGone(Exception):
    """The client closed the connection: there is nobody to answer."""


@asynccontextmanager
async def until_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancels the block when the client goes away, wherever it waits, and raises ClientGone instead of the
    cancellation. So everything that a request holds is released by ``finally``, in one way for all ends."""
    task = asyncio.current_task()
    assert task is not None  # an ASGI call always runs in one
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        yield
    except asyncio.CancelledError:
        if gone and not task.uncancel():
            raise ClientGone from None
        raise
    finally:
        watcher.cancel()


class RequestContext:
    """Pure-ASGI middleware: gives each request its id, echoes it and ``traceparent``, adds ``connection: close`` while
    ``closing()``, and turns an unexpected error into a plain 500 instead of a traceback."""

    def __init__(self, app: ASGIApp, closing: Callable[[], bool]) -> None:
        self._app = app
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        echoed = self._echoed(scope)
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers: list[Any] = [*message.get("headers", ()), *echoed]
                if self._closing() and not any(name == b"connection" for name, _ in headers):
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            log.exception("%s %s failed: %s", scope["method"], scope["path"], error)
            if started:
                raise  # the server closes the connection: the client sees a truncated response
            await refuse(send_with_headers, internal_error())

    def _echoed(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        given = {name: value for name, value in scope["headers"] if name in (b"x-request-id", b"traceparent")}
        request_id = given.get(b"x-request-id", b"")
        if not _ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex.encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        echoed = [(HEADER_REQUEST_ID.encode(), request_id)]
        if _ID.fullmatch(given.get(b"traceparent", b"")):
            echoed.append((b"traceparent", given[b"traceparent"]))
        return echoed
