"""The small endpoints: models, token counts, probes, metrics."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from kvbudget_worker.http.asgi import ClientGone
from kvbudget_worker.http.bodies import DetokenizeBody, TokenizeBody, conversation, parse
from kvbudget_worker.http.service import Service
from kvbudget_worker.lifecycle import Phase
from kvbudget_worker.metrics import CONTENT_TYPE
from kvbudget_worker.refusals import Refusal, Refused


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


def refusal_response(refusal: Refusal) -> Response:
    return json_response(refusal.as_error(), refusal.status, dict(refusal.headers))


class InfoEndpoints:
    """Handlers, bound to the service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # --- models and tokens -------------------------------------------------------------------------------------------

    def _model(self) -> dict[str, Any]:
        plan = self._service.plan
        return {
            "id": plan.model.name,
            "object": "model",
            "created": self._service.started_at,
            "owned_by": "kvbudget",
            "root": plan.model.name,
            "parent": None,
            "max_model_len": plan.limits.max_model_len,
        }

    async def models(self, _: Request) -> Response:
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["name"])
        return json_response(self._model())

    async def tokenize(self, request: Request) -> Response:
        async with self._body(request) as raw:
            body = parse(raw, TokenizeBody, surface="chat")
            self._service.check_model(body.model)
            if body.messages is not None:
                ids = await self._service.encode_chat(conversation(body.messages))
            else:
                ids = await self._service.encode(body.prompt or "", add_special=body.add_special_tokens)
            texts = await self._service.decode_each(ids) if body.return_token_strs else None
        max_model_len = self._service.plan.limits.max_model_len
        return json_response({"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": texts})

    async def detokenize(self, request: Request) -> Response:
        async with self._body(request) as raw:
            body = parse(raw, DetokenizeBody)
            self._service.check_model(body.model)
            self._service.check_ids("tokens", tuple(body.tokens))
            return json_response({"prompt": await self._service.decode(body.tokens)})

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The body, unless the model is not there yet."""
        lifecycle = self._service.lifecycle
        closed = lifecycle.closed(request.state.request_id)
        if closed is not None and (lifecycle.engine is None or lifecycle.dead is not None):
            raise Refused(closed)
        async with self._service.intake.body(request.scope, request.receive) as raw:
            yield raw

    # --- operation ---------------------------------------------------------------------------------------------------

    async def ready(self, request: Request) -> Response:
        """200 while new requests are taken."""
        closed = self._service.lifecycle.closed(request.state.request_id)
        return refusal_response(closed) if closed else json_response({"status": "ready"})

    async def health(self, request: Request) -> Response:
        """200 while the engine works, a drain included."""
        lifecycle = self._service.lifecycle
        if lifecycle.dead is None and lifecycle.phase is not Phase.LOADING:
            return json_response({"status": lifecycle.phase.value})
        return await self.ready(request)

    async def live(self, request: Request) -> Response:
        """503 once only a restart helps."""
        if self._service.lifecycle.dead is None:
            return json_response({"status": self._service.lifecycle.phase.value})
        return await self.ready(request)

    async def metrics(self, _: Request) -> Response:
        return Response(await self._service.exposition.body(), headers={"content-type": CONTENT_TYPE})

    async def version(self, _: Request) -> Response:
        return json_response({"version": version("kvbudget"), "plan": self._service.plan.hash()})

    async def load(self, _: Request) -> Response:
        """vLLM's ``server_load``, and the account in tokens."""
        lifecycle = self._service.lifecycle
        load: dict[str, Any] = {"server_load": lifecycle.requests, "phase": lifecycle.phase.value}
        if lifecycle.engine is not None:
            engine = lifecycle.engine
            ledger = engine.ledger.snapshot()
            load |= {
                "kv_tokens": ledger.capacity_pages * ledger.page_tokens,
                "kv_tokens_reserved": ledger.charged_pages * ledger.page_tokens,
                "kv_tokens_free": ledger.free_pages * ledger.page_tokens,
                "queued_requests": engine.gate.waiting,
                "queued_tokens": engine.gate.queued_tokens,
            }
        return json_response(load)


async def refused(_: Request, error: Exception) -> Response:
    """Exception handler for Refused."""
    if not isinstance(error, Refused):
        raise error
    return refusal_response(error.refusal)


async def client_gone(_: Request, error: Exception) -> Response:
    """Exception handler for :class:`ClientGone`: the answer reaches nobody."""
    if not isinstance(error, ClientGone):
        raise error
    return Response(status_code=499)
