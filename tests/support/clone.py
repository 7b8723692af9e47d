"""The repository's scripts in a folder of their own, with a cache of their own."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REAL_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbudget"
"""What ``make venv`` and ``make cluster-binaries`` have filled: a test that would download may take it from here."""
NOBODY = 65534
TIMEOUT_S = 60


def may_mount() -> bool:
    """Root of a container may be no more than its name."""
    if os.getuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, check=False
        )
        if tried.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return tried.returncode == 0


class Clone:
    """scripts/, images/ and e2e/kind/ below ``root``; the cache at ``cache``. No Docker daemon is reached from here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "clone"
        self.cache = folder / "cache" / "kvbudget"
        for part in ("scripts", "images", "e2e/kind"):
            shutil.copytree(ROOT / part, self.root / part, ignore=shutil.ignore_patterns("__pycache__", "mods"))
        (self.root / "e2e" / "kind" / "mods").symlink_to(ROOT / "e2e" / "kind" / "mods")
        self.env = {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "DOCKER_HOST": f"unix://{folder}/nobody-listens",
        }

    def start(self, text: str, library: str = "scripts/lib.sh", **more: str) -> "subprocess.Popen[str]":
        """Begins a script of this text that has sourced a library, in a session of its own."""
        script = self.root / Path(library).parent / "under_test.sh"
        script.write_text(f'. "$(dirname "$0")/{Path(library).name}"\n{text}\n')
        return self._begin(["bash", str(script)], more)

    def run(self, text: str, library: str = "scripts/lib.sh", **more: str) -> tuple[int, str]:
        """Exit code and output, both streams."""
        return _end(self.start(text, library, **more))

    def script(self, path: str, *arguments: str, **more: str) -> tuple[int, str]:
        """Runs one of the repository's scripts."""
        return _end(self._begin(["bash", str(self.root / path), *arguments], more))

    def _begin(self, command: list[str], more: dict[str, str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command,
            env={**self.env, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def _end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    with process:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, output


def called(folder: Path, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """A process of this name that waits until its standard input ends, with these arguments on its command line."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    if not program.exists():
        shutil.copy(shutil.which("bash") or "/bin/bash", program)
    process = subprocess.Popen(
        [program, "-c", "echo ready; read -r", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout
    process.stdout.readline()
    return process


def ended(process: "subprocess.Popen[bytes]") -> bool:
    """Is it gone? Ends it where it is not."""
    gone = process.poll() is not None
    process.kill()
    process.communicate()
    return gone
