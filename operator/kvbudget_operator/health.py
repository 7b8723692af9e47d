"""``/healthz``, ``/readyz`` and ``/metrics`` of both processes, over plain HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from kvbudget.errors import InputError
from kvbudget_operator.settings import ENV_HEALTH_PORT


@asynccontextmanager
async def serve(
    host: str, port: int, *, not_ready: Callable[[], str | None], exposition: Callable[[], tuple[bytes, str]]
) -> AsyncIterator[None]:
    """Serve while the block runs. ``not_ready`` says why not, or None. Raises InputError where the port is taken.

    That ``/healthz`` answers proves that the event loop turns; a background task that dies ends the process.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = not_ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def metrics(_: web.Request) -> web.Response:
        body, content_type = exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise InputError(
                ENV_HEALTH_PORT, f"cannot listen on {host}:{port} ({error}): choose a free port"
            ) from error
        yield
    finally:
        await runner.cleanup()
