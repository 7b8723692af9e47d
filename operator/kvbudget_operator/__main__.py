"""``python -m kvbudget_operator operator | admission | verify-webhook``. Exit code 2: bad settings, 1: it failed."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import aiohttp
import click
import kopf

from kvbudget.contract import GROUP, LABEL_SERVICE
from kvbudget.errors import InputError, KvbudgetError
from kvbudget_operator import handlers, health, keeper, verify, webhooks
from kvbudget_operator.client import Client
from kvbudget_operator.controller import Controller
from kvbudget_operator.metrics import AdmissionMetrics, OperatorMetrics
from kvbudget_operator.preflight import Preflight
from kvbudget_operator.settings import (
    CLIENT_THREADS,
    EXIT_TIMEOUT_SECONDS,
    REQUEST_TIMEOUT_SECONDS,
    AdmissionSettings,
    OperatorSettings,
    is_json_log,
)

_WATCH_WORKERS = 32


class ConnectionLost(KvbudgetError):
    """The watches failed for longer than they retry."""


@click.group()
def main() -> None:
    """The operator of kvbudget: reconciles LLMServices, and reviews them on admission."""


@main.command()
@click.option("--namespace", "namespaces", multiple=True, help="Watch only this namespace; repeat for more.")
def operator(namespaces: tuple[str, ...]) -> None:
    """Reconcile LLMServices. Run one replica."""

    async def work(env: Mapping[str, str]) -> int:
        settings = OperatorSettings.from_env(env)
        return await run_operator(replace(settings, namespaces=namespaces or settings.namespaces))

    _run(work)


@main.command()
def admission() -> None:
    """Serve the validating webhook. Run two replicas or more."""
    _run(lambda env: run_admission(AdmissionSettings.from_env(env)))


@main.command("verify-webhook")
@click.option("--namespace", envvar="POD_NAMESPACE", default="default", show_default=True, help="Where to dry-run.")
@click.option(
    "--timeout-seconds", envvar="KVBUDGET_VERIFY_TIMEOUT_SECONDS", type=float, default=180.0, show_default=True
)
def verify_webhook(namespace: str, timeout_seconds: float) -> None:
    """Wait until the webhook answers a dry-run create."""

    async def work(_: Mapping[str, str]) -> int:
        await verify.verify(_connect(), namespace, timeout_seconds)
        return 0

    _run(work)


async def run_operator(settings: OperatorSettings) -> int:
    """Watch and reconcile until a signal. Returns the exit code."""
    metrics = OperatorMetrics()
    client = _connect()
    controller = Controller(settings, client, metrics)
    preflight = Preflight()

    def not_ready() -> str | None:
        return preflight.waiting_for or controller.not_ready()

    async with health.serve(
        settings.health_host, settings.health_port, not_ready=not_ready, exposition=metrics.exposition
    ):
        await preflight.wait(client)
        try:
            await kopf.operator(
                settings=kopf_settings(settings),
                memo=kopf.Memo(controller=controller),
                standalone=True,
                clusterwide=not settings.namespaces,
                namespaces=settings.namespaces,
                stop_flag=controller.stopped,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionLost(f"the API server went away: {error}. A restart waits for it") from error
    client.close()
    return 1 if controller.stopped.is_set() else 0


async def run_admission(settings: AdmissionSettings) -> int:
    """Serve reviews until a signal. Returns the exit code."""
    metrics = AdmissionMetrics()
    client = _connect()
    kept = keeper.Keeper(settings, client, metrics)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with (
        health.serve(
            settings.health_host, settings.health_port, not_ready=lambda: kept.not_ready, exposition=metrics.exposition
        ),
        webhooks.serve(webhooks.Webhook(client, metrics), settings.host, settings.port, kept.context),
    ):
        keeping = asyncio.create_task(kept.run(), name="certificate")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        done, pending = await asyncio.wait((keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
    client.close()
    if keeping in done:
        keeping.result()  # it runs for ever, so this raises what ended it
    return 0


def kopf_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    """How kopf runs here: no state on objects, no peering, no posting of logs, short timeouts, only our children."""
    wanted = kopf.OperatorSettings()
    wanted.process.ultimate_exiting_timeout = EXIT_TIMEOUT_SECONDS
    wanted.posting.enabled = False
    wanted.peering.standalone = True
    wanted.scanning.disabled = bool(settings.namespaces)
    wanted.networking.request_timeout = REQUEST_TIMEOUT_SECONDS
    wanted.networking.error_backoffs = (1, 2, 5)
    wanted.queueing.worker_limit = _WATCH_WORKERS
    wanted.persistence.finalizer = f"{GROUP}/finalizer"
    wanted.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    wanted.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    wanted.watching.chunk_size = 500
    for resource in handlers.LABELLED:
        wanted.watching.label_selectors[resource] = LABEL_SERVICE
    return wanted


def _connect() -> Client:
    return Client.connect(threads=CLIENT_THREADS, timeout_seconds=REQUEST_TIMEOUT_SECONDS)


def _run(work: Callable[[Mapping[str, str]], Awaitable[int]]) -> None:
    """Run to the end; what a person can correct is one line on standard error, not a traceback."""

    async def main() -> int:
        return await work(os.environ)

    try:
        kopf.configure(log_format=kopf.LogFormat.JSON if is_json_log(os.environ) else kopf.LogFormat.FULL)
        for noise in ("kopf.activities", "kopf.objects"):  # one line for each event of each child
            logging.getLogger(noise).setLevel(logging.WARNING)
        code = asyncio.run(main())
    except InputError as error:
        click.echo(f"kvbudget-operator: {error}", err=True)
        code = 2
    except KvbudgetError as error:
        click.echo(f"kvbudget-operator: {error}", err=True)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
