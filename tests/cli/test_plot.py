"""``--plot``: a picture of the right kind, and a clear word where none can be drawn."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import Run

ARGUMENTS = ("plan", "Qwen/Qwen3-8B", "--gpu", "l4", "--max-model-len", "32768")
SIGNATURES = {".png": b"\x89PNG\r\n", ".svg": b"<?xml"}


@pytest.mark.parametrize(("suffix", "begins"), SIGNATURES.items(), ids=SIGNATURES)
def test_a_plan_is_drawn(run: Run, tmp_path: Path, suffix: str, begins: bytes) -> None:
    path = tmp_path / f"plan{suffix}"
    assert run(*ARGUMENTS, "--plot", str(path)).exit_code == 1
    assert path.read_bytes().startswith(begins)
    assert path.stat().st_size > 10_000


def test_a_table_is_drawn(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cells.png"
    assert run("plan", "Qwen/Qwen3-8B", "--what-if", "--gpu", "l4,h100", "--plot", str(path)).exit_code == 0
    assert path.is_file()


@pytest.mark.parametrize(
    ("path", "said"), [("plan.txt", "does not end in one of .png"), ("missing/plan.png", "cannot be written")]
)
def test_where_it_cannot_be_drawn_it_says_so(run: Run, tmp_path: Path, path: str, said: str) -> None:
    result = run(*ARGUMENTS, "--plot", str(tmp_path / path))
    assert result.exit_code == 2
    assert said in result.stderr


def test_without_matplotlib_the_fix_is_named() -> None:
    code = f"import sys; sys.modules['matplotlib'] = None; sys.argv = ['kvbudget', *{ARGUMENTS!r}, '--plot', 'x.png']"
    code += "; import kvbudget.cli; kvbudget.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --plot: needs matplotlib; install it with: pip install 'kvbudget[plot]'\n"
