"""What every script stands on (scripts/lib.sh): errors that name the fix, locks that outlive no run, logs."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from support.clone import NOBODY, Clone


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_a_long_command_that_fails_shows_the_end_of_its_log_and_the_next_command(clone: Clone) -> None:
    code, output = clone.run("logged 'building x' x.log bash -c 'echo the compiler is upset; exit 3'")
    assert code == 1
    assert "the compiler is upset" in output
    assert "error: building x failed with exit code 3" in output
    assert f"fix: read {clone.cache}/log/x.log, then run the same command again" in output


def test_a_second_run_waits_for_the_first(clone: Clone, tmp_path: Path) -> None:
    order = tmp_path / "order"
    body = f'exclusive thing "$0" "$@"\necho "in $1" >>{order}\nsleep 0.5\necho "out $1" >>{order}'
    script = clone.root / "scripts" / "locked.sh"
    script.write_text(f'. "$(dirname "$0")/lib.sh"\n{body}\n')
    runs = [subprocess.Popen(["bash", str(script), name], env=clone.env) for name in "ab"]
    assert [run.wait(timeout=60) for run in runs] == [0, 0]
    lines = order.read_text().split("\n")
    assert lines[0][3:] == lines[1][4:], f"one run was inside another: {lines}"


def test_the_lock_of_a_killed_run_is_free_even_while_its_children_live(clone: Clone, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    first = clone.start(f'exclusive thing "$0" "$@"\nsetsid sleep 60 </dev/null >/dev/null 2>&1 &\ntouch {begun}\nwait')
    while not begun.exists():
        assert first.poll() is None, first.communicate()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=60)
    code, output = clone.run('exclusive thing "$0" "$@"\necho inside')
    assert (code, output) == (0, "inside\n")


def test_the_failure_of_one_side_ends_the_other(clone: Clone, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    slow = f"slow() {{ echo $BASHPID >{pid}.part; mv {pid}.part {pid}; sleep 60; }}"
    code, _ = clone.run(f"{slow}\nbeside slow\nuntil [ -e {pid} ]; do :; done\ndie 'no luck' 'try again'")
    assert code == 1
    gone = time.monotonic() + 20
    while Path("/proc", pid.read_text().strip()).exists():
        assert time.monotonic() < gone, "it still runs"


def test_the_failure_of_one_of_two_sides_is_told_at_once(clone: Clone) -> None:
    began = time.monotonic()
    both = "quick() { false; }\nslow() { sleep 60; }\nbeside quick\nbeside slow\n"
    code, output = clone.run(both + "for _ in 1 2; do wait -n || die 'not ready' 'read the lines above'; done")
    assert (code, output) == (1, "error: not ready\n  fix: read the lines above\n")
    assert time.monotonic() - began < 50


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_no_docker_and_no_root_is_told_with_the_fix(clone: Clone, tmp_path: Path) -> None:
    for part in (tmp_path, *tmp_path.parents):
        if part.stat().st_uid == os.getuid() and part.is_relative_to(tempfile.gettempdir()):
            part.chmod(part.stat().st_mode | 0o055)
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", NOBODY, NOBODY)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "id", "mkdir", "getent", "cut", "flock", "env", "sed", "timeout"):
        found = shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    ran = subprocess.run(
        ["bash", str(clone.root / "e2e/kind/docker.sh")],
        env={**clone.env, "PATH": str(tools)},
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1, ran
    assert "error: starting dockerd (no Docker daemon answers) needs root (you are uid 65534)" in ran.stderr
    assert "fix: run it again with sudo -E, or as root" in ran.stderr
