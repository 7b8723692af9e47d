"""What a killed run leaves (daemon, lock, folder, binary, environment) is used again or cleaned, never a failure."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.clone import REAL_CACHE, ROOT, Clone, called, ended, may_mount
from support.process import wait_for

ENV = "e2e/kind/env.sh"


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    made = Clone(tmp_path)
    (made.cache / "locks").mkdir(parents=True)  # it was used before
    return made


# The daemon.

Owner = Callable[[Clone], "subprocess.Popen[bytes]"]


def a_program(clone: Clone) -> "subprocess.Popen[bytes]":
    return called(clone.folder / "bin", "postgres", "--pidfile", str(clone.cache / "docker.pid"))


def another_dockerd(clone: Clone) -> "subprocess.Popen[bytes]":
    return called(clone.folder / "bin", "dockerd", "--pidfile", "/var/run/docker.pid")


def our_dockerd(clone: Clone) -> "subprocess.Popen[bytes]":
    return called(clone.folder / "bin", "dockerd", "--pidfile", str(clone.cache / "docker.pid"))


def leave_socket(path: Path) -> None:
    """As a daemon that was killed: nobody listens any more."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("owner", [a_program, another_dockerd])
def test_a_pid_file_whose_number_is_somebody_elses_by_now_ends_nobody(clone: Clone, owner: Owner) -> None:
    process = owner(clone)
    (clone.cache / "docker.pid").write_text(str(process.pid))
    leave_socket(clone.cache / "docker.sock")
    code, output = clone.run("daemon_pid || echo stale; end_daemon 5", ENV)
    assert not ended(process)
    assert (code, output) == (0, "stale\n")
    assert not (clone.cache / "docker.pid").exists()
    assert not (clone.cache / "docker.sock").exists()


@pytest.mark.parametrize("content", ["", "no number", "-1", "4194304", "12 34"])
def test_a_pid_file_of_nobody_is_removed(clone: Clone, content: str) -> None:
    (clone.cache / "docker.pid").write_text(content)
    code, output = clone.run("daemon_pid || echo stale; end_daemon 5", ENV)
    assert (code, output) == (0, "stale\n")
    assert not (clone.cache / "docker.pid").exists()


@pytest.mark.parametrize("hangs", [False, True])
def test_our_own_daemon_is_ended_with_force_where_it_hangs(clone: Clone, hangs: bool) -> None:
    process = our_dockerd(clone)
    (clone.cache / "docker.pid").write_text(str(process.pid))
    if hangs:
        process.send_signal(signal.SIGSTOP)
    with clone.start(f"[ $(daemon_pid) = {process.pid} ]; end_daemon 0.5", ENV) as script:
        wait_for(lambda: process.poll() is not None, "its end")  # and it is reaped, or it stays a zombie
        output, _ = script.communicate(timeout=60)
    assert ended(process)
    assert (script.returncode, output) == (0, "")
    assert not (clone.cache / "docker.pid").exists()


def test_a_socket_that_nobody_listens_at_is_no_daemon(clone: Clone) -> None:
    own = clone.cache / "docker.sock"
    leave_socket(own)
    code, output = clone.run('use_docker || echo "none; ${DOCKER_HOST:-unset}"', ENV, DOCKER_HOST=f"unix://{own}")
    assert code == 0
    assert str(own) not in output


def test_containerd_that_outlived_our_daemon_is_found_and_no_other(clone: Clone) -> None:
    folder = clone.folder / "bin"
    ours = called(folder, "containerd", "--config", str(clone.cache / "dockerexec" / "containerd" / "containerd.toml"))
    theirs = called(folder, "containerd-shim", "-address", "/run/containerd/containerd.sock")
    editor = called(folder, "editor", str(clone.cache / "dockerexec" / "containerd" / "containerd.toml"))
    code, output = clone.run("daemon_rest", ENV)
    assert [ended(process) for process in (ours, theirs, editor)] == [False] * 3
    assert (code, output) == (0, f"{ours.pid}\n")


# Locks, and what a killed run had begun.


def test_a_lock_that_is_held_is_told_and_waited_for(clone: Clone) -> None:
    lock = clone.cache / "locks" / "thing"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with clone.start('exclusive thing "$0" "$@"\necho inside') as waiting:
            assert waiting.stdout
            assert f"another run holds {lock}: waiting for it to end" in waiting.stdout.readline()
            assert waiting.poll() is None
            fcntl.flock(held, fcntl.LOCK_UN)
            assert waiting.communicate(timeout=60)[0] == "inside\n"
    assert waiting.returncode == 0


def test_the_long_command_of_a_killed_run_ends_with_it(clone: Clone, tmp_path: Path) -> None:
    """It would write on into files that the next run makes anew."""
    pid = tmp_path / "pid"
    with clone.start(f"logged 'building x' x.log bash -c 'echo $$ >{pid}.part; mv {pid}.part {pid}; sleep 60'") as run:
        wait_for(pid.exists, "the command's start")
        os.kill(run.pid, signal.SIGKILL)
        run.wait(timeout=60)
    wait_for(lambda: not running(int(pid.read_text())), "the command's end", 20)


def running(process: int) -> bool:
    """Nobody reaps in some containers: a zombie is gone too."""
    try:
        return ") Z " not in Path("/proc", str(process), "stat").read_text()
    except FileNotFoundError:
        return False


MAKE = """
if fresh_folder "$CACHE/tree" "$CACHE/tree.key" v2; then echo kept; exit; fi
begin_folder "$CACHE/tree" "$CACHE/tree.key"
mkdir "$CACHE/tree.part"
echo new >"$CACHE/tree.part/file"
finish_folder "$CACHE/tree" "$CACHE/tree.key" v2
echo made
"""


@pytest.mark.parametrize("left", ["nothing", "part", "tree", "tree of v1", "key"])
def test_a_half_made_folder_is_made_again_and_a_whole_one_kept(clone: Clone, left: str) -> None:
    if left in ("part", "tree", "tree of v1"):
        folder = clone.cache / ("tree.part" if left == "part" else "tree")
        folder.mkdir(parents=True)
        (folder / "old").touch()
    if left in ("key", "tree of v1"):
        (clone.cache / "tree.key").write_text("v2\n" if left == "key" else "v1\n")
    assert clone.run(MAKE) == (0, "made\n")
    assert [path.name for path in (clone.cache / "tree").iterdir()] == ["file"]
    assert not (clone.cache / "tree.part").exists()
    assert clone.run(MAKE) == (0, "kept\n")


def test_a_folder_that_is_being_replaced_when_the_run_is_killed_is_none(clone: Clone) -> None:
    """Its key goes before its first file does: else a later run for the same key would take the half for the whole."""
    assert clone.run(MAKE)[1] == "made\n"
    killed = 'rm() { command rm "$@"; kill -KILL $$; }\n'  # at the first file that is removed
    code, _ = clone.run(killed + 'begin_folder "$CACHE/tree" "$CACHE/tree.key"')
    assert code == -signal.SIGKILL
    assert (clone.cache / "tree" / "file").exists()
    assert clone.run(MAKE) == (0, "made\n")


@pytest.mark.skipif(not may_mount(), reason="needs a root that may mount")
def test_what_a_killed_debootstrap_has_mounted_is_unmounted_and_not_emptied(clone: Clone, tmp_path: Path) -> None:
    outside = tmp_path / "out side"
    outside.mkdir()
    (outside / "precious").touch()
    with mounted(clone.cache / "tree.part" / "sys dir", "--bind", str(outside)):
        with mounted(clone.cache / "tree.part" / "sys dir" / "deeper", "-t", "tmpfs", "tmpfs"):
            assert clone.run(MAKE) == (0, "made\n")
        assert (outside / "precious").exists()


@contextmanager
def mounted(at: Path, *arguments: str) -> Iterator[None]:
    at.mkdir(parents=True)
    subprocess.run(["mount", *arguments, str(at)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], capture_output=True, check=False)


# What is built and installed.


@pytest.mark.slow
@pytest.mark.skipif(not (REAL_CACHE / "go" / "build").is_dir(), reason="compiling Go's runtime anew takes a minute")
def test_a_half_built_binary_is_built_again_and_a_whole_one_kept(clone: Clone) -> None:
    go = {"GOCACHE": str(REAL_CACHE / "go" / "build"), "GOFLAGS": "-mod=readonly"}
    folder = clone.cache / "bin"
    folder.mkdir()
    (folder / ".pause.part").write_bytes(b"\x7fELF half")
    (folder / "pause").write_bytes(b"\x7fELF half")
    (folder / "pause").chmod(0o755)
    code, output = clone.script("e2e/kind/binaries.sh", "pause", **go)
    assert code == 0, output
    assert sorted(path.name for path in folder.iterdir()) == [".pause.key", "pause"]
    with subprocess.Popen([folder / "pause"]) as process:
        assert process.poll() is None
        process.terminate()
    assert clone.script("e2e/kind/binaries.sh", "pause", **go) == (0, "")
    (folder / ".pause.key").write_text("another version\n")
    assert "go build pause" in clone.script("e2e/kind/binaries.sh", "pause", **go)[1]


@pytest.mark.slow
@pytest.mark.skipif(not (REAL_CACHE / "tools").is_dir(), reason="uv comes from the cache that `make venv` filled")
def test_a_half_made_environment_is_repaired(clone: Clone) -> None:
    """With real uv, and of the locked requirements only what builds this project."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone.root / name)
    for package in (
        "core/kvbudget",
        "operator/kvbudget_operator",
        "worker/kvbudget_worker",
        "kernels/kvbudget_kernels",
    ):
        (clone.root / package).mkdir(parents=True)
        (clone.root / package / "__init__.py").touch()
    (clone.root / "requirements").mkdir()
    shutil.copy(ROOT / "requirements" / "uv.txt", clone.root / "requirements" / "uv.txt")
    (clone.root / "requirements" / "dev.txt").write_text(
        locked("hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers")
    )
    for part in ("tools", "uv"):
        (clone.cache / part).symlink_to(REAL_CACHE / part)
    venv = clone.root / ".venv"
    stamp = venv / "kvbudget-requirements"

    def repaired() -> str:
        code, output = clone.script("scripts/venv.sh", UV_OFFLINE="1")
        assert code == 0, output
        subprocess.run([venv / "bin" / "python", "-c", "import hatchling, kvbudget"], check=True)
        assert stamp.exists()
        return output

    assert "new environment .venv" in repaired()
    assert repaired() == ""
    (venv / "bin" / "python").unlink()  # its Python was upgraded away
    assert "new environment .venv" in repaired()
    stamp.unlink()  # killed while it installed
    shutil.rmtree(next(venv.glob("lib/*/site-packages/hatchling")))
    shutil.rmtree(next(venv.glob("lib/*/site-packages/hatchling-*")))
    assert "installing the locked requirements" in repaired()


def locked(*names: str) -> str:
    """Requirements, with their hashes, out of the lock file."""
    text = (ROOT / "requirements" / "dev.txt").read_text()
    blocks = [block for block in text.split("\n") if not block.startswith("#")]
    kept, keep = [], False
    for line in blocks:
        if line and not line.startswith(" "):
            keep = line.split("==")[0] in names
        if keep:
            kept.append(line)
    return "\n".join(kept) + "\n"


def test_uv_that_another_run_installed_meanwhile_is_not_installed_again(clone: Clone) -> None:
    """The other run is about to use it."""
    (clone.root / "requirements").mkdir()
    shutil.copy(ROOT / "requirements" / "uv.txt", clone.root / "requirements" / "uv.txt")
    _, name = clone.run('echo "uv-$(digest requirements/uv.txt)"')
    uv = clone.cache / "tools" / name.strip() / "bin" / "uv"
    with (clone.cache / "locks" / "uv").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with clone._begin(["bash", str(clone.root / "scripts/uv.sh")], {"PIP_NO_INDEX": "1"}) as waiting:
            waits_for(waiting.pid, clone.cache / "locks" / "uv")
            uv.parent.mkdir(parents=True)
            uv.write_text("#!/bin/sh\n")
            uv.chmod(0o755)
            fcntl.flock(held, fcntl.LOCK_UN)
            output, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, output) == (0, f"{uv}\n")


def waits_for(process: int, lock: Path) -> None:
    """Until a child of the process has the lock file open."""

    def opened() -> bool:
        descriptors = Path("/proc", str(process), "fd").glob("*")
        return any(os.path.samefile(fd, lock) for fd in descriptors if os.path.exists(fd))

    wait_for(opened, "the wait for the lock")
    time.sleep(0.2)
