import pytest

from kvbudget.demand import DemandWindow
from kvbudget.errors import LedgerError


def with_mean_holding(seconds: int) -> DemandWindow:
    demand = DemandWindow()
    demand.started("done", 0)
    demand.ended("done", seconds * 1000)
    return demand


def test_refused_demand_is_the_refused_rate_times_the_holding_time() -> None:
    demand = with_mean_holding(12)
    for index in range(10):
        demand.refused(f"r{index}", 600, now_ms=12_000 + index)
    assert demand.refused_demand_tokens(13_000) == 6000 * 12 // 60


def test_each_request_id_counts_once_however_often_it_comes_back() -> None:
    demand = with_mean_holding(60)
    answers = [demand.refused("same", 500, now_ms=60_000 + 1000 * attempt) for attempt in range(20)]
    assert answers == [True] + [False] * 19
    assert demand.refused_demand_tokens(80_000) == 500


def test_a_refusal_leaves_after_the_window_and_may_count_again() -> None:
    demand = with_mean_holding(60)
    demand.refused("r", 500, now_ms=60_000)
    assert demand.refused_demand_tokens(119_999) == 500
    assert demand.refused_demand_tokens(120_000) == 0
    assert demand.refused("r", 500, now_ms=120_000)


def test_a_request_that_gets_in_is_no_refused_demand_any_more() -> None:
    demand = with_mean_holding(60)
    demand.refused("r", 500, now_ms=60_000)
    demand.started("r", now_ms=61_000)
    assert demand.refused_demand_tokens(61_000) == 0


def test_the_mean_holding_time_is_that_of_the_window() -> None:
    demand = DemandWindow()
    for index, (start, end) in enumerate([(0, 2000), (0, 4000), (70_000, 80_000)]):
        demand.started(f"r{index}", start)
        demand.ended(f"r{index}", end)
        if index == 1:
            assert demand.mean_holding_seconds(4000) == 3
    assert demand.mean_holding_seconds(80_000) == 10


def test_without_a_finished_request_the_holding_time_is_the_last_known_or_the_age_of_the_live_ones() -> None:
    demand = DemandWindow()
    assert demand.mean_holding_seconds(0) == 0
    demand.started("a", 0)
    demand.started("b", 4000)
    assert demand.mean_holding_seconds(10_000) == 8
    demand.ended("a", 20_000)
    assert demand.mean_holding_seconds(20_000) == 20
    demand.ended("b", 20_000)
    assert demand.mean_holding_seconds(20_000) == 18
    assert demand.mean_holding_seconds(200_000) == 18


def test_refusals_before_anything_was_served_count_as_soon_as_something_is_held() -> None:
    demand = DemandWindow()
    demand.started("long", 0)
    demand.refused("r", 600, now_ms=0)
    assert demand.refused_demand_tokens(30_000) == 300


def test_memory_is_bounded_and_no_token_is_lost() -> None:
    demand = DemandWindow(max_ids=50)
    demand.started("done", 0)
    demand.ended("done", 60_000)
    for index in range(10_000):
        demand.refused(f"r{index}", 3, now_ms=60_000 + index)
    assert len(demand._refused) == 50
    assert len(demand._forgotten._slots) <= 61
    assert demand.refused_demand_tokens(70_000) == 30_000
    assert demand.refused_demand_tokens(140_000) == 0


def test_the_end_of_an_unknown_request_is_an_error() -> None:
    with pytest.raises(LedgerError, match="had not started"):
        DemandWindow().ended("r", 0)
    with pytest.raises(LedgerError):
        DemandWindow(max_ids=0)
