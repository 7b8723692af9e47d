"""What a connection may cost that asks for nothing: the length of a head, the time it takes, and how many stay open.

uvicorn bounds none of these with its faster parser. Requests that are being answered are not counted here: only the
token budget limits them.
"""

import asyncio
import socket
from dataclasses import dataclass
from typing import Any, Final

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kvbudget_worker.refusals import invalid

MAX_HEAD_BYTES: Final = 64 << 10
"""Request line and headers; as much as uvicorn allows with its other parser."""
_PROBES: Final = 4
_PIPELINED: Final = 8
"""Requests that are taken while another one is answered; more stay in the kernel's buffers."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a worker waits for a client, in seconds, and how many ``idle_connections`` it keeps.

    ``head_seconds``: for the head of a request once the connection is open or its first byte is there;
    ``body_seconds``: for all of its body; ``stall_seconds``: for a client that takes nothing of its answer, or that has
    vanished without closing."""

    head_seconds: float = 60
    body_seconds: float = 60
    stall_seconds: float = 60
    idle_connections: int = 1024

    def apply(self, sock: socket.socket) -> None:
        """Sets the kernel's part on a listening socket; what it accepts inherits that. A stalled answer would
        otherwise stay for as long as the client likes: its rest lies in buffers that no timer of ours sees."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self.stall_seconds * 1000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        pause = max(1, int(self.stall_seconds / _PROBES))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


DEFAULT_PATIENCE: Final = Patience()


class BoundedConnection(HttpToolsProtocol):
    """Closes a connection with 400 once it has sent more than a head may have and no head has ended (counted in pieces
    as they are read from the socket, so a head within one piece may be longer by that), without a word when the head
    does not end in time, and when more than ``idle_connections`` are open that no request is answered on: then the one
    goes that has been idle the longest, so that a probe always gets in."""

    def __init__(self, *args: Any, patience: Patience, **options: Any) -> None:
        super().__init__(*args, **options)
        self._patience = patience
        self._unended_bytes = 0
        self._idle_since = self.loop.time()
        self._head_timer: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self._patience.idle_connections:
            idle = [c for c in self.connections if isinstance(c, BoundedConnection) and c.idle]
            if len(idle) > self._patience.idle_connections:
                min(idle, key=lambda c: c._idle_since).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)
        # uvicorn tells only the last request that came; with others sent behind it, the one being answered is another.
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    @property
    def idle(self) -> bool:
        """No request is read or answered on it."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return not answering and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unended_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unended_bytes > MAX_HEAD_BYTES:
            message = f"The head of the request is longer than {MAX_HEAD_BYTES} bytes."
            self.logger.warning(message)
            self.send_400_response(message)
        elif self.idle and self._head_timer is None and self._unended_bytes:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._unended_bytes = 0
        self._head_is_there()
        super().on_headers_complete()
        if len(self.pipeline) <= _PIPELINED:
            self.flow.resume_reading()  # uvicorn stops reading behind a request, and so misses the connection's end

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._unended_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """In the shape of all other errors."""
        body = orjson.dumps(invalid(None, msg).as_error())
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._patience.head_seconds, self.transport.close)

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
