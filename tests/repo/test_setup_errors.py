"""When the set-up cannot go on, one line says what failed and the next one what to do."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clone import NOBODY, REAL_CACHE, ROOT, Clone, may_mount

REGISTRY = "fix: a package registry cannot be reached: check the network, or name a mirror in"
FULL = "fix: a disk is full"
CLOSED = "http://127.0.0.1:9"
"""The port of the discard service, which nobody runs."""


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("pip: NewConnectionError: Failed to establish a new connection: [Errno 111] Connection refused", REGISTRY),
        ("pip: ConnectTimeoutError(... 'Connection to example.org timed out. (connect timeout=15)')", REGISTRY),
        ("pip: ERROR: Could not find a version that satisfies the requirement uv (from versions: none)", REGISTRY),
        ("uv: error: Failed to fetch: `https://example.org/simple/torch/`", REGISTRY),
        ("uv: dns error: failed to lookup address information: Temporary failure in name resolution", REGISTRY),
        ('go: x@v1: Get "https://example.org/x": dial tcp: lookup example.org: no such host', REGISTRY),
        ('go: x@v1: Get "https://example.org/x": dial tcp 192.0.2.1:443: i/o timeout', REGISTRY),
        ("apt: Could not resolve 'deb.debian.org'", REGISTRY),
        ("debootstrap: E: Failed getting release file http://deb.debian.org/...", REGISTRY),
        ("OSError: [Errno 28] No space left on device", FULL),
        ("go: write /tmp/x: no space left on device", FULL),
        ("mv: error writing 'x': No space left on device", FULL),
        (
            "kubeadm: Get https://172.18.0.2:6443/livez: dial tcp 172.18.0.2:6443: connect: connection refused",
            "fix: read",
        ),
        ("kubelet: http://127.0.0.1:10248/healthz: connect: connection refused", "fix: read"),
        ("dial unix /var/run/docker.sock: connect: connection refused", "fix: read"),
        ("error: expected ';'", "fix: read"),
    ],
)
def test_the_remedy_follows_from_what_the_command_said(clone: Clone, line: str, remedy: str) -> None:
    code, output = clone.run('logged "making x" x.log bash -c \'echo "$SAID"; exit 7\'', SAID=line)
    assert code == 1
    assert "error: making x failed with exit code 7 after " in output
    assert remedy in output.splitlines()[-1]


@pytest.mark.skipif(not (REAL_CACHE / "tools").is_dir(), reason="uv comes from the cache that `make venv` filled")
def test_without_a_package_index_make_venv_says_what_to_do_and_leaves_no_whole_environment(clone: Clone) -> None:
    (clone.root / "requirements").mkdir()
    for name in ("uv.txt", "dev.txt"):
        shutil.copy(ROOT / "requirements" / name, clone.root / "requirements")
    shutil.copy(ROOT / "pyproject.toml", clone.root)
    (clone.cache / "locks").mkdir(parents=True)
    (clone.cache / "tools").symlink_to(REAL_CACHE / "tools")
    code, output = clone.script("scripts/venv.sh", UV_DEFAULT_INDEX=f"{CLOSED}/simple", UV_HTTP_RETRIES="0")
    assert code == 1, output
    assert "error: installing the locked requirements (torch is large) failed with exit code" in output
    assert REGISTRY in output.splitlines()[-1]
    assert not (clone.root / ".venv" / "kvbudget-requirements").exists()


@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_without_a_module_proxy_the_first_binary_says_what_to_do_and_leaves_nothing(clone: Clone) -> None:
    code, output = clone.script("e2e/kind/binaries.sh", "kind", GOPROXY=CLOSED, GOFLAGS="-mod=readonly")
    assert code == 1, output
    assert "error: go build kind failed with exit code 1" in output
    assert REGISTRY in output.splitlines()[-1]
    assert list((clone.cache / "bin").iterdir()) == []


@pytest.mark.parametrize("go", ["go1.21.5", None])
def test_go_that_is_missing_or_too_old_is_told_before_anything_is_built(clone: Clone, go: str | None) -> None:
    tools = clone.folder / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "mkdir", "flock", "env", "cut", "sha256sum", "grep", "cat", "sort", "head", "rm"):
        (tools / name).symlink_to(str(shutil.which(name)))
    if go:
        (tools / "go").write_text(f"#!{shutil.which('bash')}\necho {go}\n")
        (tools / "go").chmod(0o755)
    code, output = clone.script("e2e/kind/binaries.sh", "pause", PATH=str(tools))
    assert code == 1
    assert output.startswith(f"error: Go {go} is too old\n" if go else "error: Go is not on PATH\n")
    assert "fix: install Go 1.24 or newer" in output


@pytest.fixture
def small_disk(clone: Clone) -> Iterator[Path]:
    """The cache on a disk of 1 MiB."""
    at = clone.cache.parent
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", at], check=True)


@pytest.mark.skipif(not may_mount(), reason="needs a root that may mount")
def test_a_full_disk_is_told(clone: Clone, small_disk: Path) -> None:
    code, output = clone.run('logged "copying" copy.log bash -c \'head -c 2M /dev/zero >"$CACHE/copy"\'')
    assert code == 1, output
    assert "error: copying" in output
    assert FULL in output.splitlines()[-1]
    assert f"MiB are free at {clone.cache}" in output


@pytest.mark.skipif(not may_mount(), reason="needs a root that may mount")
def test_a_disk_that_was_full_before_the_start_is_told(clone: Clone, small_disk: Path) -> None:
    subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/ballast", "bs=64k"], capture_output=True, check=False)
    code, output = clone.run("true")
    assert code == 1, output
    assert f"error: the cache folder {clone.cache} cannot be written" in output
    assert "fix: look at its owner and its free space" in output


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_cache_that_root_made_is_told_to_others(clone: Clone) -> None:
    for part in (clone.folder, *clone.folder.parents):
        if part.stat().st_uid == os.getuid() and part.is_relative_to(tempfile.gettempdir()):
            part.chmod(part.stat().st_mode | 0o055)
    assert clone.run("true")[0] == 0
    ran = subprocess.run(
        ["bash", str(clone.root / "scripts" / "under_test.sh")],
        env=clone.env,
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran
    assert f"error: the cache folder {clone.cache} cannot be written (as uid {NOBODY})" in ran.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="says first that it needs root")
def test_a_path_too_long_for_a_socket_is_told_before_a_daemon_is_started(clone: Clone) -> None:
    far = clone.folder / ("x" * 90)
    code, output = clone.script("e2e/kind/docker.sh", XDG_CACHE_HOME=str(far))
    assert code == 1
    assert f"error: the cache folder's path is too long for a socket: {far}/kvbudget" in output
    assert "fix: set XDG_CACHE_HOME to a shorter path" in output


def test_a_wrong_name_or_value_is_told_with_the_right_ones(clone: Clone) -> None:
    assert "fix: one of: kind kubectl helm" in clone.script("e2e/kind/binaries.sh", "kubeclt")[1]
    assert "error: usage: cluster.sh up | down | status" in clone.script("e2e/kind/cluster.sh", "start")[1]
    assert "fix: operator or worker" in clone.script("images/build.sh", "router")[1]
    assert "fix: cpu or cuda" in clone.script("images/build.sh", KVBUDGET_WORKER_DEVICE="rocm")[1]
