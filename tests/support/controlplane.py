"""A real control plane for tests: etcd and kube-apiserver as plain processes on loopback, in a temporary folder.

No controller runs: nothing is garbage collected, no pod is made, a namespace never finishes its deletion. So each test
takes a namespace of its own. Both processes die with the test process, however that ends.
"""

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import urllib3
import yaml

from support.certificates import Authority
from support.kubeapi import ApiError, KubeAPI, eventually

READY_SECONDS = 60
"""How long the API server may take to become ready (about 5 on two idle cores)."""
_STARTS = 3
"""A port may be taken between our choosing it and the server's binding it; then we start again."""


class ControlPlaneError(RuntimeError):
    """The control plane did not start; the message has the end of the log, or the command to run."""


@dataclass(frozen=True)
class ControlPlane:
    """A running API server. ``kubeconfig`` is that of a cluster admin, ``api`` makes requests as that admin."""

    url: str
    ca_file: Path
    kubeconfig: Path
    api: KubeAPI


def binary(name: str) -> Path:
    """Path of a control-plane binary in the cache folder. Raises :class:`ControlPlaneError` where it is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbudget" / "bin"
    path = cache / name
    if not os.access(path, os.X_OK):
        raise ControlPlaneError(f"{path} is missing; run: make cluster-binaries")
    return path


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Runs etcd and kube-apiserver in ``folder`` until the block ends. Raises :class:`ControlPlaneError`."""
    binaries = binary("etcd"), binary("kube-apiserver")
    _write_certificates(folder)
    for attempt in range(1, _STARTS + 1):
        processes: list[subprocess.Popen[bytes]] = []
        try:
            plane = _start(folder / f"try-{attempt}", folder, binaries, processes)
        except _PortTaken:
            _stop(processes)
            continue
        except BaseException:
            _stop(processes)
            raise
        try:
            yield plane
        finally:
            plane.api.close()
            _stop(processes)
        return
    raise ControlPlaneError(f"no free ports in {_STARTS} tries; logs are in {folder}")


class _PortTaken(Exception):
    pass


def _start(
    data: Path, certificates: Path, binaries: tuple[Path, Path], processes: list[subprocess.Popen[bytes]]
) -> ControlPlane:
    data.mkdir()
    etcd_port, peer_port, api_port = _free_ports(3)
    etcd = [
        f"--data-dir={data / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{etcd_port}",
        f"--advertise-client-urls=http://127.0.0.1:{etcd_port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
        f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]
    apiserver = [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={api_port}",
        f"--tls-cert-file={certificates / 'server.crt'}",
        f"--tls-private-key-file={certificates / 'server.key'}",
        f"--client-ca-file={certificates / 'ca.crt'}",
        f"--service-account-key-file={certificates / 'server.key'}",
        f"--service-account-signing-key-file={certificates / 'server.key'}",
        f"--service-account-issuer=https://127.0.0.1:{api_port}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--authorization-mode=RBAC",
        # Pods would wait for a ServiceAccount that no controller makes.
        "--disable-admission-plugins=ServiceAccount",
        "--enable-priority-and-fairness=false",
    ]
    processes.append(_spawn(binaries[0], etcd, data / "etcd.log"))
    processes.append(_spawn(binaries[1], apiserver, data / "kube-apiserver.log"))
    plane = _plane(f"https://127.0.0.1:{api_port}", certificates)
    _wait_ready(plane.api, processes, data)
    return plane


def _spawn(path: Path, arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [path, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_us,
        )


def _die_with_us() -> None:
    """Runs in the child: the kernel kills it when the test process is gone, even by SIGKILL."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(processes):
        process.kill()
        process.wait()


def _wait_ready(api: KubeAPI, processes: list[subprocess.Popen[bytes]], data: Path) -> None:
    def ready() -> bool:
        for process in processes:
            if process.poll() is not None:
                _raise_dead(Path(str(process.args[0])).name, data)  # type: ignore[index]
        try:
            return bool(api.get("/readyz", accept="text/plain"))
        except (urllib3.exceptions.HTTPError, ApiError):
            return False

    try:
        eventually(ready, READY_SECONDS, lambda: f"the API server is not ready:\n{_tail(data / 'kube-apiserver.log')}")
    except TimeoutError as error:
        raise ControlPlaneError(str(error)) from error


def _raise_dead(name: str, data: Path) -> None:
    log = _tail(data / f"{name}.log")
    if "address already in use" in log:
        raise _PortTaken
    raise ControlPlaneError(f"{name} ended at its start:\n{log}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _write_certificates(folder: Path) -> None:
    authority = Authority.make("kvbudget-test")
    server = authority.server_certificate(["localhost", "127.0.0.1", "kubernetes.default.svc", "10.0.0.1"])
    admin = authority.client_certificate("admin", ["system:masters"])
    (folder / "ca.crt").write_bytes(authority.certificate)
    for name, pair in (("server", server), ("admin", admin)):
        (folder / f"{name}.crt").write_bytes(pair.certificate)
        (folder / f"{name}.key").write_bytes(pair.key)


def _plane(url: str, folder: Path) -> ControlPlane:
    kubeconfig = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(folder / "ca.crt")}}],
        "users": [
            {
                "name": "admin",
                "user": {
                    "client-certificate": str(folder / "admin.crt"),
                    "client-key": str(folder / "admin.key"),
                },
            }
        ],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
    }
    kubeconfig.write_text(yaml.safe_dump(config))
    return ControlPlane(url, folder / "ca.crt", kubeconfig, KubeAPI(url, folder))
