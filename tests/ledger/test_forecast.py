"""``retry_after_ms`` tells when there will be room."""

import pytest

from kvbudget.contract import MAX_RETRY_AFTER_MS
from kvbudget.forecast import Pace, Progress, jittered
from kvbudget.ledger import Reject, TokenLedger


def full_ledger(now_ms: int = 0) -> TokenLedger:
    """10 requests of 10 pages each (60 + 100 tokens) on 100 pages."""
    ledger = TokenLedger(100, 16)
    for index in range(10):
        ledger.reserve(f"live-{index}", prompt_tokens=60, output_tokens=100, now_ms=now_ms)
    assert ledger.free_pages == 0
    return ledger


def wait(ledger: TokenLedger, request_id: str, now_ms: int, output_tokens: int = 100, ahead_pages: int = 0) -> int:
    answer = ledger.reserve(
        request_id, prompt_tokens=60, output_tokens=output_tokens, ahead_pages=ahead_pages, now_ms=now_ms
    )
    assert isinstance(answer, Reject)
    assert 1 <= answer.retry_after_ms <= MAX_RETRY_AFTER_MS
    return answer.retry_after_ms


def test_the_forecast_is_when_the_next_request_ends_at_its_own_pace() -> None:
    ledger = full_ledger()
    for index in range(10):
        ledger.progress(f"live-{index}", 1, now_ms=5000)  # the time before the first token is no decoding
        ledger.progress(f"live-{index}", 50 + index, now_ms=6000)  # the furthest has 41 to go, 1000 ÷ 58 ms each
    assert 41 * 1000 / 58 <= wait(ledger, "r", now_ms=6000) <= 1.25 * 41 * 1000 / 58 + 2


def test_a_larger_request_waits_for_more_of_them() -> None:
    ledger = full_ledger()
    for index in range(10):
        ledger.progress(f"live-{index}", 1, now_ms=0)
        ledger.progress(f"live-{index}", 10 + 8 * index, now_ms=1000)
    waits = [wait(ledger, "same-id", 1000, output_tokens) for output_tokens in (100, 260, 740, 1300)]
    assert waits == sorted(set(waits))


def test_those_who_wait_before_make_it_longer() -> None:
    ledger = full_ledger()
    waits = [wait(ledger, "same-id", 100, ahead_pages=ahead) for ahead in (0, 50, 200)]
    assert waits[0] <= waits[1] < waits[2]


def test_the_pace_is_learnt_from_finished_requests() -> None:
    forecasts = []
    for ms_per_token in (10, 100):
        ledger = TokenLedger(100, 16)
        ledger.reserve("done", prompt_tokens=60, output_tokens=100, now_ms=0)
        ledger.progress("done", 1, now_ms=ms_per_token)
        ledger.progress("done", 100, now_ms=100 * ms_per_token)
        ledger.settle("done")
        for index in range(10):
            ledger.reserve(f"live-{index}", prompt_tokens=60, output_tokens=100, now_ms=20_000)
        forecasts.append(wait(ledger, "r", 20_000))
    assert 1000 <= forecasts[0] <= 1250
    assert 10_000 <= forecasts[1] <= 12_500


def test_requests_that_use_little_of_what_they_reserve_shorten_it() -> None:
    ledger = TokenLedger(100, 16)
    ledger.reserve("done", prompt_tokens=60, output_tokens=100, now_ms=0)
    ledger.progress("done", 1, now_ms=10)
    ledger.progress("done", 20, now_ms=200)
    ledger.settle("done")  # early
    for index in range(10):
        ledger.reserve(f"live-{index}", prompt_tokens=60, output_tokens=100, now_ms=1000)
    assert 200 <= wait(ledger, "r", 1000) <= 250


def test_a_long_wait_for_the_first_token_is_no_slow_decoding() -> None:
    """A burst: the first tokens come after 20 s, then one every 20 ms; a forecast must not think in 10 s a token."""
    ledger = full_ledger()
    for index in range(10):
        ledger.progress(f"live-{index}", 1, now_ms=20_000)
        ledger.progress(f"live-{index}", 2, now_ms=20_020)
    assert wait(ledger, "r", now_ms=20_020) <= 1.25 * 98 * 20 + 2


def test_two_slow_tokens_do_not_outweigh_what_finished_requests_showed() -> None:
    ledger = TokenLedger(10, 16)
    ledger.reserve("done", prompt_tokens=60, output_tokens=100, now_ms=0)
    ledger.progress("done", 1, now_ms=0)
    ledger.progress("done", 100, now_ms=990)  # 10 ms a token
    ledger.settle("done")
    waits = []
    for index, tokens in enumerate((3, 50)):
        ledger.reserve(f"live-{index}", prompt_tokens=60, output_tokens=100, now_ms=0)
        ledger.progress(f"live-{index}", 1, now_ms=0)
        ledger.progress(f"live-{index}", tokens, now_ms=(tokens - 1) * 1000)
        waits.append(wait(ledger, "r", now_ms=(tokens - 1) * 1000))
        ledger.settle(f"live-{index}")
    assert waits[0] < 97 * 1000 / 4
    assert waits[1] > 30_000


@pytest.mark.parametrize(
    ("used", "generated", "expected"),
    [
        ((), 41, 100),
        ((20, 20, 80, 60), 10, 45),
        ((20, 20, 80, 60), 41, 70),
        ((20, 20, 80, 60), 60, 80),
        ((20, 20, 80, 60), 80, 100),
        ((20, 100), 41, 100),
    ],
    ids=["none ended", "all used more", "two used more", "one used more", "outlived all", "as the long ones"],
)
def test_a_request_is_expected_to_use_what_those_that_lasted_longer_used(
    used: tuple[int, ...], generated: int, expected: int
) -> None:
    """100 ms a token; whoever has outlived every finished request is expected to use all that it reserved."""
    ledger = TokenLedger(10, 16)
    for tokens in used:
        ledger.reserve("done", prompt_tokens=60, output_tokens=100, now_ms=0)
        ledger.progress("done", 1, now_ms=0)
        ledger.progress("done", tokens, now_ms=(tokens - 1) * 100)
        ledger.settle("done")
    ledger.reserve("live", prompt_tokens=60, output_tokens=100, now_ms=0)
    ledger.progress("live", 1, now_ms=0)
    now_ms = (generated - 1) * 100
    ledger.progress("live", generated, now_ms=now_ms)
    left_ms = (expected - generated) * 100
    assert left_ms <= wait(ledger, "r", now_ms=now_ms) <= 1.25 * (left_ms + 100)


def test_one_slow_request_moves_the_averages_by_a_tenth() -> None:
    pace = Pace()
    for factor in (1, 2):
        done = Progress(generated_tokens=101, decode_ms=1000 * factor)
        pace = pace.after(first_token_ms=500 * factor, progress=done, output_tokens=101)
    assert (pace.first_token_ms, pace.ms_per_token) == (550.0, 11.0)


def test_what_was_used_long_ago_is_forgotten() -> None:
    pace = Pace()
    for tokens in (100, *(20,) * 32):
        pace = pace.after(first_token_ms=1, progress=Progress(generated_tokens=tokens), output_tokens=100)
    assert pace.used_share() == pytest.approx(0.2)


def test_it_falls_as_time_goes_by() -> None:
    ledger = full_ledger()
    waits = []
    for tokens in (10, 40, 70, 99, 100):
        for index in range(10):
            ledger.progress(f"live-{index}", tokens, now_ms=tokens * 20)
        waits.append(wait(ledger, "same-id", now_ms=tokens * 20))
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] < waits[0] / 20


def test_it_is_spread_over_the_clients_and_the_same_for_the_same_one() -> None:
    ledger = full_ledger()
    waits = [wait(ledger, f"r-{index}", 100) for index in range(200)]
    assert len(set(waits)) > 150
    assert max(waits) <= 1.26 * min(waits)
    assert waits == [wait(ledger, f"r-{index}", 100) for index in range(200)]


@pytest.mark.parametrize("forecast_ms", [-5, 0, 1, 96_000, 10**9])
def test_it_is_never_outside_what_clients_honour_and_never_constant(forecast_ms: int) -> None:
    values = {jittered(forecast_ms, f"r-{index}") for index in range(1000)}
    assert min(values) >= 1
    assert max(values) <= MAX_RETRY_AFTER_MS
    if forecast_ms > 1000:
        assert len(values) > 900


def test_a_client_that_comes_back_when_told_finds_room() -> None:
    """Simulated: steady decoding of 20 ms a token; the forecast is neither early by more than a token nor late by
    more than the jitter."""
    ledger = TokenLedger(100, 16)
    for index in range(10):
        ledger.reserve(f"live-{index}", prompt_tokens=60, output_tokens=100, now_ms=40 * index)
    told: dict[int, int] = {}
    freed_ms = None
    for now_ms in range(0, 3000, 20):
        for index in range(10):
            tokens = (now_ms - 40 * index) // 20
            if tokens <= 100 and freed_ms is None:
                ledger.progress(f"live-{index}", tokens, now_ms)
            if tokens == 100 and freed_ms is None:
                ledger.settle(f"live-{index}")
                freed_ms = now_ms
        if freed_ms is None and now_ms >= 400:
            told[now_ms] = now_ms + wait(ledger, f"r-{now_ms}", now_ms)
    assert freed_ms == 2000
    assert all(freed_ms - 20 <= back_ms <= freed_ms + (freed_ms - now_ms) / 4 + 20 for now_ms, back_ms in told.items())
