"""Drain, disconnect and a failing engine, in real processes over loopback."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from kvbudget import contract
from support.process import Served, served, wait_for
from support.scripted import ALPHABET, make_plan

MODEL = "test/scripted"

pytestmark = pytest.mark.slow


def stream(worker: Served, max_tokens: int) -> tuple[Iterator[str], httpx.Response]:
    """An open stream and its lines; the caller reads or closes it."""
    request = worker.client.build_request(
        "POST", "/v1/completions", json={"prompt": "x", "max_tokens": max_tokens, "stream": True}
    )
    response = worker.client.send(request, stream=True)
    assert response.status_code == 200
    return response.iter_lines(), response


def running(worker: Served) -> bool:
    return bool(worker.client.get("/load").json()["kv_tokens_reserved"])


def test_a_client_that_goes_away_frees_its_pages_at_once(tmp_path: Path) -> None:
    """The request would run for 400 steps of 20 ms; the pages are back within a small part of that."""
    with served(tmp_path, make_plan(), ["--step-ms", "20"]) as worker:
        lines, response = stream(worker, 400)
        assert next(lines).startswith("data: ")
        assert running(worker)
        response.close()
        closed_at = time.monotonic()
        worker.until_pages_are_back()
        assert time.monotonic() - closed_at < 2
        assert worker.metric("vllm:generation_tokens_total") < 200
        assert worker.metric("vllm:num_requests_running") == 0
        # The same for a client that does not stream.
        with httpx.Client(base_url=worker.url, timeout=0.3) as hasty, pytest.raises(httpx.ReadTimeout):
            hasty.post("/v1/completions", json={"prompt": "x", "max_tokens": 400})
        worker.until_pages_are_back()
        text = worker.client.get("/metrics").text
        assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="test/scripted"} 2.0' in text


def test_a_client_that_leaves_the_queue_is_forgotten(tmp_path: Path) -> None:
    plan = make_plan(pages=8, queue_tokens=1000)
    with served(tmp_path, plan, ["--step-ms", "20"]) as worker:
        _, holder = stream(worker, 120)
        with httpx.Client(base_url=worker.url, timeout=0.3) as hasty, pytest.raises(httpx.ReadTimeout):
            hasty.post("/v1/completions", json={"prompt": "x", "max_tokens": 60})
        wait_for(lambda: worker.client.get("/load").json()["queued_tokens"] == 0, "leaving the queue")
        holder.close()
        worker.until_pages_are_back()


def test_sigterm_lets_in_flight_requests_finish(tmp_path: Path) -> None:
    with served(tmp_path, make_plan(drain_timeout_seconds=60), ["--step-ms", "20"]) as worker:
        with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as client:
            chunks = client.completions.create(model=MODEL, prompt="x", max_tokens=60, stream=True)
            text = next(iter(chunks)).choices[0].text
            worker.process.send_signal(signal.SIGTERM)
            wait_for(lambda: worker.status("/ready") == 503, "the drain")
            assert worker.status("/live") == 200
            assert worker.status("/health") == 200
            assert worker.metric("kvbudget_draining") == 1
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(model=MODEL, prompt="x", max_tokens=1)
            assert refused.value.status_code == 503
            assert refused.value.code == "draining"
            assert refused.value.response.headers["connection"] == "close"
            last = None
            for last in chunks:
                text += last.choices[0].text
        assert text == (ALPHABET * 3)[:60]
        assert last is not None
        assert last.choices[0].finish_reason == "length"
        assert worker.process.wait(20) == 0
        assert "0 requests were cut off" not in worker.log
        assert "drained" in worker.log


def test_sigterm_lets_waiting_requests_be_served(tmp_path: Path) -> None:
    plan = make_plan(pages=8, queue_tokens=1000, drain_timeout_seconds=60)
    with served(tmp_path, plan, ["--step-ms", "10"]) as worker:
        lines, _ = stream(worker, 120)
        answers: list[httpx.Response] = []

        def wait_in_the_queue() -> None:
            body = {"prompt": "x", "max_tokens": 60}
            answers.append(httpx.post(f"{worker.url}/v1/completions", json=body, timeout=60))

        waiting = threading.Thread(target=wait_in_the_queue)
        waiting.start()
        wait_for(lambda: worker.client.get("/load").json()["queued_requests"] == 1, "waiting in the queue")
        worker.process.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
        waiting.join()
        assert answers[0].status_code == 200
        assert answers[0].json()["usage"]["completion_tokens"] == 60
        assert worker.process.wait(20) == 0


def test_what_outlives_the_drain_ends_with_an_error_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "termination-log"
    monkeypatch.setenv("KVBUDGET_TERMINATION_LOG", str(note))
    with served(tmp_path, make_plan(drain_timeout_seconds=1), ["--step-ms", "20"]) as worker:
        with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as client:
            chunks = client.completions.create(model=MODEL, prompt="x", max_tokens=500, stream=True)
            next(iter(chunks))
            worker.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match="shutting down"):
                for _ in chunks:
                    pass
        assert worker.process.wait(20) == 0
        assert "1 requests were cut off" in worker.log
    assert note.read_text() == "requests cut off by the drain: 1"


def seconds_to_stop(worker: Served) -> float:
    start = time.monotonic()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(60) == 0
    return time.monotonic() - start


def test_clients_that_stall_do_not_hold_a_worker_beyond_its_grace_period(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    plan = make_plan(drain_timeout_seconds=0)
    with served(tmp_path_factory.mktemp("idle"), plan) as worker:
        idle_seconds = seconds_to_stop(worker)  # what this machine needs now to end a process
    with served(tmp_path_factory.mktemp("stalled"), plan, ["--step-ms", "20"]) as worker:
        address = urlsplit(worker.url)
        with socket.create_connection((address.hostname, address.port)) as stalled:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            stalled.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            assert worker.status("/ready") == 200
            assert seconds_to_stop(worker) - idle_seconds < contract.GRACE_SECONDS


def test_a_second_signal_ends_the_drain(tmp_path: Path) -> None:
    with served(tmp_path, make_plan(drain_timeout_seconds=600), ["--step-ms", "20"]) as worker:
        lines, _ = stream(worker, 500)
        next(lines)
        worker.process.send_signal(signal.SIGINT)
        wait_for(lambda: worker.status("/ready") == 503, "the drain")
        worker.process.send_signal(signal.SIGINT)
        rest = list(lines)
        assert "event: error" in rest
        assert worker.process.wait(20) == 0


def test_an_idle_worker_stops_at_once(tmp_path: Path) -> None:
    with served(tmp_path, make_plan(drain_timeout_seconds=600)) as worker:
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(20) == 0


def test_probes_answer_while_the_model_is_loaded_and_sigterm_ends_that(tmp_path: Path) -> None:
    with served(tmp_path, make_plan(), ["--load-ms", "600000"], ready=False) as worker:
        assert worker.status("/ready") == 503
        assert worker.status("/health") == 503
        refused = worker.client.post("/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
        assert "kvbudget_measured_pages{" not in worker.client.get("/metrics").text
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0


def test_an_engine_that_fails_ends_every_stream_cleanly(tmp_path: Path) -> None:
    with served(tmp_path, make_plan(), ["--step-ms", "10", "--fail-at", "20"]) as worker:
        with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as client:
            errors: list[openai.APIError] = []

            def read() -> None:
                try:
                    for _ in client.completions.create(model=MODEL, prompt="x", max_tokens=100, stream=True):
                        pass
                except openai.APIError as error:
                    errors.append(error)

            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(errors) == 4
            assert all("the engine failed" in str(error) for error in errors)
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(model=MODEL, prompt="x")
            assert refused.value.code == "engine_dead"
        assert [worker.status(p) for p in ("/live", "/health", "/ready")] == [503, 503, 503]
        worker.until_pages_are_back()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(20) == 1


def test_an_endless_head_is_cut_off(tmp_path: Path) -> None:
    with served(tmp_path, make_plan()) as worker:
        address = urlsplit(worker.url)
        with socket.create_connection((str(address.hostname), address.port), timeout=20) as client:
            client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n")
            with pytest.raises(OSError, match=r"reset|Broken pipe"):
                client.sendall((b"x: " + b"y" * 60_000 + b"\r\n") * 1000)
        body = {"prompt": "x" * 400, "max_tokens": 1}
        assert worker.client.post("/v1/completions", json=body, headers={"x-long": "y" * 50_000}).status_code == 200
        assert worker.client.post("/v1/completions", content=b" " * (3 << 20)).status_code == 400
        assert "head of the request is longer" in worker.log
