"""What the endpoints share: the Plan, the phase, and the engine once it is there."""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvbudget import contract
from kvbudget.errors import InputError
from kvbudget.plan import Plan
from kvbudget_worker.engine import Engine, monotonic_ms
from kvbudget_worker.gate import Ask
from kvbudget_worker.generation import TextRules
from kvbudget_worker.http.bodies import ChatBody, CompletionBody
from kvbudget_worker.http.connection import DEFAULT_PATIENCE, Patience
from kvbudget_worker.http.intake import Intake
from kvbudget_worker.lifecycle import Lifecycle, Phase
from kvbudget_worker.limits import output_limit
from kvbudget_worker.metrics import Exposition, WorkerMetrics
from kvbudget_worker.observer import Observer
from kvbudget_worker.refusals import Refused, exceeds_budget, invalid, model_not_found
from kvbudget_worker.requests import Request
from kvbudget_worker.tokenizer import Tokenizer

_INLINE_CHARACTERS: Final = 8_000
"""Longer texts (about 2 ms) are encoded in a thread, so that a long prompt does not hold up everybody's tokens."""
_EACH_CHARACTERS: Final = 100
"""What a message or a prompt costs by itself, as characters."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request. ``default_limit``: its output limit where it named none."""

    response_id: str
    ask: Ask
    rules: TextRules
    default_limit: int | None


class Service:
    """Made before the model is loaded; :meth:`ready` completes it."""

    def __init__(self, plan: Plan, lifecycle: Lifecycle, patience: Patience = DEFAULT_PATIENCE) -> None:
        self.plan = plan
        self.lifecycle = lifecycle
        self.metrics = WorkerMetrics(
            plan.model.name,
            {
                "plan": plan.hash(),
                "block_size": str(plan.kv.page_tokens),
                "num_gpu_blocks": str(plan.kv.pages),
                "cache_dtype": plan.kv.precision.lower(),
                "enable_prefix_caching": str(plan.kv.prefix_cache_mode != "Off"),
            },
        )
        self.metrics.set(contract.CACHE_CONFIG, 1)
        self.metrics.set(contract.PLAN_INFO, 1)
        self.observer = Observer(self.metrics)
        self.exposition = Exposition(self.metrics, self.refresh)
        self.intake = Intake(max(4 << 20, 64 * plan.limits.max_model_len), patience.body_seconds)
        self.started_at = int(time.time())
        self._tokenizer: Tokenizer | None = None
        self._eos_ids: tuple[int, ...] = ()

    def ready(self, engine: Engine, tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> None:
        """The model is loaded: from here on requests are served."""
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self.lifecycle.ready(engine)

    def measured(self, facts: Mapping[contract.Metric, int]) -> None:
        """Sizes read off the loaded model."""
        for metric, value in facts.items():
            self.metrics.set(metric, value)

    @property
    def engine(self) -> Engine:
        """Only there once the phase is no longer loading."""
        if self.lifecycle.engine is None:
            raise RuntimeError("the model is not loaded")
        return self.lifecycle.engine

    @property
    def tokenizer(self) -> Tokenizer:
        """Only there once the phase is no longer loading."""
        if self._tokenizer is None:
            raise RuntimeError("the model is not loaded")
        return self._tokenizer

    def check_model(self, name: str | None) -> None:
        """Raises Refused (404) for another model's name; no name means the one that is served."""
        if name is not None and name != self.plan.model.name:
            raise Refused(model_not_found(name, self.plan.model.name))

    async def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a text. Raises Refused (400) for a token that the model does not have."""

        def encode() -> list[int]:
            return self._known("prompt", self.tokenizer.encode(text, add_special=add_special))

        return encode() if len(text) <= _INLINE_CHARACTERS else await asyncio.to_thread(encode)

    async def encode_chat(self, messages: list[dict[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation in the model's template. Raises Refused (400)."""

        def encode() -> list[int]:
            ids = self.tokenizer.chat(messages, add_generation_prompt=add_generation_prompt)
            return self._known("messages", ids)

        short = sum(len(m["content"]) + _EACH_CHARACTERS for m in messages) <= _INLINE_CHARACTERS
        try:
            return encode() if short else await asyncio.to_thread(encode)
        except InputError as error:
            raise Refused(invalid(error.path, error.reason)) from None

    async def prepare(self, body: CompletionBody | ChatBody, client_id: str, arrived_ms: int) -> Prepared:
        """Tokens, limits and rules of a request; nothing is reserved yet. Raises Refused (400, 404)."""
        self.check_model(body.model)
        chat = isinstance(body, ChatBody)
        if isinstance(body, ChatBody):
            prompts = [await self.encode_chat(body.conversation())]
        else:
            self._check_choices(len(body.prompt) * body.choices)
            prompts = await self._prompts(body)
        self.check_ids("stop_token_ids", body.stop_token_ids or ())
        self.check_ids("logit_bias", tuple(body.logit_bias or ()))
        param, asked = body.asked_tokens()
        limits = [
            output_limit("chat" if chat else "completion", len(prompt), asked, self.plan.limits, param=param)
            for prompt in prompts
        ]
        min_tokens = body.min_tokens or 0
        if min_tokens > min(limits):
            raise Refused(invalid("min_tokens", f"min_tokens is {min_tokens}; at most {min(limits)} can be generated"))
        response_id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        requests = tuple(
            Request(
                request_id=f"{response_id}-{i}",
                prompt=tuple(prompt),
                max_output_tokens=limit,
                n=body.choices,
                params=body.sampling(),
                eos_ids=self._eos_ids,
                ignore_eos=bool(body.ignore_eos),
                min_tokens=min_tokens,
                stop_token_ids=body.stop_token_ids or (),
                arrived_ms=arrived_ms,
            )
            for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
        )
        rules = TextRules(body.stop, body.include_stop_str_in_output, min_tokens, frozenset(requests[0].ending_ids))
        default_limit = max(limits) if asked is None else None
        return Prepared(response_id, Ask(client_id, requests, arrived_ms), rules, default_limit)

    def _check_choices(self, choices: int) -> None:
        """Raises Refused (400) where the choices alone, a page each at least, are too many for the whole pool. Told
        before anything is made for each of them: a small body can ask for a million."""
        kv = self.plan.kv
        if choices > kv.pages:
            raise Refused(exceeds_budget(choices * kv.page_tokens, kv.pages * kv.page_tokens))

    async def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special ones included."""
        if len(ids) <= _INLINE_CHARACTERS:
            return self.tokenizer.decode(ids, skip_special=False)
        return await asyncio.to_thread(self.tokenizer.decode, ids, skip_special=False)

    async def decode_each(self, ids: Sequence[int]) -> list[str]:
        """Text of each token id by itself."""

        def decode() -> list[str]:
            return [self.tokenizer.decode([i], skip_special=False) for i in ids]

        return decode() if len(ids) <= _INLINE_CHARACTERS else await asyncio.to_thread(decode)

    async def _prompts(self, body: CompletionBody) -> list[list[int]]:
        def encode_all() -> list[list[int]]:
            return [
                self._known("prompt", self.tokenizer.encode(prompt, add_special=body.add_special_tokens))
                if isinstance(prompt, str)
                else list(prompt)
                for prompt in body.prompt
            ]

        for index, prompt in enumerate(body.prompt):
            if not isinstance(prompt, str):
                self.check_ids(f"prompt[{index}]" if len(body.prompt) > 1 else "prompt", prompt)
        if sum(len(prompt) + _EACH_CHARACTERS for prompt in body.prompt) <= _INLINE_CHARACTERS:
            return encode_all()
        return await asyncio.to_thread(encode_all)

    def _known(self, param: str, ids: list[int]) -> list[int]:
        """Some tokenizers have more tokens than their model: a text that holds one of those must not reach it."""
        if max(ids, default=0) >= self.plan.model.shape.vocab_size:
            self.check_ids(param, tuple(ids))
        return ids

    def check_ids(self, param: str, ids: tuple[int, ...]) -> None:
        """Raises Refused (400) for an id outside the vocabulary."""
        vocabulary = self.plan.model.shape.vocab_size
        wrong = next((i for i in ids if not 0 <= i < vocabulary), None)
        if wrong is not None:
            raise Refused(invalid(param, f"token id {wrong} is outside the vocabulary, 0 … {vocabulary - 1}"))

    def refresh(self) -> None:
        """Sets the gauges to what is true now."""
        leaving = self.lifecycle.phase in (Phase.DRAINING, Phase.STOPPED)
        self.metrics.set(contract.DRAINING, float(leaving))
        if self.lifecycle.engine is not None:
            self.observer.refresh(self.lifecycle.engine, monotonic_ms())
