"""A bound on the head of a request: uvicorn bounds it only with its slower parser, so one endless header would take all
the memory of the process."""

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 << 10
"""Request line and headers; as much as uvicorn allows with its other parser."""


class BoundedHeads(HttpToolsProtocol):
    """Closes a connection with 400 once it has sent more than a head may have and no head has ended. Counts in pieces
    as they are read from the socket, so a head within one piece may be longer by that."""

    _unended_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unended_bytes += len(data)
        super().data_received(data)
        if self._unended_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            message = f"The head of the request is longer than {MAX_HEAD_BYTES} bytes."
            self.logger.warning(message)
            self.send_400_response(message)

    def on_headers_complete(self) -> None:
        self._unended_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unended_bytes = 0
        super().on_body(body)
