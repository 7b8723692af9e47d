"""Who was told to come back, and when: a queue of clients that are not connected.

Whoever is refused with a ``Retry-After`` will come back and want its pages; so the next one that is refused has to wait
for those too, or both come back to room for one. A promise counts until it is kept (the client's id was granted) or is
due: most clients send no id, and their return cannot be told from a new request. A client that comes back and is
refused again keeps its place, so nobody is overtaken for having asked twice.

>>> promises = Promises()
>>> promises.ahead_pages("a", now_ms=0)
0
>>> promises.add("a", pages=10, retry_after_ms=4_000, now_ms=0)
>>> promises.add("b", pages=5, retry_after_ms=6_000, now_ms=0)
>>> promises.ahead_pages("new", now_ms=1_000), promises.ahead_pages("b", now_ms=1_000)
(15, 10)
>>> promises.ahead_pages("new", now_ms=4_000)  # "a" is due: it has come back, or it will not
5
>>> promises.kept("b"); promises.ahead_pages("new", now_ms=5_000)
0
"""

from collections import OrderedDict
from dataclasses import dataclass

from kvbudget.errors import LedgerError


@dataclass(frozen=True, slots=True)
class _Promise:
    pages: int
    due_ms: int


class Promises:
    """See the module. ``now_ms`` is any clock that never runs backwards. Beyond ``max_ids`` the oldest are forgotten,
    which makes forecasts shorter, never wrong in another way."""

    def __init__(self, *, max_ids: int = 10_000) -> None:
        if max_ids < 1:
            raise LedgerError(f"max_ids is {max_ids}: must be at least 1")
        self._max_ids = max_ids
        self._promises: OrderedDict[str, _Promise] = OrderedDict()

    def add(self, request_id: str, *, pages: int, retry_after_ms: int, now_ms: int) -> None:
        """The client was told to come back for ``pages`` after ``retry_after_ms``."""
        self._promises[request_id] = _Promise(pages, now_ms + retry_after_ms)
        if len(self._promises) > self._max_ids:
            self._promises.popitem(last=False)

    def kept(self, request_id: str) -> None:
        """The client was granted its pages, or is gone."""
        self._promises.pop(request_id, None)

    def ahead_pages(self, request_id: str, now_ms: int) -> int:
        """Pages of those who were told to come back before this client was and are not due yet."""
        for other in [o for o, p in self._promises.items() if p.due_ms <= now_ms and o != request_id]:
            del self._promises[other]
        ahead = 0
        for other, promise in self._promises.items():
            if other == request_id:
                break
            ahead += promise.pages
        return ahead
