"""What the compiler makes of the kernels for GPUs that are not here, and that a worker with them compiles nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kvbudget_kernels import aot, gates
from kvbudget_kernels.shipped import FOLDER, MANAGER

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = {"3.9.0": ("sm_90",)}
"""For which targets of which Triton the table has rows."""
SOURCES, ROWS = aot.stored()


def run(*arguments: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    """A program of this Python that compiles: a process of its own, because this one interprets."""
    assert "TRITON_INTERPRET" not in os.environ
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "tests")])
    given = {**os.environ, "PYTHONPATH": path, **(env or {})}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=given, cwd=ROOT
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def test_the_table_is_of_these_sources() -> None:
    assert aot.sources_hash() == SOURCES, "kernels or tiles changed: make aot, and say in the commit what changed why"


def test_every_kernel_of_the_table_was_compiled_for_every_target() -> None:
    pairs = {(triton, target) for triton, targets in COMPILERS.items() for target in targets}
    by_name: dict[str, set[tuple[str, str]]] = {}
    for row in ROWS:
        # Limits and warps are chosen by target, precision and shape are not.
        by_name.setdefault(row.name.replace(f" t{row.tile}", ""), set()).add((row.triton, row.target))
    assert {name: pairs - found for name, found in by_name.items() if pairs - found} == {}
    kernels = {row.kernel for row in ROWS}
    assert kernels == {
        "kv_write_kernel", "plan_kernel", "paged_decode_kernel", "merge_splits_kernel", "merge_states_kernel",
        "paged_extend_kernel", "prefix_kernel", "mla_decode_kernel", "move_pages_kernel", "dequant_pages_kernel",
    }  # fmt: skip


def test_no_gate_is_broken() -> None:
    assert {f"{row.triton} {row.target} {row.name}": found for row in ROWS if (found := list(row.problems()))} == {}


def test_every_exception_is_needed_and_says_why() -> None:
    used = Counter(gates.registers_allowed(row)[1] for row in ROWS if row.registers > gates.MOST_REGISTERS)
    assert set(used) >= {why for *_, why in gates.EXCEPTIONS}
    assert all(len(why) > 15 for *_, why in gates.EXCEPTIONS)


GOOD = gates.Row(
    "3.9.0", "sm_90", "paged_decode_kernel", "INT8", "bf16", 128, 64, 16, 64, "", 4, 3, 128, registers=128, stack=0,
    shared_bytes=39424, loop=800, copies_wide=8, copies_other=1, matrix=32,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"registers": 255}, "255 registers"),
        ({"stack": 8}, "8 bytes of stack"),
        ({"shared_bytes": 120_000}, "2 programs need 240000 bytes"),
        ({"shared_bytes": 300_000}, "300000 bytes of shared memory"),
        ({"shared_bytes": 20_000}, "less than two buffers"),
        ({"copies_wide": 0}, "no asynchronous 16-byte copy"),
        ({"precision": "BF16"}, "1 narrow copies"),
        ({"matrix": 0}, "no matrix instruction"),
        ({"precision": "FP8E4M3", "copies_other": 0, "f2f": 128}, "128 slow float conversions"),
        ({"i2f": 130}, "130 integer conversions"),
    ],
)
def test_a_gate_tells_what_is_wrong(change: dict[str, int | str], said: str) -> None:
    assert list(GOOD.problems()) == []
    assert said in "; ".join(replace(GOOD, **change).problems())  # type: ignore[arg-type]


def test_a_loop_may_grow_by_a_tenth_and_nothing_else_may_change() -> None:
    assert GOOD.agrees(replace(GOOD, loop=870))
    assert not GOOD.agrees(replace(GOOD, loop=900))
    assert not GOOD.agrees(replace(GOOD, registers=127))


@pytest.mark.slow
def test_compiling_anew_gives_the_table_s_rows() -> None:
    """Some rows; ``make aot`` compares all."""
    words = ("INT8-128-64 decode 16", "FP8E4M3-128-64 write sm_90")
    out = run("-m", "kvbudget_kernels.aot", "--check", "--targets", "sm_90", *words)
    assert len(out.splitlines()) == 3
    assert all(line.startswith("ok  Row") for line in out.splitlines()), out


@pytest.mark.slow
def test_kernels_do_not_depend_on_heads_sequences_tokens_or_pages() -> None:
    """Else the first request of some model, or of some batch, would compile."""
    found = json.loads(run("-m", "support.kernelkeys", "sm_90"))
    assert found["known"] > 200
    assert all(new == [] for new in found["new"].values()), found["new"]


@pytest.mark.slow
def test_a_worker_with_shipped_kernels_compiles_nothing(tmp_path: Path) -> None:
    """Shipped, moved, and found again by a process that keeps nothing; one kernel less is noticed. The launcher loads
    where there is no C compiler, and libcuda is a stand-in here. On a GPU: not run."""
    built, moved = tmp_path / "built", tmp_path / "moved"
    part = ("--targets", "sm_90", "BF16-64-64 write sm", "BF16-64-64 plan 16 sm", "BF16-64-64 decode 16")
    out = run(
        "-m", "kvbudget_kernels.aot", "--ship", str(built), *part, env={"TRITON_CACHE_DIR": str(tmp_path / "none")}
    )
    assert "sm_90: 4 kernels" in out
    assert not any(path.suffix in (".ptx", ".ttir", ".llir", ".source") for path in built.rglob("*"))
    shutil.move(built, moved)
    assert run("-m", "kvbudget_kernels.aot", "--verify", str(moved), *part) == (
        "4 kernels found, 0 compiled, 0 written, 1 launcher\n"
    )
    library = tmp_path / "library"
    library.mkdir()
    stand_in = (
        "import pathlib, sys; from kvbudget_kernels import launcher as l; l.link_stand_in(pathlib.Path(sys.argv[1]))"
    )
    run("-c", stand_in, str(library))
    start = "from triton.backends.nvidia.driver import CudaUtils; print(CudaUtils().launch)"
    found = {"PATH": "", "CC": "/none", "LD_LIBRARY_PATH": str(library), "TRITON_LIBCUDA_PATH": str(library)}
    own = tmp_path / "own"
    found |= {FOLDER: str(moved), "TRITON_CACHE_MANAGER": MANAGER, "TRITON_CACHE_DIR": str(own)}
    out = run("-c", start, env=found)
    assert "built-in function launch" in out
    assert not own.exists()
    shutil.rmtree(next(path for path in moved.iterdir() if (path / "paged_decode_kernel.json").exists()))
    out = run("-m", "kvbudget_kernels.aot", "--verify", str(moved), *part, code=1)
    assert out.startswith("3 kernels found, 1 compiled")
