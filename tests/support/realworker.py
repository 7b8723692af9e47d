"""``python -m kvbudget_worker`` as a pod runs it, over loopback, on the CPU."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from kvbudget.plan import Plan
from support.process import Served, wait_for


@contextmanager
def real_worker(folder: Path, plan: Plan) -> Iterator[Served]:
    """A worker that serves ``plan`` and is ready; at the end it must stop cleanly."""
    plan_path, log_path = folder / "plan.json", folder / "log"
    plan_path.write_text(plan.to_json())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        "KVBUDGET_PLAN": str(plan_path),
        "KVBUDGET_HOST": "127.0.0.1",
        "KVBUDGET_PORT": str(port),
        "KVBUDGET_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvbudget_worker"], env=dict(os.environ) | env, stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            worker = Served(process, f"http://127.0.0.1:{port}", client, log_path)
            wait_for(lambda: worker.status("/ready") == 200 or process.poll() is not None, "readiness", 240)
            assert process.poll() is None, worker.log
            yield worker
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, worker.log
    finally:
        process.kill()
        process.wait()
