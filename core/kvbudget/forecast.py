"""When will there be room: the forecast behind ``Retry-After``.

Every live request is expected to end after ``time to its first token + remaining output tokens × milliseconds per
token``. Sorted by that time, their pages are added up until they cover what is missing; the time of the last one needed
is the forecast. What nobody knows is how many of its reserved tokens a request will use: as great a share as those
finished requests used, in the mean, that used more than it has used by now. The two times are kept apart: a request
that waited long for its first token is not slow afterwards.

>>> done = Progress(generated_tokens=200, decode_ms=3980)
>>> pace = Pace().after(first_token_ms=1000, progress=done, output_tokens=400)
>>> pace.first_token_ms, pace.ms_per_token, pace.used_shares
(1000.0, 20.0, (0.5,))
>>> pace.used_share(0.4), pace.used_share(0.5)  # none has used more: then all of it
(0.5, 1.0)
>>> pace.end_ms(age_ms=600, output_tokens=100, progress=Progress())  # 400 ms to the first token, then 49 more
1380
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
_AVERAGE_WEIGHT_TOKENS = 8
_SHARES = 32
"""Finished requests whose use is remembered."""
_OVERDUE = 1.25
_JITTER_SHARE = 4
"""A forecast is spread over the quarter above it, so that clients refused together do not come back together."""


@dataclass(frozen=True, slots=True)
class Live:
    """A live request: the pages that its end releases, and in how many milliseconds it is expected to end."""

    pages: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a live request's decoding has come: ``generated_tokens`` after its first report, in ``decode_ms``."""

    generated_tokens: int = 0
    decode_ms: int = 0
    first_tokens: int = 1
    """Tokens of the first report; the time before it is no decoding."""

    @property
    def ms_per_token(self) -> float | None:
        """Its own pace, once it has shown one."""
        decoded = self.generated_tokens - self.first_tokens
        return self.decode_ms / decoded if decoded > 0 else None


@dataclass(frozen=True, slots=True)
class Pace:
    """Moving averages over finished requests: time from the grant to the first token, and time per token after it, None
    until the first one ends. ``used_shares``: of the reserved output tokens, what each of the last ones used."""

    first_token_ms: float | None = None
    ms_per_token: float | None = None
    used_shares: tuple[float, ...] = ()

    def after(self, *, first_token_ms: int, progress: Progress, output_tokens: int) -> "Pace":
        """The averages with one more finished request, which has generated at least one token."""
        own = progress.ms_per_token
        return Pace(
            _moved(self.first_token_ms, first_token_ms),
            self.ms_per_token if own is None else _moved(self.ms_per_token, own),
            (*self.used_shares, min(progress.generated_tokens / output_tokens, 1.0))[-_SHARES:],
        )

    def used_share(self, generated_share: float = 0.0) -> float:
        """Share of its output tokens that a request is expected to use which has used ``generated_share`` so far: the
        mean of the last finished ones that used more. Where there is none, all of it."""
        longer = [share for share in self.used_shares if share > generated_share]
        return sum(longer) / len(longer) if longer else 1.0

    def end_ms(self, *, age_ms: int, output_tokens: int, progress: Progress) -> int:
        """Expected milliseconds until a request ends that was granted ``age_ms`` ago; at least one token's time.

        One that has waited longer for its first token than expected is expected to wait a quarter more than so far."""
        pace = self._pace_of(progress)
        generated = progress.generated_tokens
        share = self.used_share(generated / output_tokens)
        expected = min(max(ceil(output_tokens * share), generated, 1), output_tokens)
        left_ms = pace * (expected - generated)
        if not generated:
            first_ms = _PRIOR_MS_PER_TOKEN if self.first_token_ms is None else self.first_token_ms
            left_ms += max(first_ms, age_ms * _OVERDUE) - age_ms - pace
        return max(ceil(left_ms), ceil(pace))

    def _pace_of(self, progress: Progress) -> float:
        """Milliseconds per token: the request's own, drawn to the average while it has shown little. The first steps of
        a burst carry the prompts of others and tell nothing of those that follow."""
        own, typical = progress.ms_per_token, self.ms_per_token
        if own is None:
            return _PRIOR_MS_PER_TOKEN if typical is None else typical
        if typical is None:
            return own
        decoded = progress.generated_tokens - progress.first_tokens
        return (progress.decode_ms + _AVERAGE_WEIGHT_TOKENS * typical) / (decoded + _AVERAGE_WEIGHT_TOKENS)


def _moved(average: float | None, newest: float) -> float:
    return float(newest) if average is None else average + _NEWEST_WEIGHT * (newest - average)


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
