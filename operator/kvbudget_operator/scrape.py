"""One loop that reads the metrics of all workers: bounded in connections, bytes and time; parses only what it needs."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from kvbudget import contract
from kvbudget_operator.pods import is_leaving

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
"""A worker's exposition is about 30 kB."""
MAX_CONNECTIONS = 32
TIMEOUT_SECONDS = 3.0

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)", re.MULTILINE)
_PLAN_LABEL = re.compile(r'(?:^|,)plan="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Target:
    """A pod to read: ``uid`` tells it from a later pod of the same name."""

    uid: str
    url: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What one worker said at ``at_ms`` (the event loop's clock). ``plan`` is the hash of the Plan that it serves."""

    at_ms: int
    plan: str = ""
    capacity_tokens: int = 0
    reserved_tokens: int = 0
    queued_tokens: int = 0
    refused_tokens: int = 0
    weight_bytes: int = 0
    page_bytes: int = 0
    pages: int = 0
    free_bytes: int = 0


_FIELDS: Mapping[str, str] = {
    contract.KV_TOKENS.name: "capacity_tokens",
    contract.KV_TOKENS_RESERVED.name: "reserved_tokens",
    contract.QUEUED_TOKENS.name: "queued_tokens",
    contract.REFUSED_DEMAND.name: "refused_tokens",
    contract.MEASURED_WEIGHT_BYTES.name: "weight_bytes",
    contract.MEASURED_PAGE_BYTES.name: "page_bytes",
    contract.MEASURED_PAGES.name: "pages",
    contract.MEASURED_FREE_BYTES.name: "free_bytes",
}


def parse(text: str, at_ms: int) -> Reading | None:
    """The Reading in a Prometheus exposition; None where it is no worker's (no capacity in it).

    >>> parse('# TYPE kvbudget_kv_tokens gauge\\nkvbudget_kv_tokens{model_name="m"} 2.048e+04\\n', 7).capacity_tokens
    20480
    """
    values: dict[str, int] = {}
    plan = ""
    for name, labels, value in _SAMPLE.findall(text):
        if name in _FIELDS:
            try:
                values[_FIELDS[name]] = values.get(_FIELDS[name], 0) + int(float(value))
            except (ValueError, OverflowError):  # not a number, NaN or infinite
                return None
        elif name == contract.PLAN_INFO.name:
            match = _PLAN_LABEL.search(labels)
            plan = match.group(1) if match else ""
    return Reading(at_ms, plan, **values) if "capacity_tokens" in values else None


def target(pod: Mapping[str, Any]) -> Target | None:
    """Where ``pod`` serves its metrics; None while it has no address or has ended. A draining pod still counts."""
    status = pod.get("status") or {}
    address = status.get("podIP")
    if status.get("phase") != "Running" or not address:
        return None
    host = f"[{address}]" if ":" in address else address
    return Target(pod["metadata"]["uid"], f"http://{host}:{pod['port']}/metrics")


class Scraper:
    """``readings``: the last Reading of each pod that still exists, by uid."""

    def __init__(self, pods: Callable[[], Iterable[Mapping[str, Any]]], *, every_seconds: float) -> None:
        self._pods = pods
        self._every_seconds = every_seconds
        self.readings: dict[str, Reading] = {}

    async def run(self, after_round: Callable[[], Awaitable[None]]) -> None:
        """Read all workers, call ``after_round``, wait; until cancelled. A pass that takes longer delays the next."""
        loop = asyncio.get_running_loop()
        connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, force_close=True)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:
            while True:
                start = loop.time()
                await self._round(session)
                await after_round()
                await asyncio.sleep(max(0.0, start + self._every_seconds - loop.time()))

    async def _round(self, session: aiohttp.ClientSession) -> None:
        pods = list(self._pods())
        existing = {pod["metadata"]["uid"] for pod in pods}
        self.readings = {uid: reading for uid, reading in self.readings.items() if uid in existing}
        targets = [(pod, found) for pod in pods if (found := target(pod)) is not None]
        limit = asyncio.Semaphore(MAX_CONNECTIONS)
        await asyncio.gather(*(self._read(session, limit, pod, found) for pod, found in targets))

    async def _read(
        self, session: aiohttp.ClientSession, limit: asyncio.Semaphore, pod: Mapping[str, Any], found: Target
    ) -> None:
        async with limit:
            try:
                text = await _fetch(session, found.url)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                level = logging.DEBUG if is_leaving(pod) or found.uid not in self.readings else logging.WARNING
                logger.log(level, "no metrics from %s: %s", found.url, error or type(error).__name__)
                return
        reading = parse(text, int(asyncio.get_running_loop().time() * 1000))
        if reading is not None:
            self.readings[found.uid] = reading


async def _fetch(session: aiohttp.ClientSession, url: str) -> str:
    """Raises ValueError where the answer is no 200, too long or no UTF-8."""
    async with session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"status {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_chunked(1 << 16):
            body += chunk
            if len(body) > MAX_BYTES:
                raise ValueError(f"longer than {MAX_BYTES} bytes")
        return body.decode()
