"""The process: a socket, uvicorn on it, the model loaded beside it, and an orderly end.

HTTP answers from the first moment: probes and metrics while the model is loaded, 503 to the rest. Signals are ours, not
uvicorn's: SIGTERM begins the drain and the server goes on answering until that is over.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import uvicorn
import uvloop
from pydantic import ValidationError

from kvbudget import contract
from kvbudget.errors import InputError
from kvbudget.plan import Plan
from kvbudget_worker.device_thread import DeviceThread
from kvbudget_worker.engine import Engine, StepRunner
from kvbudget_worker.http.app import build_app
from kvbudget_worker.http.connection import DEFAULT_PATIENCE, BoundedConnection, Patience
from kvbudget_worker.http.service import Service
from kvbudget_worker.lastwords import leave
from kvbudget_worker.lifecycle import Lifecycle
from kvbudget_worker.tokenizer import Tokenizer

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
"""Longer than proxies and client pools keep an idle connection, so that they close it and not we."""

CLOSE_SECONDS = 1
"""How long connections, and then the device thread, may take to end after the drain. With FLUSH_SECONDS they leave a
second of ``contract.GRACE_SECONDS`` to spare."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to compute. ``measured``: facts for the metrics."""

    runner: StepRunner
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    measured: Mapping[contract.Metric, int] = field(default_factory=dict)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises InputError with the fix."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                contract.ENV_PORT, f"port {port} on {host} is in use: stop what listens there, or set another port"
            ) from None
        raise InputError(contract.ENV_HOST, f"cannot listen on {host} port {port}: {error.strerror}") from None
    sock.set_inheritable(True)
    return sock


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to us."""
        yield


class Worker:
    """One worker process from its first request to its last."""

    def __init__(
        self, plan: Plan, sock: socket.socket, load: Callable[[], Loaded], patience: Patience = DEFAULT_PATIENCE
    ) -> None:
        """``load``: blocking, runs on the device thread; an error of kvbudget's own tree is told in one line."""
        self._plan = plan
        self._load = load
        self._lifecycle = Lifecycle()
        self._service = Service(plan, self._lifecycle, patience)
        self._thread = DeviceThread()
        patience.apply(sock)
        self._sock = sock
        self._stop = asyncio.Event()
        self._server = _Server(
            uvicorn.Config(
                build_app(self._service),
                http=functools.partial(BoundedConnection, patience=patience),  # type: ignore[arg-type]
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )

    async def run(self) -> int:
        """Serves until a signal; returns the exit code: 0 after a drain, 1 if the engine died or the model could not be
        loaded (the error is raised then)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        serving = asyncio.create_task(self._server.serve(sockets=[self._sock]))
        working = asyncio.create_task(self._work())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({serving, working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                # The engine has died: stay up to say so to the probes, until the kubelet stops us.
                await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                aborted = await self._lifecycle.drain(self._plan.drain_timeout_seconds, self._service.observer)
                if aborted:
                    leave(f"{contract.DRAIN_ABORTED_NOTE}{aborted}")
        finally:
            self._server.should_exit = True
            await serving
            working.cancel()
            stopping.cancel()
            # A load that fails while we leave is nobody's concern: without this asyncio would log its traceback.
            await asyncio.gather(working, stopping, return_exceptions=True)
        return 0 if self._lifecycle.dead is None else 1

    async def _work(self) -> None:
        log.info("loading %s from %s", self._plan.model.name, self._plan.model.weights_path)
        loaded = await self._thread.run(self._load)
        engine = Engine(self._plan, loaded.runner, loaded.tokenizer, self._thread, self._service.observer)
        self._service.measured(loaded.measured)
        self._service.ready(engine, loaded.tokenizer, loaded.eos_ids)
        log.info(
            "ready: %s, %d KV tokens in %d pages",
            self._plan.model.name,
            self._plan.budget.tokens,
            self._plan.kv.pages,
        )
        await engine.run()

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._lifecycle.hurry()
        self._stop.set()

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> bool:
        """Ends the device thread; False if its call still runs after the timeout."""
        return self._thread.close(timeout_seconds)


def serve(plan: Plan, sock: socket.socket, load: Callable[[], Loaded], patience: Patience = DEFAULT_PATIENCE) -> int:
    """Runs a :class:`Worker` to its end in an event loop of its own; returns the exit code. Does not return at all if
    the device still computes then: a stuck step must not keep the process."""
    worker = Worker(plan, sock, load, patience)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(worker.run())
    if not worker.close():
        logging.shutdown()
        os._exit(code)
    return code


def read_plan(path: str) -> Plan:
    """The Plan at ``path``. Raises InputError with the fix."""
    fix = f"mount the operator's Plan there, or set {contract.ENV_PLAN} to its path"
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise InputError(path, f"there is no Plan: {fix}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, f"the Plan cannot be read ({error}): {fix}") from None
    try:
        return Plan.model_validate_json(text)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        told = "; ".join(f"{'.'.join(map(str, p['loc'])) or 'JSON'}: {p['msg']}" for p in problems[:3])
        raise InputError(path, f"is no Plan of this version ({told}): {fix}") from None
