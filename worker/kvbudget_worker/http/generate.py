"""``/v1/completions`` and ``/v1/chat/completions``: raw ASGI, one handler for both."""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal

import orjson
from starlette.types import Receive, Scope, Send

from kvbudget.contract import HEADER_OUTPUT_LIMIT
from kvbudget_worker.engine import monotonic_ms
from kvbudget_worker.generation import Delta, Generation, TokenLogprob
from kvbudget_worker.http.asgi import JSON, ClientGone, refuse, respond, until_disconnect
from kvbudget_worker.http.bodies import ChatBody, CompletionBody, GenerationBody, parse
from kvbudget_worker.http.chunks import DONE, ChunkWriter, Usage, error_event
from kvbudget_worker.http.logprobs import chat_logprobs, completion_logprobs
from kvbudget_worker.http.service import Prepared, Service
from kvbudget_worker.refusals import Refused

_EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class GenerationEndpoint:
    """One of the two endpoints, as an ASGI application."""

    def __init__(self, service: Service, kind: Literal["completion", "chat"]) -> None:
        self._service = service
        self._kind: Literal["completion", "chat"] = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ms = monotonic_ms()
        service, request_id = self._service, scope["state"]["request_id"]
        closed = service.lifecycle.closed(request_id)
        if closed is not None:
            service.observer.refused(closed)
            await refuse(send, closed)
            return
        reply: _Reply | None = None
        with service.lifecycle.request():
            try:
                body, prepared = await self._take_in(scope, receive, request_id, arrived_ms)
                async with (
                    until_disconnect(receive),
                    service.engine.generate(prepared.ask, prepared.rules) as generation,
                ):
                    reply = _Reply(service, self._kind, body, prepared, generation, send)
                    await reply.send()
            except Refused as refused:
                # Where the stream has begun, the reply has told the client itself.
                if reply is None:
                    service.observer.refused(refused.refusal)
                await refuse(send, refused.refusal)
            except ClientGone:
                return

    async def _take_in(
        self, scope: Scope, receive: Receive, request_id: str, arrived_ms: int
    ) -> tuple[CompletionBody | ChatBody, Prepared]:
        body: CompletionBody | ChatBody
        async with self._service.intake.body(scope, receive) as raw, until_disconnect(receive):
            if self._kind == "chat":
                body = parse(raw, ChatBody, surface="chat")
            else:
                body = parse(raw, CompletionBody, surface="completion")
            return body, await self._service.prepare(body, request_id, arrived_ms)


class _Reply:
    """One response on its way out."""

    def __init__(
        self,
        service: Service,
        kind: Literal["completion", "chat"],
        body: GenerationBody,
        prepared: Prepared,
        generation: Generation,
        send: Send,
    ) -> None:
        self._tokenizer = service.tokenizer
        self._chat = kind == "chat"
        self._model = service.plan.model.name
        self._body = body
        self._prepared = prepared
        self._generation = generation
        self._send = send
        self._created = int(time.time())
        self._offsets: defaultdict[int, int] = defaultdict(int)
        usage: Literal["none", "last", "each"] = "none"
        if body.include_usage:
            usage = "each" if body.continuous_usage else "last"
        self._chunks = ChunkWriter(kind, prepared.response_id, self._created, self._model, usage=usage)
        self._each_usage = usage == "each"
        self._roles_sent: set[int] = set()

    async def send(self) -> None:
        """Sends everything. Raises Refused if the engine gives up before the first byte is out."""
        await (self._stream() if self._body.stream else self._whole())

    def _headers(self) -> list[tuple[bytes, bytes]]:
        limit = self._prepared.default_limit
        return [] if limit is None else [(HEADER_OUTPUT_LIMIT.encode(), str(limit).encode())]

    def _usage(self) -> Usage:
        generation = self._generation
        return Usage(generation.prompt_tokens, generation.completion_tokens, generation.cached_tokens)

    # --- a stream ----------------------------------------------------------------------------------------------------

    async def _stream(self) -> None:
        deltas = await self._generation.read()
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_EVENTS, *self._headers()]})
        try:
            while deltas:
                data = b"".join(chunk for delta in deltas for chunk in self._chunk(delta))
                if data:
                    await self._send({"type": "http.response.body", "body": data, "more_body": True})
                deltas = await self._generation.read()
            last = self._chunks.usage(self._usage()) + DONE if self._body.include_usage else DONE
        except Refused as refused:
            last = error_event(refused.refusal.as_error())
        await self._send({"type": "http.response.body", "body": last})

    def _chunk(self, delta: Delta) -> Iterator[bytes]:
        if self._chat and delta.index not in self._roles_sent:
            self._roles_sent.add(delta.index)
            yield self._chunks.role(delta.index)
        if not delta.text and delta.finish_reason is None and delta.logprob is None:
            return
        logprobs = None if delta.logprob is None else self._logprobs(delta.index, [delta.logprob])
        usage = self._usage() if self._each_usage else None
        yield self._chunks.text(delta.index, delta.text, delta.finish_reason, logprobs, usage)

    def _logprobs(self, index: int, tokens: list[TokenLogprob]) -> dict[str, Any]:
        if self._chat:
            return chat_logprobs(self._tokenizer, tokens)
        result = completion_logprobs(self._tokenizer, tokens, self._offsets[index])
        self._offsets[index] += sum(map(len, result["tokens"]))
        return result

    # --- one piece ---------------------------------------------------------------------------------------------------

    async def _whole(self) -> None:
        texts: defaultdict[int, list[str]] = defaultdict(list)
        logprobs: defaultdict[int, list[TokenLogprob]] = defaultdict(list)
        reasons: dict[int, str] = {}
        while deltas := await self._generation.read():
            for delta in deltas:
                texts[delta.index].append(delta.text)
                if delta.logprob is not None:
                    logprobs[delta.index].append(delta.logprob)
                if delta.finish_reason is not None:
                    reasons[delta.index] = delta.finish_reason
        choices = []
        for index, reason in sorted(reasons.items()):
            text = "".join(texts[index])
            choices.append(
                {
                    "index": index,
                    **(
                        {"message": {"role": "assistant", "content": text, "refusal": None}}
                        if self._chat
                        else {"text": text}
                    ),
                    "logprobs": self._logprobs(index, logprobs[index]) if index in logprobs else None,
                    "finish_reason": reason,
                }
            )
        answer = {
            "id": self._prepared.response_id,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "usage": self._usage().as_dict(),
        }
        await respond(self._send, 200, orjson.dumps(answer), [JSON, *self._headers()])
