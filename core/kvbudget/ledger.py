"""The ledger of one worker's KV pages: what live requests have reserved, page by page, exactly.

A request is charged ``⌈(prompt + output) ÷ page tokens⌉`` pages, in full and at once, so that it never has to be
preempted. ``n`` choices share the prompt's full pages and multiply the rest. Pages of a cached prefix that another live
request already holds are not charged again; a cached page that nobody holds counts as free, is charged when its first
holder comes (0 → 1) and released when its last one goes (1 → 0). At any time

    charged pages = reserved pages not yet bound to a physical page + physical pages that somebody holds ≤ capacity

>>> ledger = TokenLedger(capacity_pages=10, page_tokens=64)
>>> first = ledger.reserve("a", prompt_tokens=200, output_tokens=184, now_ms=0)    # 384 tokens = 6 pages
>>> first.charged_pages, ledger.free_pages
(6, 4)
>>> for page in (0, 1, 2):
...     ledger.bind("a", page)                        # the prompt's full pages are computed, and now in the cache
>>> second = ledger.reserve("b", prompt_tokens=200, output_tokens=184, cached_pages=[0, 1, 2], now_ms=0)
>>> second.pages, second.charged_pages, ledger.free_pages   # 6 pages, of which "a" already holds 3
(6, 3, 1)
>>> third = ledger.reserve("c", prompt_tokens=64, output_tokens=128, now_ms=0)
>>> third.kind.value, third.needed_pages, third.free_pages
('full', 3, 1)
>>> ledger.settle("a")
>>> ledger.free_pages                                 # only the 3 that "b" does not hold
4
>>> ledger.settle("b"); ledger.charged_pages
0
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from kvbudget.errors import LedgerError
from kvbudget.forecast import Live, Pace, Progress, jittered, wait_ms


class RejectKind(Enum):
    """Why there is no grant. ``NEVER_FITS``: above the whole capacity. ``FULL``: not now."""

    NEVER_FITS = "never_fits"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Grant:
    """A reservation. ``pages``: what the request may hold; ``charged_pages``: what it added to the ledger;
    ``cached_tokens``: prompt tokens that need no computing."""

    request_id: str
    pages: int
    charged_pages: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Reject:
    """A refusal. ``needed_pages`` is what would have been charged (for NEVER_FITS: all its pages).
    ``retry_after_ms``: 1 … 120000, see :mod:`kvbudget.forecast`; without meaning for NEVER_FITS."""

    request_id: str
    kind: RejectKind
    needed_pages: int
    free_pages: int
    capacity_pages: int
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """Pages at one moment: charged = bound + unbound; free = capacity − charged."""

    page_tokens: int
    capacity_pages: int
    charged_pages: int
    bound_pages: int
    free_pages: int
    requests: int


_NOT_BEGUN = Progress()


@dataclass(slots=True)
class _Account:
    output_tokens: int
    granted_ms: int
    charged_pages: int
    unbound_pages: int
    holds: Counter[int] = field(default_factory=Counter)
    progress: Progress = _NOT_BEGUN
    first_token_ms: int = 0


def pages_needed(page_tokens: int, prompt_tokens: int, output_tokens: int, n: int = 1) -> int:
    """Pages of a request with nothing cached: the prompt's full pages once, the rest for each of ``n`` choices.

    >>> pages_needed(64, 200, 184), pages_needed(64, 200, 184, n=3), pages_needed(64, 128, 1, n=2)
    (6, 12, 4)
    """
    shared = prompt_tokens // page_tokens
    return shared + n * (-(-(prompt_tokens + output_tokens) // page_tokens) - shared)


class TokenLedger:
    """See the module. Not thread-safe: one thread owns it. Every broken precondition raises LedgerError and changes
    nothing."""

    def __init__(self, capacity_pages: int, page_tokens: int) -> None:
        if capacity_pages < 1 or page_tokens < 1:
            raise LedgerError(f"a ledger of {capacity_pages} pages of {page_tokens} tokens: both must be at least 1")
        self.capacity_pages = capacity_pages
        self.page_tokens = page_tokens
        self._accounts: dict[str, _Account] = {}
        self._holders: Counter[int] = Counter()
        self._unbound_pages = 0
        self._pace = Pace()

    # --- what is charged ---------------------------------------------------------------------------------------------

    @property
    def bound_pages(self) -> int:
        """Physical pages that at least one live request holds."""
        return len(self._holders)

    @property
    def charged_pages(self) -> int:
        return self._unbound_pages + len(self._holders)

    @property
    def free_pages(self) -> int:
        return self.capacity_pages - self.charged_pages

    def held_pages(self, request_id: str) -> int:
        """All pages of a live request, shared ones in full."""
        account = self._account(request_id)
        return account.unbound_pages + len(account.holds)

    def holders(self, page: int) -> int:
        """How often live requests hold a physical page (a request with several choices may hold it several times)."""
        return self._holders.get(page, 0)

    def snapshot(self) -> LedgerSnapshot:
        return LedgerSnapshot(
            self.page_tokens,
            self.capacity_pages,
            self.charged_pages,
            self.bound_pages,
            self.free_pages,
            len(self._accounts),
        )

    # --- a request's life --------------------------------------------------------------------------------------------

    def reserve(
        self,
        request_id: str,
        *,
        prompt_tokens: int,
        output_tokens: int,
        n: int = 1,
        cached_pages: Sequence[int] = (),
        ahead_pages: int = 0,
        now_ms: int,
    ) -> Grant | Reject:
        """Grants all pages of a request or none.

        ``cached_pages``: physical pages of the prompt's cached prefix, in order; a grant holds each of them once.
        ``ahead_pages``: pages of requests that wait before this one; they only lengthen the forecast of a Reject.
        """
        if request_id in self._accounts:
            raise LedgerError(f"request {request_id!r} already has a reservation")
        if prompt_tokens < 1 or output_tokens < 1 or n < 1:
            raise LedgerError(f"{prompt_tokens} prompt tokens, {output_tokens} output tokens, n {n}: all must be ≥ 1")
        if len(cached_pages) > prompt_tokens // self.page_tokens or len(set(cached_pages)) < len(cached_pages):
            raise LedgerError(f"cached pages {list(cached_pages)} are no prefix of {prompt_tokens} prompt tokens")
        for page in cached_pages:
            self._check_page(page)
        pages = pages_needed(self.page_tokens, prompt_tokens, output_tokens, n)
        if pages > self.capacity_pages:
            return self._reject(request_id, RejectKind.NEVER_FITS, pages, 0, now_ms)
        charged = pages - sum(1 for page in cached_pages if page in self._holders)
        if charged > self.free_pages:
            return self._reject(request_id, RejectKind.FULL, charged, ahead_pages, now_ms)
        unbound = pages - len(cached_pages)
        self._accounts[request_id] = _Account(output_tokens, now_ms, charged, unbound, Counter(cached_pages))
        self._holders.update(cached_pages)
        self._unbound_pages += unbound
        return Grant(request_id, pages, charged, len(cached_pages) * self.page_tokens)

    def bind(self, request_id: str, page: int) -> None:
        """One of the request's unbound pages becomes this physical page, which nobody held. The charge stays."""
        account = self._account(request_id)
        self._check_page(page)
        if not account.unbound_pages:
            raise LedgerError(f"request {request_id!r} has no page left to bind to page {page}")
        if page in self._holders:
            raise LedgerError(f"page {page} is held already; share it instead")
        account.unbound_pages -= 1
        self._unbound_pages -= 1
        account.holds[page] = self._holders[page] = 1

    def share(self, request_id: str, page: int) -> None:
        """One more hold on a physical page. Charged only if nobody held it: then one page must be free."""
        account = self._account(request_id)
        self._check_page(page)
        if page not in self._holders and not self.free_pages:
            raise LedgerError(f"no page is free to charge page {page} to request {request_id!r}")
        account.holds[page] += 1
        self._holders[page] += 1

    def unbind(self, request_id: str, page: int) -> None:
        """Gives up one hold on a physical page. The last hold of all releases the page."""
        account = self._account(request_id)
        if page not in account.holds:
            raise LedgerError(f"request {request_id!r} does not hold page {page}")
        _take(account.holds, page, 1)
        _take(self._holders, page, 1)

    def relinquish(self, request_id: str, pages: int) -> None:
        """Gives up unbound pages that the request will never use (one of its choices has ended, a page was shared)."""
        account = self._account(request_id)
        if not 0 <= pages <= account.unbound_pages:
            raise LedgerError(f"request {request_id!r} has {account.unbound_pages} unbound pages, not {pages}")
        account.unbound_pages -= pages
        self._unbound_pages -= pages

    def progress(self, request_id: str, generated_tokens: int, now_ms: int) -> None:
        """Tells how far the request's longest choice has come; only the forecast uses it."""
        account = self._account(request_id)
        before = account.progress
        if generated_tokens <= before.generated_tokens:
            return
        if not before.generated_tokens:
            account.first_token_ms = now_ms
            before = Progress(first_tokens=generated_tokens)
        decode_ms = max(now_ms - account.first_token_ms, 0)
        account.progress = Progress(generated_tokens, decode_ms, before.first_tokens)

    def settle(self, request_id: str) -> None:
        """Ends a request, however it ended: all it still holds is released."""
        account = self._account(request_id)
        for page, holds in account.holds.items():
            _take(self._holders, page, holds)
        self._unbound_pages -= account.unbound_pages
        del self._accounts[request_id]
        if account.progress.generated_tokens:
            self._pace = self._pace.after(
                first_token_ms=max(account.first_token_ms - account.granted_ms, 0),
                progress=account.progress,
                output_tokens=account.output_tokens,
            )

    def retry_after_ms(self, request_id: str, pages: int, now_ms: int, *, ahead_pages: int = 0) -> int:
        """When ``pages`` will be free behind ``ahead_pages`` that wait before: 1 … 120000, jittered by the id.

        Comes from what is live now and from how fast requests have ended; see :mod:`kvbudget.forecast`.
        """
        live = (
            Live(
                account.charged_pages,
                self._pace.end_ms(
                    age_ms=max(now_ms - account.granted_ms, 0),
                    output_tokens=account.output_tokens,
                    progress=account.progress,
                ),
            )
            for account in self._accounts.values()
        )
        return jittered(wait_ms(live, pages + ahead_pages - self.free_pages), request_id)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _account(self, request_id: str) -> _Account:
        try:
            return self._accounts[request_id]
        except KeyError:
            raise LedgerError(f"request {request_id!r} has no reservation") from None

    def _check_page(self, page: int) -> None:
        if not 0 <= page < self.capacity_pages:
            raise LedgerError(f"page {page} is outside 0 … {self.capacity_pages - 1}")

    def _reject(self, request_id: str, kind: RejectKind, pages: int, ahead_pages: int, now_ms: int) -> Reject:
        return Reject(
            request_id,
            kind,
            pages,
            self.free_pages,
            self.capacity_pages,
            self.retry_after_ms(request_id, pages, now_ms, ahead_pages=ahead_pages),
        )


def _take(counter: Counter[int], page: int, count: int) -> None:
    """Counts down and forgets a page at zero, so that ``len(counter)`` is the number of held pages."""
    counter[page] -= count
    if not counter[page]:
        del counter[page]
