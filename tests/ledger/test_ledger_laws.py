"""The ledger never passes its capacity, is exact at each step, and returns to zero."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvbudget.contract import MAX_RETRY_AFTER_MS
from kvbudget.ledger import Grant, RejectKind, TokenLedger, pages_needed
from support.laws import share


class LedgerMachine(RuleBasedStateMachine):
    """Against a model that only knows who holds which page how often, and how many pages are still unbound."""

    @initialize(capacity=st.integers(1, 24), page_tokens=st.sampled_from([1, 4, 16]))
    def start(self, capacity: int, page_tokens: int) -> None:
        self.ledger = TokenLedger(capacity, page_tokens)
        self.capacity, self.page_tokens = capacity, page_tokens
        self.holds: dict[str, Counter[int]] = {}
        self.unbound: dict[str, int] = {}
        self.now_ms = self.next_id = 0

    def held(self) -> set[int]:
        return {page for holds in self.holds.values() for page in holds.elements()}

    def draw_request(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.holds)))

    @rule(data=st.data(), prompt=st.integers(1, 80), output=st.integers(1, 80), n=st.integers(1, 4))
    def reserve(self, data: st.DataObject, prompt: int, output: int, n: int) -> None:
        longest = min(prompt // self.page_tokens, self.capacity)
        cached = data.draw(st.lists(st.integers(0, self.capacity - 1), unique=True, max_size=longest))
        request_id = f"r{self.next_id}"
        self.next_id += 1
        pages = pages_needed(self.page_tokens, prompt, output, n)
        new = pages - len(set(cached) & self.held())
        free = self.ledger.free_pages
        answer = self.ledger.reserve(
            request_id, prompt_tokens=prompt, output_tokens=output, n=n, cached_pages=cached, now_ms=self.now_ms
        )
        if isinstance(answer, Grant):
            assert (answer.pages, answer.charged_pages) == (pages, new)
            assert new <= free
            self.holds[request_id] = Counter(cached)
            self.unbound[request_id] = pages - len(cached)
        else:
            assert (answer.kind is RejectKind.NEVER_FITS) == (pages > self.capacity)
            assert pages > self.capacity or new > free
            assert 1 <= answer.retry_after_ms <= MAX_RETRY_AFTER_MS

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def bind_where_it_may(self, data: st.DataObject) -> None:
        request_id = self.draw_request(data)
        unheld = sorted(set(range(self.capacity)) - self.held())
        if self.unbound[request_id]:
            assert unheld, "a reserved page must always be there"
            page = data.draw(st.sampled_from(unheld))
            self.ledger.bind(request_id, page)
            self.unbound[request_id] -= 1
            self.holds[request_id][page] += 1

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def share_a_held_page(self, data: st.DataObject) -> None:
        request_id, page = self.draw_request(data), data.draw(st.sampled_from(sorted(self.held())))
        self.ledger.share(request_id, page)
        self.holds[request_id][page] += 1

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def give_a_page_back(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(r for r, holds in self.holds.items() if holds.total())))
        page = data.draw(st.sampled_from(sorted(set(self.holds[request_id].elements()))))
        self.ledger.unbind(request_id, page)
        self.holds[request_id][page] -= 1

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def relinquish(self, data: st.DataObject) -> None:
        request_id = self.draw_request(data)
        pages = data.draw(st.integers(0, self.unbound[request_id]))
        self.ledger.relinquish(request_id, pages)
        self.unbound[request_id] -= pages

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), tokens=st.integers(1, 80))
    def progress(self, data: st.DataObject, tokens: int) -> None:
        self.ledger.progress(self.draw_request(data), tokens, self.now_ms)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), passed_ms=st.integers(0, 100_000))
    def settle(self, data: st.DataObject, passed_ms: int) -> None:
        request_id = self.draw_request(data)
        self.now_ms += passed_ms
        self.ledger.settle(request_id)
        del self.holds[request_id], self.unbound[request_id]

    @invariant()
    def the_books_are_exact(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger = self.ledger
        assert ledger.bound_pages == len(self.held())
        assert ledger.charged_pages == len(self.held()) + sum(self.unbound.values())
        assert 0 <= ledger.bound_pages <= ledger.charged_pages <= self.capacity
        assert ledger.free_pages == self.capacity - ledger.charged_pages
        assert ledger.snapshot().requests == len(self.holds)
        for page in range(self.capacity):
            assert ledger.holders(page) == sum(holds[page] for holds in self.holds.values())

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            for request_id in list(self.holds):
                self.ledger.settle(request_id)
            assert (self.ledger.charged_pages, self.ledger.free_pages) == (0, self.capacity)


LedgerMachine.TestCase.settings = share(0.8)
TestLedger = LedgerMachine.TestCase
