"""The numbers in the documents about memory are true."""

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["budget.md", "formulas.md", "kinds.md"])
def test_every_worked_number_in_the_document_holds(page: str) -> None:
    text = re.sub(r"^```.*$", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page, str(DOCS / page), 0)
    result = doctest.DocTestRunner().run(examples)
    assert result.failed == 0
    assert result.attempted > 30
