import pytest

from kvbudget.errors import LedgerError
from kvbudget.ledger import Grant, Reject, RejectKind, TokenLedger, pages_needed


def grant(answer: Grant | Reject) -> Grant:
    assert isinstance(answer, Grant)
    return answer


def reject(answer: Grant | Reject) -> Reject:
    assert isinstance(answer, Reject)
    return answer


@pytest.mark.parametrize(
    ("prompt", "output", "n", "pages"),
    [
        (1, 1, 1, 1),
        (63, 1, 1, 1),
        (64, 1, 1, 2),  # the first output token needs a page of its own
        (200, 184, 1, 6),
        (200, 185, 1, 7),
        (200, 184, 3, 3 + 3 * 3),  # three full pages shared, the partial one copied
        (192, 64, 3, 3 + 3 * 1),  # nothing partial
        (10, 10, 8, 8),  # nothing full
    ],
)
def test_pages_of_a_request(prompt: int, output: int, n: int, pages: int) -> None:
    assert pages_needed(64, prompt, output, n) == pages
    ledger = TokenLedger(100, 64)
    assert grant(ledger.reserve("r", prompt_tokens=prompt, output_tokens=output, n=n, now_ms=0)).pages == pages
    assert (ledger.charged_pages, ledger.held_pages("r"), ledger.free_pages) == (pages, pages, 100 - pages)


@pytest.mark.parametrize(("prompt", "output", "fit"), [(6400 - 64, 64, 1), (64, 64, 50), (1, 63, 100)])
def test_requests_are_admitted_while_their_pages_fit_whatever_their_number(prompt: int, output: int, fit: int) -> None:
    ledger = TokenLedger(100, 64)
    answers = [ledger.reserve(f"r{i}", prompt_tokens=prompt, output_tokens=output, now_ms=0) for i in range(fit + 1)]
    assert [isinstance(answer, Grant) for answer in answers] == [True] * fit + [False]
    assert reject(answers[-1]).kind is RejectKind.FULL


def test_what_is_above_the_capacity_never_fits_even_when_its_prefix_is_held() -> None:
    ledger = TokenLedger(4, 16)
    ledger.reserve("holder", prompt_tokens=32, output_tokens=1, now_ms=0)
    ledger.bind("holder", 0)
    ledger.bind("holder", 1)
    answer = reject(ledger.reserve("r", prompt_tokens=64, output_tokens=1, cached_pages=[0, 1], now_ms=0))
    assert (answer.kind, answer.needed_pages, answer.capacity_pages) == (RejectKind.NEVER_FITS, 5, 4)


def test_a_held_prefix_is_charged_once_and_an_unheld_one_like_any_page() -> None:
    ledger = TokenLedger(6, 16)
    ledger.reserve("a", prompt_tokens=33, output_tokens=15, now_ms=0)
    ledger.bind("a", 0)
    ledger.bind("a", 1)
    # 3 pages each; b shares two of a's: 1 charged.
    assert (
        grant(ledger.reserve("b", prompt_tokens=33, output_tokens=15, cached_pages=[0, 1], now_ms=0)).charged_pages == 1
    )
    # Page 4 is cached and nobody holds it: charged with the rest, and 4 + 3 > 6.
    answer = reject(ledger.reserve("c", prompt_tokens=33, output_tokens=15, cached_pages=[4], now_ms=0))
    assert (answer.kind, answer.needed_pages, answer.free_pages) == (RejectKind.FULL, 3, 2)
    ledger.settle("a")
    assert (ledger.charged_pages, ledger.holders(0), ledger.holders(1)) == (3, 1, 1)
    assert grant(ledger.reserve("c", prompt_tokens=33, output_tokens=15, cached_pages=[4], now_ms=1)).charged_pages == 3
    ledger.settle("c")
    ledger.settle("b")
    assert (ledger.charged_pages, ledger.bound_pages, ledger.free_pages) == (0, 0, 6)


def test_cached_tokens_of_a_grant() -> None:
    ledger = TokenLedger(10, 16)
    assert (
        grant(ledger.reserve("a", prompt_tokens=48, output_tokens=8, cached_pages=[7, 3], now_ms=0)).cached_tokens == 32
    )


def test_a_refusal_changes_nothing() -> None:
    ledger = TokenLedger(3, 16)
    ledger.reserve("a", prompt_tokens=16, output_tokens=16, now_ms=0)
    before = ledger.snapshot()
    reject(ledger.reserve("b", prompt_tokens=16, output_tokens=16, cached_pages=[1], now_ms=0))
    assert ledger.snapshot() == before
    assert ledger.holders(1) == 0


def test_holds_of_choices_add_up() -> None:
    ledger = TokenLedger(10, 16)
    ledger.reserve("r", prompt_tokens=20, output_tokens=12, n=2, now_ms=0)  # 1 shared + 2 × 1
    ledger.bind("r", 0)
    ledger.share("r", 0)
    ledger.bind("r", 1)
    ledger.bind("r", 2)
    assert (ledger.holders(0), ledger.charged_pages, ledger.held_pages("r")) == (2, 3, 3)
    ledger.unbind("r", 0)
    assert ledger.charged_pages == 3
    ledger.unbind("r", 0)
    assert ledger.charged_pages == 2
    ledger.settle("r")
    assert ledger.charged_pages == 0


def test_pages_given_up_early_are_free_at_once() -> None:
    ledger = TokenLedger(10, 16)
    ledger.reserve("r", prompt_tokens=16, output_tokens=64, now_ms=0)
    ledger.relinquish("r", 3)
    assert ledger.free_pages == 8
    ledger.settle("r")
    assert ledger.free_pages == 10


def _broken_calls() -> dict[str, object]:
    return {
        "no capacity": lambda ledger: TokenLedger(0, 16),
        "no page size": lambda ledger: TokenLedger(4, 0),
        "reserved twice": lambda ledger: ledger.reserve("a", prompt_tokens=1, output_tokens=1, now_ms=0),
        "empty prompt": lambda ledger: ledger.reserve("b", prompt_tokens=0, output_tokens=1, now_ms=0),
        "no output": lambda ledger: ledger.reserve("b", prompt_tokens=1, output_tokens=0, now_ms=0),
        "no choice": lambda ledger: ledger.reserve("b", prompt_tokens=1, output_tokens=1, n=0, now_ms=0),
        "cached beyond the prompt": lambda ledger: ledger.reserve(
            "b", prompt_tokens=17, output_tokens=1, cached_pages=[1, 2], now_ms=0
        ),
        "cached twice": lambda ledger: ledger.reserve(
            "b", prompt_tokens=32, output_tokens=1, cached_pages=[1, 1], now_ms=0
        ),
        "cached outside the pool": lambda ledger: ledger.reserve(
            "b", prompt_tokens=16, output_tokens=1, cached_pages=[4], now_ms=0
        ),
        "bound outside the pool": lambda ledger: ledger.bind("a", -1),
        "bound twice": lambda ledger: ledger.bind("a", 0),
        "bound more than reserved": lambda ledger: (ledger.bind("a", 1), ledger.bind("a", 2)),
        "bound by a stranger": lambda ledger: ledger.bind("b", 1),
        "unbound and not held": lambda ledger: ledger.unbind("a", 1),
        "more given up than left": lambda ledger: ledger.relinquish("a", 2),
        "settled and unknown": lambda ledger: ledger.settle("b"),
        "settled twice": lambda ledger: (ledger.settle("a"), ledger.settle("a")),
        "shared beyond the capacity": lambda ledger: [ledger.share("a", page) for page in (1, 2, 3)],
        "progress of an unknown": lambda ledger: ledger.progress("b", 1, now_ms=0),
    }


@pytest.mark.parametrize("case", _broken_calls())
def test_a_broken_contract_is_an_error(case: str) -> None:
    ledger = TokenLedger(4, 16)
    ledger.reserve("a", prompt_tokens=16, output_tokens=16, now_ms=0)
    ledger.bind("a", 0)
    call = _broken_calls()[case]
    with pytest.raises(LedgerError):
        call(ledger)  # type: ignore[operator]
    assert 0 <= ledger.charged_pages <= 4
