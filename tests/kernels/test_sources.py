"""What can be read off the kernels' source, and that the list of others' mistakes names tests that are there."""

import ast
import re
from pathlib import Path

import triton.language as tl

import kvbudget_kernels

PACKAGE = Path(str(kvbudget_kernels.__file__)).parent
HOST = sorted(PACKAGE.glob("*.py"))
DEVICE = sorted((PACKAGE / "device").glob("*.py"))
ROOT = Path(__file__).resolve().parents[2]


def _calls(path: Path, name: str) -> list[ast.Call]:
    """Calls of ``tl.<name>`` (or of anything's method of that name)."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == name]


def test_work_is_on_one_grid_axis_which_has_no_limit_of_65535() -> None:
    """#22. Every launch goes through ``launch``, which has one axis, and every kernel reads that one."""
    started, launches = {}, 0
    for path in HOST:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Subscript(value=ast.Name(id=name), slice=grid)) if "kernel" in name:
                    started[path.name] = ast.unparse(grid)
                case ast.Call(func=ast.Name(id="launch")):
                    launches += 1
    assert started == {"launch.py": "(programs,)"}
    assert launches >= 9
    axes = [call.args[0] for path in DEVICE for call in _calls(path, "program_id")]
    assert len(axes) >= 9
    assert {ast.unparse(axis) for axis in axes} == {"0"}


def test_only_counters_of_errors_are_atomic() -> None:
    """#28. Nothing that a replay would have to reset: a split's result is merged by the plan's lists."""
    atomics = [
        (path.name, ast.unparse(call.args[0]))
        for path in DEVICE
        for name in dir(tl)
        if name.startswith("atomic_")
        for call in _calls(path, name)
    ]
    assert {file for file, _ in atomics} == {"write.py"}
    assert all(pointer.startswith("counters_ptr") for _, pointer in atomics)


def test_every_mistake_of_others_has_a_test_or_needs_a_gpu() -> None:
    """The table of docs/kernels.md: 37 rows, each with tests that exist."""
    text = (ROOT / "docs/kernels.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 38))
    missing = []
    for number, _, proof in rows:
        named = re.findall(r"`([\w/]+)::(\w+)`", proof)
        assert named or "needs a GPU" in proof, f"#{number} has no test"
        for module, test in named:
            folder = "tests" if "/" in module else "tests/kernels"
            path = ROOT / folder / f"{module}.py"
            if not path.is_file() or f"def {test}(" not in path.read_text(encoding="utf-8"):
                missing.append(f"#{number}: {module}::{test}")
    assert missing == []
