"""One HTTP request inside the engine: its tokens on their way to text, choice by choice."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kvbudget_worker.gate import Ask
from kvbudget_worker.refusals import Refusal, Refused
from kvbudget_worker.requests import TokenEvent
from kvbudget_worker.stops import StopScanner
from kvbudget_worker.tokenizer import IncrementalDecoder, Tokenizer


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a generated token, and of the likeliest alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What a token added to a choice. ``text`` may be empty: half a character, or held back for a stop string."""

    index: int
    text: str
    logprob: TokenLogprob | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class TextRules:
    """How tokens become text."""

    stops: Sequence[str] = ()
    include_stop: bool = False
    min_tokens: int = 0
    ending_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Choice:
    decoder: IncrementalDecoder
    scanner: StopScanner
    tokens: int = 0
    last_token_at: float = 0.0
    finish_reason: str | None = None


@dataclass(slots=True)
class Part:
    """One prompt of the request, and its choices."""

    first_index: int
    choices: list[_Choice]
    started_ms: int = 0
    cached_tokens: int = 0
    first_token_at: float = 0.0
    open: int = field(default=0)


class Generation:
    """Fed by the engine, read by one HTTP handler; both in the event loop."""

    def __init__(self, ask: Ask, tokenizer: Tokenizer, rules: TextRules) -> None:
        self.ask = ask
        self._tokenizer = tokenizer
        self._rules = rules
        self._deltas: list[Delta] = []
        self._news = asyncio.Event()
        self._failure: Refusal | None = None
        self.demand_id = ""
        """Under which id its holding time counts; the engine's."""

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The prompts by their request ids. Made once the request is admitted: a refused one, which may have thousands
        of choices, must cost nothing."""
        parts: dict[str, Part] = {}
        index = 0
        for request in self.ask.requests:
            choices = [
                _Choice(
                    IncrementalDecoder(self._tokenizer),
                    StopScanner(self._rules.stops, include=self._rules.include_stop),
                )
                for _ in range(request.n)
            ]
            parts[request.request_id] = Part(index, choices, open=len(choices))
            index += len(choices)
        return parts

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.ask.requests)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.tokens for part in self.parts.values() for choice in part.choices)

    @property
    def cached_tokens(self) -> int:
        return sum(part.cached_tokens for part in self.parts.values())

    @property
    def finished(self) -> bool:
        return not any(part.open for part in self.parts.values())

    async def read(self) -> list[Delta]:
        """New deltas in order, at least one; empty once all choices are finished and read. Raises Refused when the
        engine gave up on this request."""
        while not self._deltas:
            if self._failure is not None:
                raise Refused(self._failure)
            if self.finished:
                return []
            self._news.clear()
            await self._news.wait()
        deltas, self._deltas = self._deltas, []
        return deltas

    def fail(self, refusal: Refusal) -> None:
        """Ends the request with an error, after what was generated so far."""
        self._failure = refusal
        self._news.set()

    def feed(self, event: TokenEvent, now: float) -> bool:
        """Takes a token. Returns True where it completed a stop string: the engine must then finish the choice."""
        part = self.parts[event.request_id]
        choice = part.choices[event.choice]
        part.started_ms, part.cached_tokens = event.started_ms, event.cached_tokens
        choice.tokens += 1
        choice.last_token_at = now
        text, stopped = self._text(choice, event)
        finish_reason = "stop" if stopped else event.finish_reason
        if finish_reason is not None:
            choice.finish_reason = finish_reason
            part.open -= 1
        logprob = None
        if event.logprob is not None:
            logprob = TokenLogprob(event.token_id, event.logprob, event.top)
        self._deltas.append(Delta(part.first_index + event.choice, text, logprob, finish_reason))
        self._news.set()
        return stopped and event.finish_reason is None

    def _text(self, choice: _Choice, event: TokenEvent) -> tuple[str, bool]:
        # The token that ends a choice is no text.
        ended = event.finish_reason == "stop" and event.token_id in self._rules.ending_ids
        text = "" if ended else choice.decoder.push(event.token_id)
        if event.finish_reason is not None:
            text += choice.decoder.finish()
        if choice.tokens <= self._rules.min_tokens and not ended:
            shown, stopped = choice.scanner.pass_through(text), False
        else:
            shown, stopped = choice.scanner.push(text)
        if event.finish_reason is not None and not stopped:
            shown += choice.scanner.flush()
        return shown, stopped
