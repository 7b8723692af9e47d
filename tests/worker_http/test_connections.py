"""What clients can do to connections, in a real process over loopback: each is bounded, and no page is held by it."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from kvbudget_worker.http.intake import Intake
from support.inprocess import in_process
from support.process import Served, served, wait_for
from support.scripted import make_plan

PATIENCE_SECONDS = 1.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    plan = make_plan(pages=640, max_model_len=8192, max_output_tokens=8191)
    options = ["--step-ms", "1", "--patience-s", str(PATIENCE_SECONDS), "--idle", "20"]
    with served(tmp_path_factory.mktemp("worker"), plan, options) as process:
        yield process


def connect(worker: Served, *, receive_bytes: int | None = None) -> socket.socket:
    """``receive_bytes``: how much the kernel takes of an answer that nobody reads."""
    address = urlsplit(worker.url)
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(40)
    sock.connect((str(address.hostname), address.port))
    return sock


def completion(length: int | None = None, **fields: object) -> bytes:
    """A whole request, or one that declares a longer body than it sends."""
    body = json.dumps({"prompt": "x", "max_tokens": 4, **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def until_closed(sock: socket.socket) -> tuple[bytes, float]:
    """What arrives until the worker closes, and after how many seconds that was."""
    began, data = time.monotonic(), b""
    while part := sock.recv(65536):
        data += part
    return data, time.monotonic() - began


def reserved(worker: Served) -> int:
    return int(worker.client.get("/load").json()["kv_tokens_reserved"])


@pytest.mark.parametrize("sent", [b"", b"GET /version HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_does_not_end_is_not_waited_for(worker: Served, sent: bytes) -> None:
    with connect(worker) as client:
        client.sendall(sent)
        data, seconds = until_closed(client)
    assert data == b""
    assert PATIENCE_SECONDS / 2 < seconds < PATIENCE_SECONDS + 15


def test_a_second_head_that_does_not_end_is_not_waited_for(worker: Served) -> None:
    with connect(worker) as client:
        client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += client.recv(65536)
        client.sendall(b"GET /ver")
        data, seconds = until_closed(client)
    assert data == b""
    assert seconds < PATIENCE_SECONDS + 15


def test_a_body_that_trickles_in_is_refused_in_time(worker: Served) -> None:
    with connect(worker) as client:
        client.sendall(completion(length=1000))
        for _ in range(3):
            time.sleep(PATIENCE_SECONDS / 10)
            client.sendall(b" ")
        data, seconds = until_closed(client)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "body_timeout"
    assert seconds < PATIENCE_SECONDS + 15
    assert worker.client.get("/load").json()["server_load"] == 0


async def test_a_body_that_never_comes_is_refused_on_every_route_that_reads_one() -> None:
    async def never() -> object:
        yield b"{"
        await until_the_end.wait()

    until_the_end = asyncio.Event()
    async with in_process() as inside:
        inside.service.intake.limit_seconds = 0.05
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            answer = await inside.client.post(path, content=never())  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["error"]["code"]) == (408, "body_timeout"), path


async def test_large_bodies_take_turns_and_small_ones_need_none() -> None:
    """Two turns: the third large body waits for one, and is refused when none comes; every end gives its turn back."""

    async def large(ends: asyncio.Event) -> AsyncIterator[bytes]:
        yield b"{"
        started.release()
        await ends.wait()

    async def post(content: Any, seconds: float = 60) -> Any:
        inside.service.intake.limit_seconds = seconds
        return await inside.client.post("/v1/completions", content=content)

    started, end = asyncio.Semaphore(0), asyncio.Event()
    async with in_process() as inside:
        inside.service.intake = Intake(1 << 20, 60, large_at_once=2)
        reading = [asyncio.create_task(post(large(end))) for _ in range(2)]
        for _ in reading:
            await started.acquire()
        refused = await post(large(end), seconds=0.05)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "bodies_busy")
        assert refused.headers["retry-after"] == "1"
        assert (await post(b"no json")).status_code == 400, "a small body takes no turn"
        waiting = asyncio.create_task(post(b"x" * 100_000))
        end.set()
        assert [(await answer).status_code for answer in (*reading, waiting)] == [400, 400, 400]
        assert [(await post(b"x" * 100_000)).status_code for _ in range(5)] == [400] * 5


def test_a_client_that_reads_nothing_holds_neither_pages_nor_the_connection(worker: Served) -> None:
    """More than the buffers take: 8000 chunks of 2 kB."""
    with connect(worker, receive_bytes=4096) as client:
        client.sendall(completion(max_tokens=8000, stream=True, logprobs=20))
        wait_for(lambda: reserved(worker) > 0, "the start")
        worker.until_pages_are_back()
        wait_for(lambda: worker.client.get("/load").json()["server_load"] == 0, "the end of the request")


def test_idle_connections_go_before_new_ones_are_turned_away(worker: Served) -> None:
    with ExitStack() as stack:
        busy = stack.enter_context(connect(worker))
        busy.sendall(completion(max_tokens=1500, stream=True))
        idle = [stack.enter_context(connect(worker)) for _ in range(60)]
        with connect(worker) as late:
            late.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert until_closed(late)[0].startswith(b"HTTP/1.1 200")
        assert idle[0].recv(1) == b"", "the oldest one is closed"
        data = b""
        while b"[DONE]" not in data:
            part = busy.recv(65536)
            assert part, "a request that is answered is none of them"
            data += part


def test_pipelined_requests_are_answered_in_order(worker: Served) -> None:
    with connect(worker) as client:
        client.sendall(completion() * 3 + b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data, _ = until_closed(client)
    assert data.count(b"HTTP/1.1 200") == 4
    assert data.count(b'"text":"abcd"') == 3
    assert data.rstrip().endswith(b'{"status":"ready"}')


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_pages_although_more_requests_came_behind(
    stream: bool, worker: Served
) -> None:
    with connect(worker) as client:
        client.sendall(completion(max_tokens=8000, stream=stream) + completion())
        wait_for(lambda: reserved(worker) > 0, "the start")
        client.sendall(completion())
        assert worker.status("/live") == 200
    left_at = time.monotonic()
    worker.until_pages_are_back()
    assert time.monotonic() - left_at < 7, "8000 steps of 1 ms take longer"


def test_two_hundred_clients_that_vanish_leave_nothing(worker: Served) -> None:
    for _ in range(4):
        clients = [connect(worker) for _ in range(50)]
        for client in clients:
            client.sendall(completion(max_tokens=1000, stream=True))
        wait_for(lambda: reserved(worker) > 0, "the start")
        for number, client in enumerate(clients):
            if number % 2:  # with a reset instead of an end
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
        # Some may not have been read yet when the pages of those that were are back.
        wait_for(lambda: worker.client.get("/load").json()["server_load"] == 0, "the end of every request")
        worker.until_pages_are_back()


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /\xff HTTP/1.1",
        b"GET  HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET http://[ HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"GET / HTTP/9.9",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 6",
    ],
)
def test_what_is_no_http_gets_an_error_in_the_usual_shape(worker: Served, request_line: bytes) -> None:
    with connect(worker) as client:
        client.sendall(request_line + b"\r\nHost: x\r\n\r\n")
        data, _ = until_closed(client)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400"), data
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert worker.status("/ready") == 200
    assert "Traceback" not in worker.log


def test_of_a_key_that_occurs_twice_the_last_one_counts(worker: Served) -> None:
    body = b'{"prompt": "x", "max_tokens": 9, "max_tokens": 2}'
    assert worker.client.post("/v1/completions", content=body).json()["usage"]["completion_tokens"] == 2
