"""Compiles the serving set without a GPU: into a folder that an image ships, or into a table of what the compiler did.

    python -m kvbudget_kernels.aot --ship FOLDER      compiled kernels and Triton's launcher (needs a C compiler)
    python -m kvbudget_kernels.aot --verify FOLDER    fails where a launch of the set would compile or write
    python -m kvbudget_kernels.aot --write | --check  the table aot.csv, for the Triton that is installed
    python -m kvbudget_kernels.aot --fresh            fails where kernels or tiles changed since the table's rows

``--targets sm_90,sm_100`` and WORDs (of a call's name) choose a part. ``--check`` fails on a difference or a broken
gate (``gates.py``). The table has a part of the set. Not run under TRITON_INTERPRET.
"""

import argparse
import ast
import csv
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton

from kvbudget_kernels import gates, shipped, tune
from kvbudget_kernels.arch import TARGETS, compiling_for
from kvbudget_kernels.gates import Row
from kvbudget_kernels.launcher import build_launcher
from kvbudget_kernels.serving import serving_set

TABLE = Path(__file__).with_name("aot.csv")
SHIPPED_TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120")
_SOURCES = ("device/*.py", "launch.py", "serving.py", "tiles.csv")
Compiled = Callable[[Any, Mapping[str, Any], Mapping[str, str], bool], None]
"""Is told of each kernel: source, metadata, files by name, and whether it was there already."""


_EVERY = ("BF16-64-64", "BF16-128-64", "BF16-256-64", "BF16-128-16", "FP8E4M3-128-64", "INT8-128-64", "INT4-128-64")
_BESIDES = {
    "BF16-128-64": ("write with RoPE", "plan 256", "decode 64", "extend", "cascade of 64"),
    "FP8E4M3-128-64": ("write",),
    "INT8-128-64": ("write", "extend"),
    "INT4-128-64": ("write", "extend", "dequantise"),
    "MLA-bfloat16": ("decode of 16 heads", "decode of 128 heads"),
    "pages": ("copy",),
}


def in_table(name: str) -> bool:
    """Whether the table has what this call of the set compiles: every way of decoding, each other kernel once, and
    where quantised pages make one longer."""
    model, what = name.split(" ", 1)
    return (model in _EVERY and what == "decode 16") or what in _BESIDES.get(model, ())


@contextmanager
def told(compiled: Compiled) -> Iterator[None]:
    """Calls ``compiled`` for each kernel that a launch asks Triton for."""

    def listener(
        *, src: Any, metadata: Mapping[str, Any], metadata_group: Mapping[str, str], times: Any, cache_hit: bool
    ) -> None:
        del times
        compiled(src, metadata, metadata_group, cache_hit)

    triton.knobs.compilation.listener = listener
    try:
        yield
    finally:
        triton.knobs.compilation.listener = None


def compile_set(target: str, words: Sequence[str], compiled: Compiled, chosen: Callable[[str], bool]) -> None:
    """Launches the set, each kernel of which Triton compiles or finds."""
    with compiling_for(target), told(compiled):
        for name, call in serving_set():
            if chosen(name) and (not words or any(word in f"{name} {target}" for word in words)):
                call()


def rows_of(target: str, words: Sequence[str]) -> Iterator[Row]:
    """The rows of a target, in the order of the set."""
    found: list[Row] = []

    def add(src: Any, metadata: Mapping[str, Any], files: Mapping[str, str], hit: bool) -> None:
        del hit
        found.append(Row(**gates.identity(src, metadata, target), **gates.measured(files)))
        found[-1] = Row(**{**asdict(found[-1]), "shared_bytes": int(metadata["shared"])})

    compile_set(target, words, add, in_table)
    yield from found


def sources_hash() -> str:
    """Of what the table depends on; comments, docstrings and the reasons of tiles do not count."""
    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(Path(__file__).parent.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".py":
                tree = ast.parse(text)
                for node in ast.walk(tree):
                    if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
                        node.body = [each for each in node.body if not _is_text(each)]
                text = ast.unparse(tree)
            else:
                text = "\n".join(str({**asdict(line), "why": ""}) for line in tune.lines())
            digest.update(f"{path.name}\n{text}\n".encode())
    return digest.hexdigest()[:16]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def stored() -> tuple[str, list[Row]]:
    """Hash of the sources, and the rows, as committed."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        sources = file.readline().removeprefix("# sources ").strip()
        kinds = Row.__annotations__
        typed: list[dict[str, Any]] = [
            {k: v if kinds[k] is str else int(v) for k, v in each.items()} for each in csv.DictReader(file)
        ]
    return sources, [Row(**each) for each in typed]


def write(rows: Iterable[Row]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# sources {sources_hash()}\n")
        table = csv.DictWriter(file, list(Row.__annotations__), lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)


def tabulate(targets: Sequence[str], words: Sequence[str], *, check: bool, keep: bool) -> int:
    """Prints a line per row. ``check``: compares with the table. ``keep``: stores the rows, in place of the targets'
    old ones of this Triton (with ``words``: of the same kernels). Returns how many break a gate or differ."""
    known = {(row.triton, row.target, row.name): row for row in stored()[1]}
    wrong = 0
    for target in targets:
        rows = list(rows_of(target, words))
        for row in rows:
            found = list(row.problems())
            before = known.get((row.triton, row.target, row.name))
            if check and not (before and row.agrees(before)):
                found.append(f"differs from aot.csv: {before}")
            wrong += bool(found)
            sys.stdout.write(f"{'; '.join(found) or 'ok'}  {row}\n")
            sys.stdout.flush()
        if keep:
            old = {key for key in known if not words and key[:2] == (triton.__version__, target)}
            known = {key: row for key, row in known.items() if key not in old}
            known |= {(row.triton, row.target, row.name): row for row in rows}
            write(known.values())
    return wrong


def _ship(job: tuple[str, Sequence[str], str]) -> tuple[str, int]:
    """Compiles a target's set into a folder."""
    target, words, folder = job
    count = 0

    def add(src: Any, metadata: Mapping[str, Any], files: Mapping[str, str], hit: bool) -> None:
        nonlocal count
        del src, metadata, files, hit
        count += 1

    triton.knobs.cache.dir = folder
    triton.knobs.compilation.store_binary_only = True
    compile_set(target, words, add, lambda _: True)
    return target, count


def ship(folder: Path, targets: Sequence[str], words: Sequence[str], jobs: int) -> None:
    """Fills ``folder``; a process per target."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"{build_launcher(folder)}\n")
    with get_context("spawn").Pool(min(jobs, len(targets))) as pool:
        for target, count in pool.imap_unordered(_ship, [(target, words, str(folder)) for target in targets]):
            sys.stdout.write(f"{target}: {count} kernels\n")
            sys.stdout.flush()
    shipped.trim(folder)


def verify(folder: Path, targets: Sequence[str], words: Sequence[str]) -> int:
    """How many launches of the set would compile, or write. A process of its own: Triton reads its settings once."""
    os.environ[shipped.FOLDER] = str(folder)
    triton.knobs.cache.manager_class = shipped.ShippedCache
    missing: list[str] = []
    found = 0

    def add(src: Any, metadata: Mapping[str, Any], files: Mapping[str, str], hit: bool) -> None:
        nonlocal found
        del metadata, files
        found += hit
        if not hit:
            missing.append(src.fn.__name__)

    with tempfile.TemporaryDirectory() as own:
        triton.knobs.cache.dir = own
        for target in targets:
            compile_set(target, words, add, lambda _: True)
        written = os.listdir(own)
    launchers = list(shipped.launcher_folder(folder).glob(f"{shipped.LAUNCHER}.*"))
    sys.stdout.write(
        f"{found} kernels found, {len(missing)} compiled, {len(written)} written, {len(launchers)} launcher\n"
    )
    return len(missing) + len(written) + (not launchers)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvbudget_kernels.aot", description="See the module.")
    parser.add_argument("--ship", type=Path, metavar="FOLDER")
    parser.add_argument("--verify", type=Path, metavar="FOLDER")
    parser.add_argument("--write", action="store_true", help="store the rows in the table")
    parser.add_argument("--check", action="store_true", help="compare with the table")
    parser.add_argument("--fresh", action="store_true", help="is the table of these sources?")
    parser.add_argument("--targets", default="", metavar="A,B", help=f"some of {', '.join(TARGETS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only calls whose name has one of these")
    options = parser.parse_args(arguments)
    targets = tuple(options.targets.split(",")) if options.targets else ()
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if options.ship:
        ship(options.ship, targets or SHIPPED_TARGETS, options.words, options.jobs)
        return 0
    if options.verify:
        return int(verify(options.verify, targets or SHIPPED_TARGETS, options.words) > 0)
    if options.fresh:
        fresh = stored()[0] == sources_hash()
        sys.stdout.write(
            "fresh\n" if fresh else "stale: kernels or tiles changed since aot.csv was written; make aot\n"
        )
        return int(not fresh)
    return int(tabulate(targets or list(TARGETS), options.words, check=options.check, keep=options.write) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
