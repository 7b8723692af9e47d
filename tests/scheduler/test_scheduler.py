from dataclasses import replace

import pytest

from kvbudget.errors import LedgerError
from kvbudget.ledger import Grant, Reject, RejectKind, TokenLedger
from kvbudget_worker.batch import Sampled, SamplingParams
from kvbudget_worker.blocks import BlockPool
from kvbudget_worker.requests import Request
from kvbudget_worker.scheduler import Scheduler
from support.kv_memory import reference
from support.scheduling import Worker, rows


def test_a_request_gets_its_tokens_and_leaves_nothing() -> None:
    worker = Worker()
    request = Request("r", tuple(range(10)), 7)
    worker.scheduler.try_admit(request, 0)
    assert worker.run() == {("r", 0): reference(request, 0)}
    worker.assert_empty()


def test_a_long_prompt_is_computed_in_chunks_beside_the_decodes() -> None:
    worker = Worker(max_batched_tokens=8)
    worker.admit("short", range(4), 12)
    worker.step()
    worker.admit("long", range(100, 130), 2)
    seen = [rows(worker.step()[0]) for _ in range(5)]
    assert seen == [
        [(0, 4, 1), (1, 0, 7)],
        [(0, 5, 1), (1, 7, 7)],
        [(0, 6, 1), (1, 14, 7)],
        [(0, 7, 1), (1, 21, 7)],
        [(0, 8, 1), (1, 28, 2)],
    ]


def test_only_the_chunk_that_ends_the_prompt_samples() -> None:
    worker = Worker(max_batched_tokens=8)
    worker.admit("r", range(20), 1)
    seen = []
    while worker.scheduler.has_work:
        seen.append([chunk.sample for chunk in worker.step()[0].chunks])
    assert seen == [[False], [False], [True]]


def test_admitted_requests_start_in_their_order() -> None:
    worker = Worker(max_batched_tokens=8, max_sequences=2)
    for index in range(4):
        worker.admit(f"r{index}", range(index * 10, index * 10 + 6), 3)
    assert rows(worker.step()[0]) == [(0, 0, 6), (1, 0, 2)]
    assert (worker.scheduler.stats().running, worker.scheduler.stats().waiting) == (2, 2)
    first_tokens = [key[0] for key in worker.run()]
    assert sorted(first_tokens) == first_tokens


def test_rows_never_pass_max_sequences() -> None:
    worker = Worker(pages=400, max_batched_tokens=16, max_sequences=3)
    for index in range(10):
        worker.admit(f"r{index}", [index, index], 5)
    while worker.scheduler.has_work:
        assert len(worker.step()[0].chunks) <= 3


def test_more_decodes_than_batched_tokens_take_turns() -> None:
    worker = Worker(max_batched_tokens=3, max_sequences=8, prefix_cache=False)
    for index in range(5):
        worker.admit(f"r{index}", [index], 6)
    outputs: dict[str, int] = {}
    for _ in range(8):
        for event in worker.step()[1]:
            outputs[event.request_id] = outputs.get(event.request_id, 0) + 1
    assert len(outputs) == 5
    worker.run()
    worker.assert_empty()


def test_requests_are_refused_by_pages_and_admitted_again_when_pages_return() -> None:
    worker = Worker(pages=10)
    worker.admit("a", range(20), 4)  # 6 pages
    refused = worker.try_admit("b", range(100, 117), 4)  # 6 pages
    assert isinstance(refused, Reject)
    assert (refused.kind, refused.needed_pages, refused.free_pages) == (RejectKind.FULL, 6, 4)
    worker.run()
    worker.admit("b", range(100, 117), 4)
    never = worker.try_admit("c", range(200, 230), 10, n=3)
    assert isinstance(never, Reject)
    assert never.kind is RejectKind.NEVER_FITS
    worker.run()
    worker.assert_empty()


def test_a_cached_prompt_is_computed_from_its_last_page_only() -> None:
    worker = Worker()
    first = Request("a", tuple(range(12)), 3)
    worker.scheduler.try_admit(first, 0)
    outputs = worker.run()
    grant = worker.admit("b", range(12), 3)  # all three pages are cached: the last is computed again
    assert grant.cached_tokens == 8
    batch, events = worker.step()
    assert rows(batch) == [(1, 8, 4)]
    assert events[0].cached_tokens == 8
    assert worker.run()["b", 0][0] == outputs["a", 0][0][1:]
    stats = worker.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (24, 8)


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    worker = Worker()
    worker.admit("a", range(10), 8)
    (answer,) = worker.run().values()
    # 17 tokens were computed (the last one generated never is): 4 full pages.
    grant = worker.admit("b", [*range(10), *answer[0], 1, 2], 2)
    assert grant.cached_tokens == 16


def test_a_cached_prompt_that_must_make_room_loses_its_end_first() -> None:
    worker = Worker(pages=8)
    worker.admit("a", range(24), 1)  # 6 full pages stay cached
    worker.run()
    worker.admit("other", range(100, 109), 6)  # 4 pages: 2 free ones and 2 of the cached
    worker.run()
    assert worker.admit("again", range(24), 1).cached_tokens == 16


def test_two_equal_prompts_at_once_are_charged_in_full_and_share_afterwards() -> None:
    worker = Worker(max_batched_tokens=64)
    charged = [worker.admit(name, range(12), 4).charged_pages for name in ("a", "b")]
    assert charged == [4, 4]
    worker.step()  # both compute the same three pages
    assert worker.ledger.charged_pages == 5
    assert worker.pool.held_pages == 3
    outputs = worker.run()
    assert outputs["a", 0] == outputs["b", 0]
    worker.assert_empty()


def test_a_request_that_waited_takes_over_what_another_has_computed_meanwhile() -> None:
    worker = Worker(max_batched_tokens=16, max_sequences=1)
    worker.admit("a", range(13), 2)
    assert worker.admit("b", range(13), 2).cached_tokens == 0
    outputs = worker.run()
    assert outputs["a", 0] == outputs["b", 0]
    assert worker.scheduler.stats().prefix_hit_tokens == 12


def test_a_salt_keeps_prefixes_apart() -> None:
    worker = Worker()
    worker.admit("a", range(13), 2, salt=b"a")
    worker.run()
    assert worker.admit("b", range(13), 2, salt=b"b").cached_tokens == 0
    assert worker.admit("c", range(13), 2, salt=b"a").cached_tokens == 12


@pytest.mark.parametrize("prompt_tokens", [1, 3, 8, 10])
@pytest.mark.parametrize("max_sequences", [1, 2, 8])
def test_choices_share_the_prompt_and_generate_apart(prompt_tokens: int, max_sequences: int) -> None:
    worker = Worker(max_sequences=max_sequences)
    request = Request("r", tuple(range(prompt_tokens)), 9, n=4, params=SamplingParams(seed=3))
    grant = worker.scheduler.try_admit(request, 0)
    assert isinstance(grant, Grant)
    assert grant.pages == prompt_tokens // 4 + 4 * (-(-(prompt_tokens + 9) // 4) - prompt_tokens // 4)
    outputs = worker.run()
    assert outputs == {("r", choice): reference(request, choice) for choice in range(4)}
    assert len({tuple(tokens) for tokens, _ in outputs.values()}) > 1
    worker.assert_empty()


def test_further_choices_start_before_requests_that_came_later() -> None:
    worker = Worker(max_sequences=1)
    worker.admit("r", range(5), 3, n=2)
    worker.admit("later", range(10, 15), 3)
    assert list(worker.run()) == [("r", 0), ("r", 1), ("later", 0)]


def test_choices_survive_a_first_choice_that_ends_at_its_first_token() -> None:
    for prompt_tokens in (7, 8):
        worker = Worker(max_sequences=1)
        request = Request("r", tuple(range(prompt_tokens)), 1, n=3)
        worker.scheduler.try_admit(request, 0)
        assert worker.run() == {("r", choice): reference(request, choice) for choice in range(3)}
        worker.assert_empty()


def test_a_choice_that_ends_gives_its_pages_back_before_the_others() -> None:
    worker = Worker()
    worker.admit("r", range(8), 20, n=2)
    worker.step()
    worker.step()
    charged = worker.ledger.charged_pages
    worker.scheduler.finish("r", 0, "stop")
    assert worker.ledger.charged_pages == charged - 5
    assert worker.scheduler.is_live("r")
    worker.run()
    worker.assert_empty()


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({"eos_ids": (0, 1, 2, 3, 4)}, "stop"),
        ({"eos_ids": (0, 1, 2, 3, 4), "ignore_eos": True}, "length"),
        ({"stop_token_ids": (0, 1, 2, 3, 4), "ignore_eos": True}, "stop"),
        ({}, "length"),
    ],
)
def test_how_a_choice_ends(fields: dict[str, object], ends: str) -> None:
    worker = Worker()
    worker.admit("r", range(5), 6, **fields)
    ((tokens, reason),) = worker.run().values()
    assert (len(tokens), reason) == (1 if ends == "stop" else 6, ends)
    assert worker.scheduler.stats().ended == {ends: 1}


def test_stop_wins_over_length() -> None:
    worker = Worker()
    worker.admit("r", range(5), 1, eos_ids=(0, 1, 2, 3, 4))
    ((_, reason),) = worker.run().values()
    assert reason == "stop"


def test_ending_tokens_are_banned_before_min_tokens() -> None:
    worker = Worker()
    worker.admit("r", range(5), 12, eos_ids=(0,), stop_token_ids=(1, 2), min_tokens=5)
    banned = []
    while worker.scheduler.has_work:
        banned.append([chunk.banned_ids for chunk in worker.step()[0].chunks])
    assert banned[:6] == [[(0, 1, 2)]] * 5 + [[()]]


def test_ignored_eos_is_not_banned() -> None:
    worker = Worker()
    worker.admit("r", range(5), 4, eos_ids=(0,), stop_token_ids=(2,), ignore_eos=True, min_tokens=2)
    assert worker.step()[0].chunks[0].banned_ids == (2,)


@pytest.mark.parametrize("steps", range(6))
def test_an_abort_between_steps_releases_at_once(steps: int) -> None:
    worker = Worker(max_batched_tokens=4)
    worker.admit("r", range(10), 5, n=2)
    for _ in range(steps):
        worker.step()
    worker.scheduler.abort("r")
    worker.assert_empty()
    assert worker.scheduler.schedule(worker.now_ms) is None


@pytest.mark.parametrize("steps", range(6))
def test_an_abort_in_flight_releases_when_the_step_is_applied(steps: int) -> None:
    worker = Worker(max_batched_tokens=4)
    worker.admit("r", range(10), 5, n=2)
    worker.admit("other", range(50, 53), 30)
    for _ in range(steps):
        worker.step()
    batch = worker.scheduler.schedule(worker.now_ms)
    assert batch is not None
    held = {page for chunk in batch.chunks for page in chunk.pages}
    worker.scheduler.abort("r")
    assert all(worker.pool.refs(page) for page in held)
    events = worker.scheduler.apply(worker.runner.step(batch), worker.now_ms)
    assert "r" not in {event.request_id for event in events}
    assert not worker.scheduler.is_live("r")
    worker.run()
    worker.assert_empty()


def test_a_stop_string_in_flight_swallows_the_token_that_is_computed() -> None:
    worker = Worker()
    worker.admit("r", range(10), 5)
    worker.step()
    batch = worker.scheduler.schedule(worker.now_ms)
    assert batch is not None
    worker.scheduler.finish("r", 0, "stop")
    assert worker.scheduler.apply(worker.runner.step(batch), worker.now_ms) == []
    assert worker.scheduler.stats().ended == {"stop": 1}
    worker.assert_empty()


def test_ending_what_has_ended_does_nothing() -> None:
    worker = Worker()
    worker.admit("r", range(3), 1)
    worker.run()
    worker.scheduler.abort("r")
    worker.scheduler.finish("r", 0, "stop")
    worker.assert_empty()


def test_a_failed_step_is_forgotten_and_can_be_done_again() -> None:
    worker = Worker()
    request = Request("r", tuple(range(10)), 5, n=2)
    worker.scheduler.try_admit(request, 0)
    worker.admit("gone", range(30, 40), 5)
    for _ in range(2):
        worker.step()
    batch = worker.scheduler.schedule(0)
    assert batch is not None
    worker.scheduler.abort("gone")
    worker.scheduler.abandon()
    assert not worker.scheduler.is_live("gone")
    again = worker.scheduler.schedule(0)
    assert again == replace(batch, chunks=tuple(c for c in batch.chunks if c.seq_id != 2))
    worker.scheduler.abandon()
    worker.run()
    worker.assert_empty()


def test_used_pages_are_those_of_live_requests() -> None:
    worker = Worker()
    worker.admit("r", range(9), 20)
    assert worker.scheduler.stats().used_pages == 0
    worker.step()
    assert worker.scheduler.stats().used_pages == 3
    worker.run()
    stats = worker.scheduler.stats()
    assert (stats.used_pages, stats.cached_pages) == (0, 7)


def test_events_tell_when_the_request_started() -> None:
    worker = Worker(max_batched_tokens=4, max_sequences=1)
    worker.admit("a", range(4), 2)
    worker.admit("b", range(10, 18), 2)
    started: dict[str, int] = {}
    while worker.scheduler.has_work:
        for event in worker.step()[1]:
            started.setdefault(event.request_id, event.started_ms)
    assert started == {"a": 10, "b": 30}


def test_broken_preconditions_are_errors() -> None:
    worker = Worker()
    worker.admit("r", range(3), 2)
    scheduler = worker.scheduler
    batch = scheduler.schedule(0)
    assert batch is not None
    with pytest.raises(LedgerError, match="live already"):
        worker.admit("r", range(3), 2)
    with pytest.raises(LedgerError, match="above the model's 256"):
        worker.admit("long", range(300), 2)
    with pytest.raises(LedgerError, match="in flight"):
        scheduler.schedule(0)
    with pytest.raises(LedgerError, match="no token yet"):
        scheduler.finish("r", 0, "stop")
    for results in ([], [Sampled(9, 0)], [Sampled(0, 0), Sampled(0, 0)]):
        with pytest.raises(LedgerError, match="asked for"):
            scheduler.apply(results, 0)
    assert scheduler.apply(worker.runner.step(batch), 0)
    with pytest.raises(LedgerError, match="no step"):
        scheduler.apply([], 0)
    with pytest.raises(LedgerError, match="no step"):
        scheduler.abandon()


@pytest.mark.parametrize(("page_tokens", "batched"), [(8, 1), (4, 0)])
def test_a_scheduler_refuses_what_does_not_go_together(page_tokens: int, batched: int) -> None:
    pool = BlockPool(64, 4, prefix_cache=True)
    with pytest.raises(LedgerError):
        Scheduler(pool, TokenLedger(64, page_tokens), max_batched_tokens=batched, max_sequences=1, max_model_len=1)
