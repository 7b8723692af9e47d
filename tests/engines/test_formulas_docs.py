"""The numbers in docs/formulas.md are true."""

import doctest
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "formulas.md"


def test_every_worked_number_in_the_document_holds() -> None:
    text = re.sub(r"^```.*$", "", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, DOCS.name, str(DOCS), 0)
    result = doctest.DocTestRunner().run(examples)
    assert result.failed == 0
    assert result.attempted > 40
