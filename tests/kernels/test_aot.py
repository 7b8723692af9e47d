"""What the compiler makes of the kernels for GPUs that are not here."""

import os
import subprocess
import sys

import pytest

from kvbudget_kernels import aot


def test_the_table_has_every_kernel_and_target_and_no_gate_is_broken() -> None:
    rows = aot.stored()
    assert {(row.precision, row.head_dim, row.target) for row in rows} == {
        (precision, head_dim, target) for precision, head_dim in aot.SERVED for target in aot.TARGETS
    }
    assert {row: list(row.problems()) for row in rows if list(row.problems())} == {}


@pytest.mark.slow
def test_compiling_anew_gives_the_table_s_row() -> None:
    """One row; ``python -m kvbudget_kernels.aot --check`` compares all. A process of its own: no interpreter."""
    assert "TRITON_INTERPRET" not in os.environ
    command = [sys.executable, "-m", "kvbudget_kernels.aot", "--check", "INT8-128-sm_90"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.startswith("ok  Row")
