"""What a killed `make` leaves behind is used again or cleaned, on the real cluster and with the real Docker daemon."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster import CACHE, REPOSITORY, Cluster, Object
from harness.waiting import eventually

KIND = REPOSITORY / "e2e" / "kind"
KUBECONFIG = CACHE / "kubeconfig"
SET_UP_S = 600
TAG = "kvbudget/operator:e2e"
NODE = "kvbudget-worker2"
LOOK = """
import os
try:
    open("/opt/kvbudget/application/x", "w")
except OSError as error:
    print(os.getuid(), error.strerror, open("/opt/kvbudget/application/marker").read())
"""


def bash(text: str, **more: str) -> str:
    """Runs a script that has sourced the cluster's environment and reaches its Docker; returns its output."""
    done = subprocess.run(
        ["bash", "-c", f". '{KIND}/env.sh'\nuse_docker\n{text}"],
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SET_UP_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def uid_of(cluster: Cluster) -> str:
    space = cluster.get("namespaces", "kube-system")
    assert space
    uid: str = space["metadata"]["uid"]
    return uid


@pytest.mark.parametrize("left", ["nothing", "half of it", "an older cluster's"])
def test_a_cluster_whose_kubeconfig_is_stale_and_locked_is_kept(cluster: Cluster, left: str) -> None:
    before, kubeconfig = uid_of(cluster), KUBECONFIG.read_text()
    if left == "nothing":
        KUBECONFIG.unlink()
    elif left == "half of it":
        KUBECONFIG.write_text(kubeconfig[: len(kubeconfig) // 2])
    else:
        KUBECONFIG.write_text(kubeconfig.replace("server: https://127.0.0.1:", "server: https://127.0.0.2:"))
    lock = KUBECONFIG.with_name("kubeconfig.lock")
    lock.touch()  # a killed kind leaves it, and the next kind fails on it
    assert "is healthy: kept" in bash('bash "$KIND_DIR/cluster.sh" up')
    assert not lock.exists()
    assert uid_of(cluster) == before
    assert NODE in cluster.kubectl("get", "nodes")


def test_a_half_imported_image_gets_no_name() -> None:
    output = bash("! (import_image kvbudget/e2e-half:dev /nowhere) && docker images -q kvbudget/e2e-half")
    assert "error: the image kvbudget/e2e-half:dev cannot be made of /nowhere" in output
    assert output.splitlines()[-1].startswith("  fix: ")


@pytest.fixture
def versions(tmp_path: Path) -> Iterator[Path]:
    """A build context of the operator's image with another file in a last layer of its own."""
    (tmp_path / "Dockerfile").write_text("FROM kvbudget/operator:dev\nCOPY marker /opt/kvbudget/application/marker\n")
    yield tmp_path
    bash(f"docker rmi -f {TAG}")


def build(context: Path, marker: str) -> None:
    (context / "marker").write_text(marker)
    builder = "docker buildx version >/dev/null 2>&1 || export DOCKER_BUILDKIT=0\n"
    bash(f"{builder}docker build -q --label dev.kvbudget.inputs={marker} -t {TAG} {context}")


def test_a_node_gets_the_last_layer_alone_and_runs_it_without_root_and_without_writing(
    cluster: Cluster, namespace: str, versions: Path
) -> None:
    archive = versions / "layer.tar"
    lacks = f'"$(find_python)" "$KIND_DIR/last_layer.py" {TAG} {NODE} {archive}'
    build(versions, "first")
    assert bash(lacks) == "whole\n"
    bash(f'kind load docker-image {TAG} --name "$CLUSTER" --nodes {NODE}')  # what a user would call
    assert bash(lacks) == "fresh\n"
    build(versions, "second")
    assert bash(lacks) == "layer\n"
    assert archive.stat().st_size < 20_000_000
    bash(f'kind load image-archive {archive} --name "$CLUSTER" --nodes {NODE}')
    assert bash(lacks) == "fresh\n"
    cluster.apply(looking(namespace))

    def finished() -> bool:
        pod = cluster.get("pods", "look", namespace)
        assert pod
        assert pod["status"]["phase"] == "Succeeded", pod["status"]
        return True

    eventually(finished, 120, "the pod to look at its files")
    assert cluster.kubectl("logs", "look", "-n", namespace).strip() == "65532 Read-only file system second"


def looking(namespace: str) -> Object:
    """A pod of the image, with what the restricted Pod Security asks for and no more: the user is the image's own."""
    container = {
        "name": "look",
        "image": TAG,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", LOOK],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "look", "namespace": namespace},
        "spec": {
            "nodeName": NODE,
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


DOCKERD = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
UNSHARE = ["unshare", "--net"]


def may_unshare() -> bool:
    return os.getuid() == 0 and subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(DOCKERD is None or not may_unshare(), reason="needs dockerd, and a root that may make a network")
def test_a_killed_docker_daemon_is_replaced_and_clean_cache_ends_it() -> None:
    """In a network of its own: two daemons in one would take each other's bridge and rules away."""
    with tempfile.TemporaryDirectory(prefix="kvb-") as folder:
        cache = Path(folder, "kvbudget")
        env = {**os.environ, "XDG_CACHE_HOME": folder, "DOCKER_HOST": f"unix://{folder}/nobody-listens"}

        def script(path: str, *prefix: str) -> str:
            command = [*prefix, "bash", str(REPOSITORY / path)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SET_UP_S, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        def daemon() -> int:
            return int((cache / "docker.pid").read_text())

        assert "starting dockerd" in script("e2e/kind/docker.sh", *UNSHARE)
        first = daemon()
        assert "starting dockerd" not in script("e2e/kind/docker.sh", *UNSHARE)
        os.kill(first, signal.SIGKILL)  # its pid file, its socket and its containerd stay
        assert (cache / "docker.sock").is_socket()
        assert "starting dockerd" in script("e2e/kind/docker.sh", *UNSHARE)
        second = daemon()
        assert second != first
        script("scripts/clean_cache.sh")
        assert not cache.exists()
        assert not Path("/proc", str(second)).exists()


@pytest.mark.replaces_cluster
def test_a_broken_and_then_a_half_made_cluster_is_replaced(cluster: Cluster) -> None:
    before = uid_of(cluster)
    bash(f"docker stop -t 0 {NODE}")
    up = subprocess.Popen(
        ["bash", str(KIND / "cluster.sh"), "up"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert up.stdout
    for line in up.stdout:
        if "kind create cluster" in line:
            break
    eventually(lambda: bash(f'docker ps -q --filter "name=^{NODE}$"'), 120, "kind to start its nodes")
    os.killpg(up.pid, signal.SIGKILL)
    up.wait()
    output = bash('bash "$KIND_DIR/cluster.sh" up')
    assert "is broken or half made: replacing it" in output
    assert "is healthy: kept" in bash('bash "$KIND_DIR/cluster.sh" up')
    with Cluster() as replaced:
        assert uid_of(replaced) != before
    bash(f'bash "{REPOSITORY}/images/load.sh"')
