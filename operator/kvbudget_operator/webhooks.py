"""The validating webhook over HTTPS: one route per kind, both to :func:`kvbudget_operator.review.review`.

A plain aiohttp server instead of kopf's (docs/adr/0006): it needs no resource scan before it can answer, renews its
certificate without closing the listener, and answers a malformed request with words.
"""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from kvbudget.contract import API_VERSION
from kvbudget.errors import InputError, Problem
from kvbudget_operator import review
from kvbudget_operator.client import ApiError, Client, Ref
from kvbudget_operator.metrics import AdmissionMetrics
from kvbudget_operator.settings import ENV_WEBHOOK_PORT

logger = logging.getLogger(__name__)

PATHS = ("/validate-llmservices", "/validate-gpuclasses")
LOOKUP_SECONDS = 2.0
"""Two of them (a changed class has an old one) fit into the webhook's own timeout of 5 s."""
MAX_BYTES = 8 << 20
"""An object is at most 1.5 MiB in etcd, and an update carries two of them."""
_KINDS = ("LLMService", "GPUClass")


class Webhook:
    """Answers reviews; reads the class fresh for each, since the answer must hold for what the cluster has now."""

    def __init__(self, client: Client, metrics: AdmissionMetrics) -> None:
        self._client = client
        self._metrics = metrics

    async def handle(self, request: web.Request) -> web.Response:
        """Always JSON or one line of text; never a traceback."""
        start = asyncio.get_running_loop().time()
        try:
            asked = review.parse_request(json.loads(await request.read()))
        except (ValueError, RecursionError) as error:
            self._metrics.reviewed("other", "error", asyncio.get_running_loop().time() - start)
            return web.Response(status=400, text=f"cannot read the request: {error}\n")
        answer, result = await self._answer(asked)
        kind = str((asked.get("kind") or {}).get("kind")) if isinstance(asked.get("kind"), Mapping) else "other"
        seconds = asyncio.get_running_loop().time() - start
        self._metrics.reviewed(kind if kind in _KINDS else "other", result, seconds)
        return web.json_response(answer)

    async def _answer(self, asked: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        try:
            classes = {name: await self._class(name) for name in review.classes_needed(asked)}
            answer = review.review(asked, classes.get)
        except ApiError as error:
            problem = Problem("spec.gpu.class", f"cannot be looked up now, try again ({error})", "LookupFailed")
            return review.refuse(asked, [problem], code=503), "error"
        except Exception:
            logger.exception("review of %s failed", asked.get("uid"))
            problem = Problem("", "kvbudget's webhook failed (its log says why); please report this", "InternalError")
            return review.refuse(asked, [problem], code=500), "error"
        return answer, "allowed" if answer["response"]["allowed"] else "denied"

    async def _class(self, name: str) -> dict[str, Any] | None:
        try:
            return await self._client.get(Ref(API_VERSION, "GPUClass", "", name), timeout_seconds=LOOKUP_SECONDS)
        except ApiError as error:
            if error.status == 404:
                return None
            raise


@asynccontextmanager
async def serve(webhook: Webhook, host: str, port: int, context: ssl.SSLContext) -> AsyncIterator[None]:
    """Serve while the block runs; reviews in flight are then finished. Raises InputError where the port is taken."""
    app = web.Application(client_max_size=MAX_BYTES)
    app.add_routes([web.post(path, webhook.handle) for path in PATHS])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=10.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, ssl_context=context).start()
        except OSError as error:
            reason = f"cannot listen on {host}:{port} ({error}): choose a free port"
            raise InputError(ENV_WEBHOOK_PORT, reason) from error
        yield
    finally:
        await runner.cleanup()
