"""A scripted worker in a process of its own, over loopback."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from kvbudget.plan import Plan
from support import scripted

DEADLINE_SECONDS = 60.0


def wait_for(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Polls a condition; fails when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(0.01)


@dataclass
class Served:
    """A running worker process."""

    process: "subprocess.Popen[bytes]"
    url: str
    client: httpx.Client
    log_path: Path

    def status(self, path: str) -> int:
        """HTTP status of a GET; 0 where nobody answers."""
        try:
            return self.client.get(path).status_code
        except httpx.TransportError:
            return 0

    def metric(self, name: str) -> float:
        """Sum over the samples of one metric."""
        lines = self.client.get("/metrics").text.splitlines()
        samples = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        assert samples, name
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples)

    def until_pages_are_back(self) -> None:
        wait_for(lambda: self.client.get("/load").json()["kv_tokens_reserved"] == 0, "the release of all pages")

    @property
    def log(self) -> str:
        return self.log_path.read_text()


@contextmanager
def served(folder: Path, plan: Plan, options: Sequence[str] = (), *, ready: bool = True) -> Iterator[Served]:
    """Starts ``python -m support.scripted``; waits until it is ready, or only until it answers."""
    plan_path, port_path, log_path = folder / "plan.json", folder / "port", folder / "log"
    plan_path.write_text(plan.to_json())
    command = [sys.executable, "-m", "support.scripted", str(plan_path), str(port_path), *options]
    tests = Path(scripted.__file__).parents[1]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=tests, stdout=log, stderr=log)
    try:
        wait_for(lambda: (port_path.exists() and bool(port_path.read_text())) or process.poll() is not None, "a port")
        assert process.poll() is None, log_path.read_text()
        url = f"http://127.0.0.1:{port_path.read_text()}"
        with httpx.Client(base_url=url, timeout=60) as client:
            worker = Served(process, url, client, log_path)
            wait_for(lambda: worker.status("/ready" if ready else "/live") == 200, "readiness")
            yield worker
    finally:
        process.kill()
        process.wait()
