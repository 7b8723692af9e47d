"""One comparison of a prediction with a log."""

from dataclasses import dataclass, replace
from typing import Literal

from scoring.points import Point

CheckName = Literal[
    "bytes_per_token", "kv_given_weights", "kv_predicted_weights", "hybrid_blocks", "fits", "trtllm_batch"
]
CHECKS: tuple[CheckName, ...] = (
    "bytes_per_token",
    "kv_given_weights",
    "kv_predicted_weights",
    "hybrid_blocks",
    "fits",
    "trtllm_batch",
)


@dataclass(frozen=True, kw_only=True)
class Score:
    """``predicted``, ``low``, ``high`` and ``logged`` are in the check's unit: bytes, GiB, requests at once, tokens, or
    whole batches. ``ok`` is None where the check was skipped, and ``skipped`` then says why. ``kind`` is the group of
    the summary; ``peers`` are the predictions of other planners."""

    id: str
    check: CheckName
    kind: str
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    logged: float | None = None
    ok: bool | None = None
    verdict: str = ""
    skipped: str = ""
    peers: tuple[tuple[str, float], ...] = ()

    @property
    def rel_err(self) -> float | None:
        """(predicted − logged) ÷ logged; None for a verdict, whose figures are tokens that fit and tokens wanted."""
        return None if self.check == "fits" else error(self.predicted, self.logged)

    @property
    def inside(self) -> bool | None:
        """Whether the logged value lies in the band."""
        if self.low is None or self.high is None or self.logged is None:
            return None
        return self.low <= self.logged <= self.high

    def as_json(self) -> dict[str, object]:
        """The keys that are promised to readers of ``--json``."""
        return {
            "id": self.id,
            "check": self.check,
            "predicted": self.predicted,
            "low": self.low,
            "high": self.high,
            "logged": self.logged,
            "rel_err": self.rel_err,
            "ok": self.ok,
            "verdict": self.verdict,
            "skipped": self.skipped or None,
        }


def error(predicted: float | None, logged: float | None) -> float | None:
    """Relative error; None where either is unknown or the log says 0."""
    return (predicted - logged) / logged if predicted is not None and logged else None


def skip(point: Point, check: CheckName, why: str, *, kind: str = "") -> Score:
    """A check that cannot be made on this point, and why."""
    return Score(id=point.ident, check=check, kind=kind or point.text("engine") or "unknown", skipped=why)


def with_kind(score: Score, kind: str) -> Score:
    return replace(score, kind=kind)
