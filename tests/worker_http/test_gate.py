"""Admission by tokens, the queue, and the demand that is refused."""

import itertools

import pytest

from kvbudget.demand import DemandWindow
from kvbudget.ledger import TokenLedger
from kvbudget_worker.blocks import BlockPool
from kvbudget_worker.gate import Ask, Gate
from kvbudget_worker.refusals import Refused
from kvbudget_worker.requests import Request
from kvbudget_worker.scheduler import Scheduler
from support.scripted import make_plan

PAGE = 16
_ids = itertools.count()


class World:
    def __init__(self, pages: int = 50, queue_tokens: int = 0) -> None:
        self.ledger = TokenLedger(pages, PAGE)
        self.scheduler = Scheduler(
            BlockPool(pages, PAGE, prefix_cache=True),
            self.ledger,
            max_batched_tokens=512,
            max_sequences=64,
            max_model_len=4096,
        )
        self.demand = DemandWindow()
        limits = make_plan(pages=pages, queue_tokens=queue_tokens).limits
        self.gate = Gate(self.scheduler, self.ledger, limits, self.demand)

    def end(self, ask: Ask) -> None:
        for request in ask.requests:
            self.scheduler.abort(request.request_id)


def ask(pages: int, *, parts: int = 1, client_id: str | None = None) -> Ask:
    """A request of so many pages (in each of its parts), with a prompt that shares nothing."""
    number = next(_ids)
    requests = tuple(
        Request(f"r{number}-{i}", tuple([1000 * number + i] * 15), max_output_tokens=pages * PAGE - 15)
        for i in range(parts)
    )
    return Ask(client_id or f"client-{number}", requests, 0)


def test_one_long_or_fifty_short_whatever_their_number() -> None:
    world = World(pages=50)
    assert world.gate.offer(ask(50), 0)
    with pytest.raises(Refused):
        world.gate.offer(ask(1), 0)

    world = World(pages=50)
    assert all(world.gate.offer(ask(1), 0) for _ in range(50))
    with pytest.raises(Refused) as caught:
        world.gate.offer(ask(1), 0)
    assert caught.value.refusal.code == "kv_budget_exhausted"
    assert world.ledger.free_pages == 0


def test_all_prompts_of_a_request_or_none() -> None:
    world = World(pages=10)
    assert world.gate.offer(ask(4), 0)
    with pytest.raises(Refused) as caught:
        world.gate.offer(ask(3, parts=3), 0)
    assert caught.value.refusal.status == 429
    assert world.ledger.charged_pages == 4
    assert world.gate.offer(ask(3, parts=2), 0)
    assert world.ledger.charged_pages == 10


def test_the_queue_is_bounded_in_tokens_not_in_requests() -> None:
    world = World(pages=4, queue_tokens=6 * PAGE)
    assert world.gate.offer(ask(4), 0)
    assert [world.gate.offer(ask(1), 0) for _ in range(6)] == [False] * 6
    assert (world.gate.waiting, world.gate.queued_tokens) == (6, 6 * PAGE)
    with pytest.raises(Refused, match="queue of 96 tokens is full"):
        world.gate.offer(ask(1), 0)


def test_nobody_overtakes_the_queue() -> None:
    world = World(pages=10, queue_tokens=1000)
    holders = [ask(5), ask(4)]
    long, short = ask(8), ask(1)
    assert [world.gate.offer(a, 0) for a in (*holders, long)] == [True, True, False]
    assert world.gate.offer(short, 0) is False, "one page is free, but the long one was first"
    world.end(holders[0])
    assert world.gate.pump(1) == []
    world.end(holders[1])
    assert world.gate.pump(2) == [long, short]
    assert world.gate.queued_tokens == 0


def test_who_leaves_the_queue_lets_the_next_one_try() -> None:
    world = World(pages=10, queue_tokens=1000)
    assert world.gate.offer(ask(8), 0)
    long, short = ask(5), ask(2)
    assert [world.gate.offer(a, 0) for a in (long, short)] == [False, False]
    assert world.gate.pump(1) == []
    assert world.gate.withdraw(long) == 5
    assert world.gate.withdraw(long) == 0
    assert world.gate.pump(2) == [short]


def test_an_expired_request_is_told_when_there_may_be_room_and_leaves() -> None:
    world = World(pages=10, queue_tokens=1000)
    assert world.gate.offer(ask(10), 0)
    first, second = ask(5), ask(2)
    assert [world.gate.offer(a, 0) for a in (first, second)] == [False, False]
    refusal = world.gate.expire(second, 30_000)
    assert refusal.code == "queue_timeout"
    assert "30s" in refusal.message
    assert world.gate.queued_tokens == 5 * PAGE


def test_who_waits_before_lengthens_the_forecast() -> None:
    def forecast(queued_pages: int) -> int:
        world = World(pages=10, queue_tokens=queued_pages * PAGE)
        assert world.gate.offer(ask(10), 0)
        for _ in range(queued_pages // 10):
            assert not world.gate.offer(ask(10), 0)
        with pytest.raises(Refused) as caught:
            world.gate.offer(ask(10, client_id="same"), 0)
        return int(dict(caught.value.refusal.headers)["retry-after-ms"])

    assert forecast(0) < forecast(10) < forecast(30)


def refused_ms(world: World, client_id: str, pages: int = 10, now_ms: int = 0) -> int:
    """Milliseconds after which the refused client is told to come back."""
    with pytest.raises(Refused) as caught:
        world.gate.offer(ask(pages, client_id=client_id), now_ms)
    return int(dict(caught.value.refusal.headers)["retry-after-ms"])


def test_who_was_told_to_come_back_lengthens_the_forecast_of_the_next() -> None:
    world = World(pages=10)
    assert world.gate.offer(ask(10), 0)
    told = [refused_ms(world, f"client {index}") for index in range(4)]
    # Each comes after the one before it has had the whole pool; the jitter is a quarter at most.
    assert all(later > 1.2 * earlier for earlier, later in itertools.pairwise(told)), told


def test_who_comes_back_too_early_keeps_its_place_and_pushes_nobody_back() -> None:
    world = World(pages=10)
    assert world.gate.offer(ask(10), 0)
    first, second = refused_ms(world, "first"), refused_ms(world, "second")
    assert refused_ms(world, "first") == first
    assert refused_ms(world, "second") == second


def test_a_promise_that_is_due_or_kept_holds_nobody_up() -> None:
    world = World(pages=10)
    holder = ask(10)
    assert world.gate.offer(holder, 0)
    alone = refused_ms(world, "probe")
    due = refused_ms(world, "never comes back")
    assert refused_ms(world, "another", now_ms=max(alone, due)) < 2 * alone

    world = World(pages=10)
    holder = ask(10)
    assert world.gate.offer(holder, 0)
    refused_ms(world, "comes back")
    world.end(holder)
    assert world.gate.offer(ask(10, client_id="comes back"), 1)
    assert refused_ms(world, "probe", now_ms=1) == alone


def test_refused_demand_counts_each_client_request_once() -> None:
    world = World(pages=4)
    assert world.gate.offer(ask(4), 0)
    for _ in range(3):
        with pytest.raises(Refused):
            world.gate.offer(ask(2, client_id="comes back"), 0)
    with pytest.raises(Refused):
        world.gate.offer(ask(3, client_id="another"), 0)
    assert world.gate.refused_tokens == 5 * PAGE


def test_what_can_never_fit_is_no_demand() -> None:
    world = World(pages=4, queue_tokens=1000)
    with pytest.raises(Refused) as caught:
        world.gate.offer(ask(5), 0)
    assert caught.value.refusal.code == "request_exceeds_kv_budget"
    assert world.gate.refused_tokens == 0
