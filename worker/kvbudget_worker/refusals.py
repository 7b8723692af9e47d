"""Every way in which a request is refused: the one table of status, type, code and headers.

===============================  ======  =====================  =========================
case                             status  type                   code
===============================  ======  =====================  =========================
bad JSON or field                400     invalid_request_error  (none; ``param`` is named)
context or declared limit        400     invalid_request_error  context_length_exceeded
can never fit the pool           400     invalid_request_error  request_exceeds_kv_budget
body too big                     413     invalid_request_error  body_too_large
body not there in time           408     invalid_request_error  body_timeout
unknown model                    404     invalid_request_error  model_not_found
pool or queue full now           429     rate_limit_error       kv_budget_exhausted
queued past its deadline         429     rate_limit_error       queue_timeout
loading, draining, engine dead   503     service_unavailable    loading, draining, engine_dead
===============================  ======  =====================  =========================

429 becomes 503 where the service says ``overloadStatus: 503``; the type stays. Pure: no clock, no I/O.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from kvbudget.contract import (
    HEADER_DROP_REASON,
    HEADER_LIMIT_TOKENS,
    HEADER_REMAINING_TOKENS,
    HEADER_RESET_TOKENS,
    HEADER_RETRY_AFTER_MS,
    HEADER_SHOULD_RETRY,
    MAX_RETRY_AFTER_MS,
)

INVALID: Final = "invalid_request_error"
RATE_LIMIT: Final = "rate_limit_error"
UNAVAILABLE: Final = "service_unavailable"

CODES: Final = (
    "invalid_request",
    "context_length_exceeded",
    "request_exceeds_kv_budget",
    "body_too_large",
    "body_timeout",
    "bodies_busy",
    "model_not_found",
    "kv_budget_exhausted",
    "queue_timeout",
    "loading",
    "draining",
    "engine_dead",
)
"""Values of the ``reason`` label of the rejection counter: the code, or ``invalid_request`` where there is none."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal as the client sees it. ``headers`` are (lower-case name, value) pairs."""

    status: int
    type: str
    message: str
    code: str | None = None
    param: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def reason(self) -> str:
        """The metric label."""
        return self.code or "invalid_request"

    def as_error(self) -> dict[str, dict[str, str | None]]:
        """The body: ``{"error": {message, type, param, code}}``."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class Refused(Exception):
    """Carries a :class:`Refusal` up to the HTTP layer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Room:
    """The pool at the moment of a refusal, in tokens (pages × page tokens), and when room is forecast."""

    limit_tokens: int
    remaining_tokens: int
    retry_after_ms: int


def invalid(param: str | None, message: str) -> Refusal:
    """400: ``param`` is the path of the field in the body."""
    return Refusal(400, INVALID, message, None, param)


def context_length_exceeded(param: str, message: str) -> Refusal:
    return Refusal(400, INVALID, message, "context_length_exceeded", param, ((HEADER_SHOULD_RETRY, "false"),))


def exceeds_budget(needed_tokens: int, limit_tokens: int) -> Refusal:
    """400: this service can never hold the request."""
    message = (
        f"this request needs at least {needed_tokens} tokens of KV memory; this service holds {limit_tokens} in all: "
        "send a shorter prompt, a smaller max_tokens, or fewer prompts and choices (n) at once"
    )
    return Refusal(400, INVALID, message, "request_exceeds_kv_budget", None, ((HEADER_SHOULD_RETRY, "false"),))


def body_too_large(limit_bytes: int) -> Refusal:
    return Refusal(413, INVALID, f"the body is larger than {limit_bytes} bytes", "body_too_large")


def body_timeout(limit_seconds: float) -> Refusal:
    """408. The connection is closed: the rest of the body would be taken for the next request."""
    message = f"the body did not arrive within {limit_seconds:g} s"
    return Refusal(408, INVALID, message, "body_timeout", None, (("connection", "close"),))


def bodies_busy(waited_seconds: float) -> Refusal:
    """503: as many large bodies as this worker holds at once are being read."""
    message = f"waited {waited_seconds:g} s for a turn: too many large bodies are being read at once"
    return Refusal(503, UNAVAILABLE, message, "bodies_busy", None, _retry_headers(1_000))


def model_not_found(asked: str, served: str) -> Refusal:
    message = f"the model {asked[:200]!r} is not served here; this service serves {served!r}"
    return Refusal(404, INVALID, message, "model_not_found", "model")


def budget_full(status: int, needed_tokens: int, room: Room, *, queue_tokens: int = 0) -> Refusal:
    """429 or 503: the pool (and the queue, where there is one) is full now, although the request could fit."""
    queued = f", and the queue of {queue_tokens} tokens is full" if queue_tokens else ""
    message = (
        f"the KV budget is full now: this request needs {needed_tokens} tokens, {room.remaining_tokens} of "
        f"{room.limit_tokens} are free{queued}; retry in {seconds(room.retry_after_ms)}"
    )
    return Refusal(
        status,
        RATE_LIMIT,
        message,
        "kv_budget_exhausted",
        None,
        (*_room_headers(room), (HEADER_DROP_REASON, "rejected-saturated")),
    )


def queue_timeout(status: int, waited_ms: int, needed_tokens: int, room: Room) -> Refusal:
    """429 or 503: waited as long as the service allows."""
    message = (
        f"waited {seconds(waited_ms)} for {needed_tokens} tokens of KV memory in vain; "
        f"retry in {seconds(room.retry_after_ms)}"
    )
    return Refusal(
        status,
        RATE_LIMIT,
        message,
        "queue_timeout",
        None,
        (*_room_headers(room), (HEADER_DROP_REASON, "rejected-ttl-expired")),
    )


def loading(request_id: str) -> Refusal:
    headers = _retry_headers(_jittered(request_id, 2_000))
    return Refusal(503, UNAVAILABLE, "the model is being loaded", "loading", None, headers)


def draining(request_id: str) -> Refusal:
    """503: this worker leaves. The connection is closed, so that a retry reaches another one."""
    headers = (
        *_retry_headers(_jittered(request_id, 500)),
        ("connection", "close"),
        (HEADER_DROP_REASON, "rejected-shutting-down"),
    )
    message = "this worker is shutting down; a retry reaches another one"
    return Refusal(503, UNAVAILABLE, message, "draining", None, headers)


def engine_dead(request_id: str, why: str) -> Refusal:
    headers = _retry_headers(_jittered(request_id, 5_000))
    message = f"the engine failed and this worker is being restarted ({why})"
    return Refusal(503, UNAVAILABLE, message, "engine_dead", None, headers)


def internal_error() -> Refusal:
    """500: a bug of ours; the log has the trace."""
    return Refusal(500, "internal_error", "this request failed inside the worker; its log says why", "internal_error")


def seconds(ms: int) -> str:
    """``1500`` → ``1.5s``."""
    return f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"


def _retry_headers(retry_after_ms: int) -> tuple[tuple[str, str], ...]:
    ms = min(max(retry_after_ms, 1), MAX_RETRY_AFTER_MS)
    return ("retry-after", str(-(-ms // 1000))), (HEADER_RETRY_AFTER_MS, str(ms))


def _room_headers(room: Room) -> tuple[tuple[str, str], ...]:
    return (
        *_retry_headers(room.retry_after_ms),
        (HEADER_LIMIT_TOKENS, str(room.limit_tokens)),
        (HEADER_REMAINING_TOKENS, str(room.remaining_tokens)),
        (HEADER_RESET_TOKENS, seconds(room.retry_after_ms)),
    )


def _jittered(request_id: str, base_ms: int) -> int:
    """``base_ms`` to twice that, spread by the request's id, so that refused clients do not come back together."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=4).digest()
    return base_ms + int.from_bytes(digest, "big") % base_ms
