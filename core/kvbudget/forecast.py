"""When will there be room: the forecast behind ``Retry-After``.

Every live request is expected to end after ``remaining output tokens × milliseconds per token``. Sorted by that time,
their pages are added up until they cover what is missing; the time of the last one needed is the forecast. What nobody
knows is how many of its reserved tokens a request will use, so the remaining tokens are scaled by the share that
finished requests used, and the pace is measured on finished and on running ones.

>>> pace = Pace().after(hold_ms=4000, generated_tokens=200, output_tokens=400)
>>> pace.ms_per_token, pace.used_share
(20.0, 0.5)
>>> live = [Live(pages=4, end_ms=900), Live(pages=10, end_ms=2000)]
>>> wait_ms(live, missing_pages=3), wait_ms(live, missing_pages=5)
(900, 2000)
>>> wait_ms(live, missing_pages=28)  # more than all of them release: go on at the same rate
4000
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from kvbudget.contract import MAX_RETRY_AFTER_MS

_PRIOR_MS_PER_TOKEN = 50.0
"""Pace until the first request has told the real one; a forecast still depends on what is running."""
_NEWEST_WEIGHT = 0.1
_JITTER_SHARE = 4
"""A forecast is spread over the quarter above it, so that clients refused together do not come back together."""


@dataclass(frozen=True, slots=True)
class Live:
    """A live request: the pages that its end releases, and in how many milliseconds it is expected to end."""

    pages: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Moving averages over finished requests: time held per generated token (prefill included), and the share of the
    reserved output tokens that was used. ``None`` and 1 until the first one ends."""

    ms_per_token: float | None = None
    used_share: float = 1.0

    def after(self, *, hold_ms: int, generated_tokens: int, output_tokens: int) -> "Pace":
        """The averages with one more finished request, which has generated at least one token."""
        ms_per_token, used = hold_ms / generated_tokens, generated_tokens / output_tokens
        if self.ms_per_token is None:
            return Pace(ms_per_token, used)
        return Pace(
            self.ms_per_token + _NEWEST_WEIGHT * (ms_per_token - self.ms_per_token),
            self.used_share + _NEWEST_WEIGHT * (used - self.used_share),
        )

    def end_ms(self, *, age_ms: int, generated_tokens: int, output_tokens: int) -> int:
        """Expected milliseconds until a request ends that was granted ``age_ms`` ago; at least one token's time."""
        expected = max(generated_tokens + 1, ceil(output_tokens * self.used_share))
        # Its own pace once it has shown one: a long prompt or a slow batch differs from the average.
        own = age_ms / generated_tokens if generated_tokens > 1 else None
        pace = own or self.ms_per_token or _PRIOR_MS_PER_TOKEN
        left = (min(expected, max(output_tokens, 1)) - generated_tokens) * pace
        if not generated_tokens:
            left -= age_ms
        return max(ceil(left), ceil(pace))


def wait_ms(live: Iterable[Live], missing_pages: int) -> int:
    """Milliseconds until ``missing_pages`` more pages are free, by the expected ends in ``live``.

    Where all of them together release too little (others wait before this request), it goes on at their mean rate.
    """
    if missing_pages <= 0:
        return 1
    released = last_ms = 0
    for request in sorted(live, key=lambda r: r.end_ms):
        released += request.pages
        last_ms = request.end_ms
        if released >= missing_pages:
            return last_ms
    return ceil(last_ms * missing_pages / released) if released else MAX_RETRY_AFTER_MS


def jittered(forecast_ms: int, request_id: str) -> int:
    """The forecast plus up to a quarter of it, the same for the same id; 1 … 120000."""
    room = MAX_RETRY_AFTER_MS * _JITTER_SHARE // (_JITTER_SHARE + 1)
    base = min(max(forecast_ms, 1), room)
    draw = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:4])
    return base + base * draw // (_JITTER_SHARE << 32)
