"""The list of faults fits the code, so that `make mutants` tests what it says."""

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
        assert Path(mutants.ROOT / test).exists()


def test_there_are_enough_faults_and_none_twice() -> None:
    assert len({mutant.name for mutant in LISTED}) == len({(m.file, m.old, m.new) for m in LISTED}) == len(LISTED) >= 40
    assert sum(mutant.sample for mutant in LISTED) == 14
