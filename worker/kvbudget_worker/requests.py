"""What the scheduler is asked for and what it answers: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kvbudget_worker.batch import SamplingParams

FinishReason = Literal["stop", "length"]
EndReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Request:
    """One admitted or to-be-admitted request; limits are checked before (the gate), counts are tokens.

    ``eos_ids`` end a choice unless ``ignore_eos``; ``stop_token_ids`` always do; neither before ``min_tokens`` tokens.
    ``salt``: part of the root of the prefix cache's chain; requests share pages only under the same salt.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_output_tokens: int
    n: int = 1
    params: SamplingParams = field(default_factory=SamplingParams)
    eos_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    arrived_ms: int = 0
    salt: bytes = b""

    @property
    def ending_ids(self) -> tuple[int, ...]:
        """Tokens that end a choice."""
        return self.stop_token_ids if self.ignore_eos else self.eos_ids + self.stop_token_ids

    def choice_params(self, choice: int) -> SamplingParams:
        """Parameters of one choice: a seed gives each choice its own random stream, the same at every run."""
        if self.params.seed is None or choice == 0:
            return self.params
        return replace(self.params, seed=self.params.seed + choice)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A new token of a choice. ``finish_reason`` is set on its last one. ``started_ms``: when the request's first step
    was scheduled; ``cached_tokens``: its prompt tokens that came from the prefix cache."""

    request_id: str
    choice: int
    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    finish_reason: FinishReason | None
    started_ms: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Figures for the metrics. Requests: ``running`` have begun computing, ``waiting`` are admitted and have not. Pages
    and tokens: ``used_pages`` live requests have filled or begun; ``prefix_*_tokens`` count up, over begun requests.
    ``ended``: choices that have ended so far, by reason.
    """

    running: int
    waiting: int
    used_pages: int
    cached_pages: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    ended: Mapping[EndReason, int]
