"""One round of readings after the other, while the API server is slow or broken for one service: the others go on."""

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from kvbudget_operator.client import Client
from kvbudget_operator.controller import Controller
from kvbudget_operator.gather import Indexes, Key
from kvbudget_operator.metrics import OperatorMetrics
from kvbudget_operator.reconcile import decide
from kvbudget_operator.settings import SCALING_WRITES, OperatorSettings
from support.accepted import WORKER, snapshot
from support.fakeworker import FakeWorker
from support.kubeapi import Object
from support.objects import changed

SCALING = {"maxReplicas": 3, "targetPercent": 50}


class Apiserver:
    """Takes every write, but for /scale in namespaces that begin with ``slow``, which it answers at ``end``, and in
    ``broken``, which it refuses. ``scaled``: namespaces in which a change of replicas was asked for."""

    def __init__(self) -> None:
        self.scaled: list[str] = []
        self.end = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(404, {"reason": "NotFound", "message": "not there"})

            def do_PATCH(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                namespace = self.path.split("/namespaces/")[1].split("/")[0]
                is_scale = self.path.partition("?")[0].endswith("/scale")
                if is_scale:
                    api.scaled.append(namespace)
                if is_scale and namespace.startswith("slow"):
                    api.end.wait(60)
                refused = is_scale and namespace == "broken"
                self._answer(500 if refused else 200, {"metadata": {"resourceVersion": "9"}, "message": "out of order"})

            do_POST = do_PATCH

            def _answer(self, status: int, body: Object) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def kubeconfig(self, folder: Path) -> Path:
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        named = {"name": "x", "context": {"cluster": "x", "user": "x"}}
        path = folder / "kubeconfig"
        config = {
            "clusters": [{"name": "x", "cluster": {"server": url}}],
            "users": [{"name": "x", "user": {}}],
            "contexts": [named],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def close(self) -> None:
        self.end.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def api() -> Iterator[Apiserver]:
    made = Apiserver()
    yield made
    made.close()


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    """Full, so that whoever reads it wants more replicas."""
    plan = decide(snapshot(spec__scaling=SCALING), WORKER).plan
    assert plan is not None
    made = FakeWorker(plan)
    made.reserved = plan.budget.tokens
    yield made
    made.close()


def watched(namespaces: tuple[str, ...], port: int) -> Indexes:
    """One scaling service with one worker in each namespace."""
    services: dict[Key, list[Object]] = {}
    deployments: dict[Key, list[Object]] = {}
    replica_sets: dict[Key, list[Object]] = {}
    pods: dict[Key, list[Object]] = {}
    seen = snapshot(spec__scaling=SCALING, spec__replicas=1)
    assert seen.deployment is not None
    for namespace in namespaces:
        key, place = (namespace, "chat"), {"metadata.namespace": namespace}
        services[key] = [changed(seen.service, {**place, "metadata.uid": f"service-{namespace}"})]
        deployment = changed(seen.deployment, {**place, "metadata.uid": f"deployment-{namespace}"})
        deployment["metadata"]["ownerReferences"][0]["uid"] = f"service-{namespace}"
        deployments[key] = [deployment]
        made = {"namespace": namespace, "name": "chat-1", "uid": f"set-{namespace}"}
        owner = {"uid": f"deployment-{namespace}", "controller": True}
        template = deployment["spec"]["template"]
        replica_sets[key] = [{"metadata": {**made, "ownerReferences": [owner]}, "spec": {"template": template}}]
        owner = {"uid": f"set-{namespace}", "controller": True}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": ready}
        made = {"namespace": namespace, "name": "chat-1-a", "uid": f"pod-{namespace}"}
        pods[key] = [{"metadata": {**made, "ownerReferences": [owner]}, "status": status, "port": port}]
    classes = {"small": [seen.gpu_class] if seen.gpu_class else []}
    return Indexes(
        services=services,
        gpu_classes=classes,
        users={},
        deployments=deployments,
        replica_sets=replica_sets,
        config_maps={},
        others={},
        pods=pods,
    )


@asynccontextmanager
async def running(
    api: Apiserver, indexes: Indexes, folder: Path
) -> AsyncIterator[tuple[Controller, Callable[[], float]]]:
    """A controller that has seen every service, and a way to tell how many rounds of readings there were."""
    client = Client.connect(threads=8, timeout_seconds=60, kubeconfig=str(api.kubeconfig(folder)))
    metrics = OperatorMetrics()
    controller = Controller(OperatorSettings(WORKER, scrape_seconds=0.1), client, metrics)
    await controller.start(indexes)
    for key in indexes.services:
        controller.add(key)

    def rounds() -> float:
        found = re.search(
            r"^kvbudget_operator_scrape_rounds_total (\S+)", metrics.exposition()[0].decode(), re.MULTILINE
        )
        assert found
        return float(found.group(1))

    try:
        yield controller, rounds
    finally:
        api.end.set()
        await controller.stop()
        client.close()


async def until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_change_that_waits_for_its_turn_is_not_made_once_nothing_wants_it_any_more(
    api: Apiserver, worker: FakeWorker, tmp_path: Path
) -> None:
    slow = tuple(f"slow-{number}" for number in range(SCALING_WRITES))
    async with running(api, watched((*slow, "well"), worker.port), tmp_path) as (_, rounds):
        await until(lambda: set(api.scaled) == set(slow))
        for reserved in (worker.reserved, 0):
            worker.reserved = reserved
            before = rounds()
            await until(lambda: rounds() >= before + 3)  # noqa: B023 (called before the next turn)
        api.end.set()
        before = rounds()
        await until(lambda: rounds() >= before + 3)
    assert sorted(api.scaled) == sorted(slow)


async def test_a_service_whose_api_calls_hang_or_fail_holds_up_no_other(
    api: Apiserver, worker: FakeWorker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    indexes = watched(("broken", "odd", "slow", "well"), worker.port)
    del indexes.pods[("odd", "chat")][0]["status"]["conditions"][0]["type"]  # type: ignore[index]
    async with running(api, indexes, tmp_path) as (controller, _):
        await until(lambda: {"slow", "well"} <= set(api.scaled) and api.scaled.count("broken") > 1)
        assert not controller.stopped.is_set()
        assert api.scaled.count("slow") == 1, "no second one while the first is on its way"
        assert api.scaled.count("well") == 1, "the watch has not shown the first one yet"
    told = {
        record.getMessage().partition(" failed")[0]: record
        for record in caplog.records
        if "decided again" in record.getMessage()
    }
    assert set(told) == {"scaling of broken/chat", "scaling of odd/chat"}
    assert "out of order" in told["scaling of broken/chat"].getMessage()
    assert not told["scaling of broken/chat"].exc_info
    assert told["scaling of odd/chat"].exc_info, "a bug of ours has its traceback"
