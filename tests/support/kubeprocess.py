"""Our own processes as a cluster runs them: real subprocesses, as a service account that holds exactly given rules."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3
import yaml

from kvbudget_operator.rbac import Rule, manifest
from support.controlplane import ControlPlane
from support.kubeapi import eventually

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def service_account(
    plane: ControlPlane,
    folder: Path,
    namespace: str,
    *,
    cluster: Sequence[Rule] = (),
    namespaced: Mapping[str, Sequence[Rule]] | None = None,
) -> Path:
    """Kubeconfig of a new service account with these rules and no others."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    plane.api.create(accounts, {"metadata": {"name": name}})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    _bind(plane, RBAC, "Cluster", name, cluster, subject)
    for where, rules in (namespaced or {}).items():
        _bind(plane, f"{RBAC}/namespaces/{where}", "", name, rules, subject)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    token = plane.api.create(f"{accounts}/{name}/token", request)["status"]["token"]
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"] = [{"name": "admin", "user": {"token": token}}]
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def _bind(
    plane: ControlPlane, base: str, prefix: str, name: str, rules: Sequence[Rule], subject: dict[str, str]
) -> None:
    plural = f"{prefix.lower()}roles"
    plane.api.create(f"{base}/{plural}", {"metadata": {"name": name}, "rules": manifest(tuple(rules))})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": f"{prefix}Role", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    plane.api.create(f"{base}/{plural.removesuffix('s')}bindings", binding)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@dataclass
class Process:
    """``python -m kvbudget_operator <arguments>``; its log is in ``folder``."""

    arguments: Sequence[str]
    kubeconfig: Path
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    health_port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Process":
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(self.kubeconfig),
            "KVBUDGET_HEALTH_HOST": "127.0.0.1",
            "KVBUDGET_HEALTH_PORT": str(self.health_port),
            **self.env,
        }
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvbudget_operator", *self.arguments],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                preexec_fn=_die_with_us,
            )
        return self

    @property
    def log(self) -> Path:
        return self.folder / f"{self.arguments[0]}-{self.health_port}.log"

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL: nothing is finished, nothing is cleaned up."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM. Returns the exit code."""
        return self._signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    def _signal(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(30)

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a path of the health server; status 0 while nothing listens."""
        try:
            answer: Any = urllib3.request("GET", f"http://127.0.0.1:{self.health_port}{path}", retries=False, timeout=5)
        except urllib3.exceptions.HTTPError as error:
            return 0, str(error)
        return answer.status, answer.data.decode()

    def until_ready(self, seconds: float = 60) -> "Process":
        def ready() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"ended with {self._process.returncode}:\n{self.text()[-4000:]}")
            return self.get("/readyz")[0] == 200

        eventually(ready, seconds, lambda: self.text()[-4000:])
        return self

    def metric(self, name: str) -> float:
        """One sample, by its name with labels as exposed."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{name} "):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no sample {name}")
