"""`make clean-cache` removes our cache folder, ends our daemon, and touches nothing else."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.clone import Clone, called, ended, may_mount
from support.process import wait_for

TAG = "CACHEDIR.TAG"
SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def fill(clone: Clone) -> None:
    """As a run leaves it, with a read-only module cache and something else beside it."""
    assert clone.run("true")[0] == 0
    module = clone.cache / "go" / "mod" / "x"
    module.mkdir(parents=True)
    (module / "go.mod").touch()
    module.chmod(0o555)
    (clone.cache.parent / "others").mkdir(exist_ok=True)


def clean(clone: Clone, **more: str) -> tuple[int, str]:
    return clone.script("scripts/clean_cache.sh", **more)


def test_it_removes_the_folder_and_nothing_beside_it_and_can_run_again(clone: Clone) -> None:
    fill(clone)
    assert (clone.cache / TAG).read_text().startswith(SIGNATURE)
    for _ in range(2):
        code, output = clean(clone)
        assert code == 0, output
        assert output.endswith(f"removed {clone.cache}\n")
        assert [path.name for path in clone.cache.parent.iterdir()] == ["others"]


def test_without_the_variable_it_is_the_folder_in_the_home(clone: Clone) -> None:
    (clone.folder / ".cache" / "others").mkdir(parents=True)
    code, output = clean(clone, XDG_CACHE_HOME="")
    assert code == 0, output
    assert output.endswith(f"removed {clone.folder}/.cache/kvbudget\n")
    assert [path.name for path in (clone.folder / ".cache").iterdir()] == ["others"]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("/", "XDG_CACHE_HOME is the root folder"),
        ("//", "XDG_CACHE_HOME is the root folder"),
        ("cache", "no absolute path"),
        ("./cache", "no absolute path"),
        ("~/.cache", "no absolute path"),
        ("/tmp/..", "a path with .. in it"),
        ("/tmp/../etc", "a path with .. in it"),
    ],
)
@pytest.mark.parametrize("script", ["scripts/clean_cache.sh", "scripts/uv.sh"])
def test_a_dangerous_value_is_refused_by_every_script(clone: Clone, script: str, value: str, error: str) -> None:
    code, output = clone.script(script, XDG_CACHE_HOME=value)
    assert code == 1
    assert error in output
    assert "fix: unset it, or " in output
    assert not Path("/kvbudget").exists()
    assert not Path("/etc/kvbudget").exists()


@pytest.mark.parametrize("entry", ["notes.txt", ".git"])
def test_a_folder_that_is_somebodys_is_neither_used_nor_removed(clone: Clone, entry: str) -> None:
    """A clone of this repository is called kvbudget too: XDG_CACHE_HOME=~/src would mean it."""
    clone.cache.mkdir(parents=True)
    (clone.cache / entry).touch()
    for script in ("scripts/clean_cache.sh", "scripts/uv.sh"):
        code, output = clone.script(script)
        assert code == 1
        assert f"error: {clone.cache} is not our cache folder: {entry} is in it" in output
        assert "fix: set XDG_CACHE_HOME to another folder" in output
    assert [path.name for path in clone.cache.iterdir()] == [entry]


def test_a_link_to_elsewhere_is_refused_and_what_it_means_stays(clone: Clone) -> None:
    fill(clone)
    elsewhere = clone.folder / "elsewhere"
    clone.cache.rename(elsewhere)
    clone.cache.symlink_to(elsewhere)
    code, output = clean(clone)
    assert code == 1
    assert f"error: {clone.cache} is a symbolic link to {elsewhere}" in output
    assert "fix: remove that folder and the link yourself" in output
    assert (elsewhere / "go" / "mod" / "x" / "go.mod").exists()


def test_a_link_in_it_is_removed_and_what_it_means_stays(clone: Clone) -> None:
    fill(clone)
    elsewhere = clone.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (clone.cache / "weights").symlink_to(elsewhere)
    assert clean(clone)[0] == 0
    assert (elsewhere / "precious").exists()


def test_a_clone_in_the_cache_is_not_removed_with_it(clone: Clone) -> None:
    fill(clone)
    inner = clone.cache / "src" / "clone"
    shutil.copytree(clone.root, inner)
    clone.root = inner
    code, output = clean(clone)
    assert code == 1
    assert f"error: this clone lies in the cache folder {clone.cache}" in output
    assert inner.exists()


def test_while_another_run_is_at_work_nothing_is_removed(clone: Clone) -> None:
    fill(clone)
    lock = clone.cache / "locks" / "images"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, output = clean(clone)
    assert code == 1
    assert f"error: another run is at work (it holds {lock})" in output
    assert (clone.cache / "go" / "mod" / "x").exists()
    assert clean(clone)[0] == 0


def test_our_daemon_is_ended_and_somebody_elses_is_not(clone: Clone) -> None:
    fill(clone)
    pidfile = clone.cache / "docker.pid"
    ours = called(clone.folder / "bin", "dockerd", "--pidfile", str(pidfile))
    theirs = called(clone.folder / "bin", "dockerd", "--pidfile", "/var/run/docker.pid")
    pidfile.write_text(str(ours.pid))
    with clone._begin(["bash", str(clone.root / "scripts/clean_cache.sh")], {}) as script:
        wait_for(lambda: ours.poll() is not None, "the end of our daemon")
        output, _ = script.communicate(timeout=60)
    assert script.returncode == 0, output
    assert ended(ours)
    assert not ended(theirs)


@pytest.mark.skipif(not may_mount(), reason="needs a root that may mount")
def test_what_is_mounted_in_it_is_unmounted_and_not_emptied(clone: Clone) -> None:
    fill(clone)
    outside = clone.folder / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    at = clone.cache / "docker" / "merged folder"
    at.mkdir(parents=True)
    subprocess.run(["mount", "--bind", outside, at], check=True)
    code, output = clean(clone)
    assert code == 0, output
    assert not os.path.ismount(at)
    assert not clone.cache.exists()
    assert (outside / "precious").exists()
