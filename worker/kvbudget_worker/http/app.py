"""The ASGI application: routes, and errors as JSON."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kvbudget_worker.http.asgi import ClientGone, RequestContext
from kvbudget_worker.http.generate import GenerationEndpoint
from kvbudget_worker.http.info import InfoEndpoints, client_gone, refusal_response, refused
from kvbudget_worker.http.service import Service
from kvbudget_worker.lifecycle import Phase
from kvbudget_worker.refusals import INVALID, Refusal, Refused


def routes(service: Service, info: InfoEndpoints) -> list[Route]:
    """Every route there is."""
    return [
        Route("/v1/completions", GenerationEndpoint(service, "completion"), methods=["POST"]),
        Route("/v1/chat/completions", GenerationEndpoint(service, "chat"), methods=["POST"]),
        Route("/v1/models", info.models),
        Route("/v1/models/{name:path}", info.model),
        Route("/tokenize", info.tokenize, methods=["POST"]),
        Route("/detokenize", info.detokenize, methods=["POST"]),
        Route("/health", info.health),
        Route("/ready", info.ready),
        Route("/live", info.live),
        Route("/metrics", info.metrics),
        Route("/version", info.version),
        Route("/load", info.load),
    ]


def build_app(service: Service) -> ASGIApp:
    """The whole surface of a worker."""
    handlers = {Refused: refused, ClientGone: client_gone, HTTPException: _http_error}
    app = Starlette(routes=routes(service, InfoEndpoints(service)), exception_handlers=handlers)
    return RequestContext(app, closing=lambda: service.lifecycle.phase in (Phase.DRAINING, Phase.STOPPED))


async def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in the shape of all other errors."""
    if not isinstance(error, HTTPException):
        raise error
    known = {404: f"there is no {request.url.path} here", 405: f"{request.method} is not allowed here"}
    message = known.get(error.status_code, error.detail)
    headers = tuple((error.headers or {}).items())
    return refusal_response(Refusal(error.status_code, INVALID, message, "not_found", headers=headers))
