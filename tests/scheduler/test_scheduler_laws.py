"""Whatever comes and goes: each granted request finishes with the right tokens, pages and reference counts add up, a
reserved page is always there, and a step completes late: its pages are nobody else's until then (bug family 35)."""

from itertools import product

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvbudget.ledger import Grant, TokenLedger
from kvbudget_worker.batch import SamplingParams, StepBatch
from kvbudget_worker.blocks import BlockPool, page_key
from kvbudget_worker.requests import Request, TokenEvent
from kvbudget_worker.scheduler import Scheduler
from support.kv_memory import VOCAB, MemoryRunner, reference
from support.laws import share

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=20)
TOKENS = st.lists(st.integers(0, VOCAB - 2), max_size=2, unique=True)  # one token always stays allowed


def touched(batch: StepBatch, page_tokens: int) -> set[int]:
    """Pages that a step reads or writes."""
    pages = {page for copy in batch.copies for page in copy}
    for chunk in batch.chunks:
        pages.update(chunk.pages[: -(-(chunk.start + len(chunk.token_ids)) // page_tokens)])
    return pages


class SchedulerMachine(RuleBasedStateMachine):
    """A small pool, prompts that often begin alike, and a runner that checks every slot it reads."""

    @initialize(
        pages=st.integers(1, 20),
        page_tokens=st.sampled_from([1, 2, 3]),
        prefix_cache=st.booleans(),
        max_batched_tokens=st.integers(1, 12),
        max_sequences=st.integers(1, 5),
    )
    def start(
        self, pages: int, page_tokens: int, prefix_cache: bool, max_batched_tokens: int, max_sequences: int
    ) -> None:
        self.pool = BlockPool(pages, page_tokens, prefix_cache=prefix_cache)
        self.ledger = TokenLedger(pages, page_tokens)
        self.scheduler = Scheduler(
            self.pool,
            self.ledger,
            max_batched_tokens=max_batched_tokens,
            max_sequences=max_sequences,
            max_model_len=10_000,
        )
        self.runner = MemoryRunner(self.pool, max_batched_tokens, max_sequences)
        self.batch: StepBatch | None = None
        self.live: dict[str, Request] = {}
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.open: set[tuple[str, int]] = set()
        self.next_id = self.now_ms = 0
        self.busy: set[int] = set()
        """Pages that the step in flight reads or writes; the device is done with them when it is applied."""
        allocate = self.pool.allocate

        def checked() -> int:
            page = allocate()
            assert page not in self.busy, "a page of the step in flight was given away"
            return page

        self.pool.allocate = checked  # type: ignore[method-assign]

    @rule(
        prompt=PROMPTS,
        output=st.integers(1, 12),
        n=st.integers(1, 3),
        eos=TOKENS,
        stop=TOKENS,
        ignore_eos=st.booleans(),
        min_tokens=st.integers(0, 3),
        seed=st.none() | st.integers(0, 2),
        salt=st.sampled_from([b"", b"", b"s"]),
    )
    def admit(
        self,
        prompt: list[int],
        output: int,
        n: int,
        eos: list[int],
        stop: list[int],
        ignore_eos: bool,
        min_tokens: int,
        seed: int | None,
        salt: bytes,
    ) -> None:
        request = Request(
            request_id=f"r{self.next_id}",
            prompt=tuple(prompt),
            max_output_tokens=output,
            n=n,
            params=SamplingParams(seed=seed),
            eos_ids=tuple(eos),
            ignore_eos=ignore_eos,
            min_tokens=min_tokens,
            stop_token_ids=tuple(stop),
            salt=salt,
        )
        self.next_id += 1
        before = self.ledger.snapshot()
        answer = self.scheduler.try_admit(request, self.now_ms)
        if isinstance(answer, Grant):
            self.live[request.request_id] = request
            self.open |= {(request.request_id, choice) for choice in range(n)}
        else:
            assert self.ledger.snapshot() == before

    @precondition(lambda self: self.batch is None)
    @rule()
    def schedule(self) -> None:
        self.now_ms += 1
        self.batch = self.scheduler.schedule(self.now_ms)
        assert (self.batch is None) == (not self.live)
        self.no_step_writes_what_another_has_in_the_cache()
        self.busy = touched(self.batch, self.pool.page_tokens) if self.batch else set()

    def no_step_writes_what_another_has_in_the_cache(self) -> None:
        page_tokens = self.pool.page_tokens
        written = {
            (chunk.pages[position // page_tokens], position % page_tokens): chunk.seq_id
            for chunk in (self.batch.chunks if self.batch else ())
            for position in range(chunk.start, chunk.start + len(chunk.token_ids))
        }
        for group in self.scheduler._groups.values():
            for sequence in group.sequences:
                pages = list(sequence.pages)
                if sequence.copy_from is not None:
                    pages[sequence.computed // page_tokens] = sequence.copy_from
                for position in range(sequence.computed if sequence.end is None else 0):
                    where = (pages[position // page_tokens], position % page_tokens)
                    assert written.get(where, sequence.seq_id) == sequence.seq_id

    @precondition(lambda self: self.batch is not None)
    @rule()
    def apply(self) -> None:
        assert self.batch is not None
        batch, self.batch = self.batch, None
        self.now_ms += 1
        sampled = self.runner.step(batch)
        self.busy = set()
        for event in self.scheduler.apply(sampled, self.now_ms):
            self.take(event)

    def take(self, event: TokenEvent) -> None:
        choice = (event.request_id, event.choice)
        assert choice in self.open, "a token of a choice that has ended"
        self.outputs.setdefault(choice, []).append(event.token_id)
        tokens, reason = reference(self.live[event.request_id], event.choice)
        assert self.outputs[choice] == tokens[: len(self.outputs[choice])]
        assert (event.finish_reason == reason) == (len(self.outputs[choice]) == len(tokens))
        if event.finish_reason is not None:
            self.close([choice])

    def close(self, choices: list[tuple[str, int]]) -> None:
        self.open -= set(choices)
        for request_id, _ in choices:
            if not any(other == request_id for other, _ in self.open):
                self.live.pop(request_id, None)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        self.scheduler.abort(request_id)
        self.close([choice for choice in self.open if choice[0] == request_id])

    @precondition(lambda self: self.open & self.outputs.keys())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        choice = data.draw(st.sampled_from(sorted(self.open & self.outputs.keys())))
        self.scheduler.finish(*choice, "stop")
        self.close([choice])

    @precondition(lambda self: self.batch is not None)
    @rule()
    def abandon(self) -> None:
        self.batch, self.busy = None, set()
        self.scheduler.abandon()

    @invariant()
    def pages_of_a_step_in_flight_stay_held(self) -> None:
        """A page that nobody holds is free, or cached and may be taken."""
        if hasattr(self, "pool"):
            assert all(self.pool.refs(page) for page in self.busy), "a page of the step in flight was released"

    @invariant()
    def pages_add_up(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, ledger = self.pool, self.ledger
        refs = [pool.refs(page) for page in range(pool.pages)]
        assert refs == [ledger.holders(page) for page in range(pool.pages)]
        assert pool.held_pages == ledger.bound_pages == sum(1 for count in refs if count)
        assert pool.held_pages + pool.free_pages == pool.pages
        assert pool.held_pages <= ledger.charged_pages <= pool.pages
        if self.batch is None:
            assert {r for r in self.live if self.scheduler.is_live(r)} == set(self.live)
            assert ledger.snapshot().requests == len(self.live)
            assert self.scheduler.has_work == bool(self.live)
        stats = self.scheduler.stats()
        assert stats.running + stats.waiting == ledger.snapshot().requests
        assert 0 <= stats.prefix_hit_tokens <= stats.prefix_query_tokens

    @invariant()
    def every_cached_page_can_be_found(self) -> None:
        """No page in the cache has lost the page before it, and a held one holds the one before it."""
        if not hasattr(self, "pool") or not self.pool.prefix_cache:
            return
        reached: dict[bytes, int] = {}
        frontier = [self.pool.root(), self.pool.root(b"s")]
        while frontier:
            parent = frontier.pop()
            for tokens in product(range(VOCAB), repeat=self.pool.page_tokens):
                key = page_key(parent, tokens)
                found = self.pool.find([key])
                if found:
                    before = reached.get(parent)
                    assert before is None or self.pool.refs(before) >= self.pool.refs(found[0])
                    reached[key.digest] = found[0]
                    frontier.append(key.digest)
        registered = self.pool.cached_pages + sum(1 for page in reached.values() if self.pool.refs(page))
        assert len(reached) == registered

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        while self.live or self.batch is not None:
            if self.batch is None:
                self.schedule()
            else:
                self.apply()
                self.pages_add_up()
        assert (self.ledger.charged_pages, self.pool.held_pages) == (0, 0)
        assert self.pool.free_pages == self.pool.pages


SchedulerMachine.TestCase.settings = share(0.8, steps=40)
TestScheduler = SchedulerMachine.TestCase
