"""The list of faults fits the code, so that `make mutants` tests what it says."""

from collections import Counter
from pathlib import Path

import pytest

import mutants

LISTED = mutants.listed()


@pytest.mark.parametrize("mutant", LISTED, ids=lambda mutant: mutant.name)
def test_a_fault_changes_one_place_and_names_tests_that_exist(mutant: mutants.Mutant) -> None:
    assert (mutants.ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        where = mutants.ROOT / path
        assert where.exists() if not name else f"def {name}(" in where.read_text(encoding="utf-8")


def test_there_are_enough_faults_and_none_twice() -> None:
    assert len({mutant.name for mutant in LISTED}) == len({(m.file, m.old, m.new) for m in LISTED}) == len(LISTED) >= 40
    assert sum(mutant.sample for mutant in LISTED) == 12


def test_every_kernel_has_a_dozen_faults_and_each_has_its_turn_in_the_sample() -> None:
    kernels = [mutant for mutant in LISTED if mutant.file.startswith("kernels/kvbudget_kernels/device/")]
    counts = Counter(Path(mutant.file).stem for mutant in kernels)
    assert set(counts) == {path.stem for path in (mutants.ROOT / "kernels/kvbudget_kernels/device").glob("[a-z]*.py")}
    assert min(counts.values()) >= 12
    areas = {_area(mutant) for mutant in LISTED if mutant.file.startswith("kernels/")}
    taken = [mutants.sample(LISTED, day) for day in range(60)]
    assert all({_area(m) for m in each if m.file.startswith("kernels/")} == areas for each in taken)
    assert {mutant.name for each in taken for mutant in each} >= {mutant.name for mutant in kernels}
    assert max(map(len, taken)) <= 30


def _area(mutant: mutants.Mutant) -> str:
    return mutant.name.partition(":")[0]
