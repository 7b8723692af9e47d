"""Applies the faults of tests/mutants/*.toml, one at a time in a copy, and runs the tests that must find each.

Exits with 1 where a fault survives. ``--sample`` takes the faults that are marked so, and of each kernel one: another
every day, so that all of them have their turn.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("core", "operator", "worker", "kernels", "tests", "docs", "pyproject.toml")
COPIES = 2
"""How many faults are tried at once, each in a copy of its own."""
TIMEOUT_SECONDS = 240
_TESTS_PASSED, _TESTS_FAILED = 0, 1
_CRASHED = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
"""A kernel that writes where it may not can end the process of its tests: no less a failure."""


@dataclass(frozen=True)
class Mutant:
    """``old``, which occurs once in ``file``, becomes ``new``; one of ``tests`` (paths, or path::test) must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    sample: bool = False


def listed() -> list[Mutant]:
    """The faults of tests/mutants/*.toml."""
    files = sorted((ROOT / "tests" / "mutants").glob("*.toml"))
    tables = [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]
    return [Mutant(**{**each, "tests": tuple(each["tests"])}) for table in tables for each in table["mutant"]]


def sample(mutants: Sequence[Mutant], day: int) -> list[Mutant]:
    """The marked ones, and of each kernel (a name up to its colon) the one whose turn it is."""
    kernels: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        if mutant.file.startswith("kernels/"):
            kernels.setdefault(mutant.name.partition(":")[0], []).append(mutant)
    return [each for each in mutants if each.sample] + [each[day % len(each)] for each in kernels.values()]


def run_tests(copy: Path, tests: Iterable[str], *options: str) -> tuple[int | None, str]:
    """Exit code of pytest in a copy, None where it had to be stopped, and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *options, *tests]
    sources = os.pathsep.join(str(copy / folder) for folder in COPIED[:4])
    env = os.environ | {"PYTHONPATH": sources, "KVBUDGET_LAWS": "mutants", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def attempt(mutant: Mutant, copy: Path, number: int) -> str:
    """``caught``, or what is wrong. ``number`` differs from that of every other fault."""
    path = copy / mutant.file
    whole, stamp = path.read_text(encoding="utf-8"), path.stat().st_mtime_ns
    if whole.count(mutant.old) != 1:
        return f"STALE: its `old` occurs {whole.count(mutant.old)} times in {mutant.file}"
    try:
        path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
        os.utime(path, (number, number))  # bytecode is told apart by time and size: no fault may run that of another
        code, output = run_tests(copy, mutant.tests)
    finally:
        path.write_text(whole, encoding="utf-8")
        os.utime(path, ns=(stamp, stamp))
    if code in (_TESTS_FAILED, None, *_CRASHED):
        return "caught"
    return "SURVIVED" if code == _TESTS_PASSED else f"BROKEN: pytest ended with {code}\n{output[-1500:]}"


def prepare(folder: Path, tests: Sequence[str]) -> list[Path]:
    """Copies of the sources, in the first of which all ``tests`` have passed."""
    first = folder / "0"
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, first / name)
        else:
            shutil.copy2(source, first / name)
    code, output = run_tests(first, tests)
    if code != _TESTS_PASSED:
        sys.exit(f"{output[-4000:]}\nerror: the tests fail without any fault\n  fix: make test-fast")
    return [first, *(Path(shutil.copytree(first, folder / str(number))) for number in range(1, COPIES))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", action="store_true", help="the marked faults, and one of each kernel")
    parser.add_argument("--day", type=int, default=datetime.now(UTC).toordinal(), help="whose turn it is in the sample")
    parser.add_argument("words", nargs="*", help="only the faults whose name has one of these words")
    options = parser.parse_args()
    mutants = [each for each in listed() if not options.words or any(word in each.name for word in options.words)]
    if options.sample:
        print(f"sample of day {options.day}")
        mutants = sample(mutants, options.day)
    with tempfile.TemporaryDirectory(prefix="kvbudget-mutants-") as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for copy in prepare(Path(folder), sorted({test for mutant in mutants for test in mutant.tests})):
            free.put(copy)

        def one(number: int) -> str:
            began, copy = time.monotonic(), free.get()
            verdict = attempt(mutants[number], copy, number + 1)
            free.put(copy)
            print(f"{verdict:9} {time.monotonic() - began:5.1f} s  {mutants[number].name}", flush=True)
            return verdict

        with ThreadPoolExecutor(COPIES) as pool:
            verdicts = list(pool.map(one, range(len(mutants))))
    caught = verdicts.count("caught")
    print(f"{caught} of {len(mutants)} faults were found by the tests")
    sys.exit(caught != len(mutants))


if __name__ == "__main__":
    main()
