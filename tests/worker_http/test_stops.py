"""Stop strings over a stream of pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget_worker.stops import StopScanner


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "stopped"),
    [
        ([], ["ab", "c"], ["ab", "c"], False),
        (["END"], ["abc", "def"], ["abc", "def"], False),
        (["END"], ["ab E", "N", "D more"], ["ab ", "", ""], True),
        (["END"], ["E", "NE", "ND"], ["", "EN", ""], True),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""], True),
        (["xyz", "y"], ["xy"], ["x"], True),
        (["b", "abc"], ["abc"], [""], True),
        (["\n\n"], ["line\n", "next"], ["line", "\nnext"], False),
        (["é"], ["caf", "é!"], ["caf", ""], True),
    ],
)
def test_text_is_held_back_while_it_may_begin_a_stop_string(
    stops: list[str], pieces: list[str], shown: list[str], stopped: bool
) -> None:
    scanner = StopScanner(stops)
    results = [scanner.push(piece) for piece in pieces]
    assert [text for text, _ in results] == shown
    assert results[-1][1] is stopped


def test_what_is_held_comes_out_when_the_choice_ends_for_another_reason() -> None:
    scanner = StopScanner(["stop"])
    assert scanner.push("do not sto") == ("do not ", False)
    assert scanner.flush() == "sto"
    assert scanner.flush() == ""


def test_the_stop_string_is_shown_where_asked() -> None:
    assert StopScanner(["##"], include=True).push("a## b") == ("a##", True)


def test_before_min_tokens_stop_strings_are_plain_text() -> None:
    scanner = StopScanner(["##"])
    assert scanner.push("a#") == ("a", False)
    assert scanner.pass_through("# b") == "## b"


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_however_the_text_is_cut_the_result_is_the_same(stops: list[str], pieces: list[str]) -> None:
    scanner, shown, stopped = StopScanner(stops), "", False
    for piece in pieces:
        if stopped:
            break
        text, stopped = scanner.push(piece)
        shown += text
    text = "".join(pieces)
    # The stop string that is complete first ends the text; of those, the one that begins first.
    ends = [at + len(s) for s in stops if (at := text.find(s)) >= 0]
    assert stopped is bool(ends)
    if not stopped:
        assert shown + scanner.flush() == text
    else:
        assert text.startswith(shown)
        assert not any(s in shown for s in stops)
        assert any(text[len(shown) :].startswith(s) for s in stops)
