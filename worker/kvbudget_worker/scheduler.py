"""Which tokens of which requests are computed next: continuous batching over reserved pages.

A step takes every sequence that is decoding first (one token each), then fills the rest of ``max_batched_tokens`` with
prompt chunks, first come first served. So a long prompt is cut into chunks and never holds up the others' tokens, and
a step's cost stays bounded. At most ``max_sequences`` sequences are in progress; admitted ones beyond that wait.

Pages are reserved in full when a request is admitted (:mod:`kvbudget.ledger`) and become physical ones as it grows, so
a step always finds its pages and nothing is ever preempted. The ledger's holds and the pool's counts go in step: each
page has as many holds in the one as in the other.

Between :meth:`Scheduler.schedule` and :meth:`Scheduler.apply` a step is in flight on another thread. What ends in that
time keeps its pages until the step is applied.
"""

from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from kvbudget.errors import LedgerError
from kvbudget.ledger import Grant, Reject, TokenLedger
from kvbudget_worker.batch import Sampled, StepBatch
from kvbudget_worker.blocks import BlockPool, page_key, prompt_keys
from kvbudget_worker.requests import EndReason, FinishReason, Request, SchedulerStats, TokenEvent
from kvbudget_worker.sequences import Group, Sequence


class Scheduler:
    """See the module. Not thread-safe: the event loop's thread owns it, the pool and the ledger.

    A broken precondition raises LedgerError. ``pool`` and ``ledger`` must have the same pages and page size and belong
    to this scheduler alone.
    """

    def __init__(
        self,
        pool: BlockPool,
        ledger: TokenLedger,
        *,
        max_batched_tokens: int,
        max_sequences: int,
        max_model_len: int,
    ) -> None:
        if (pool.pages, pool.page_tokens) != (ledger.capacity_pages, ledger.page_tokens):
            raise LedgerError(
                f"pool of {pool.pages} × {pool.page_tokens} tokens, ledger of {ledger.capacity_pages} × "
                f"{ledger.page_tokens}: they must be equal"
            )
        if max_batched_tokens < 1 or max_sequences < 1:
            raise LedgerError(
                f"{max_batched_tokens} batched tokens, {max_sequences} sequences: both must be at least 1"
            )
        self._pool = pool
        self._ledger = ledger
        self._max_batched_tokens = max_batched_tokens
        self._max_sequences = max_sequences
        self._max_model_len = max_model_len
        self._groups: dict[str, Group] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._step: dict[int, tuple[Sequence, int, bool]] | None = None
        self._next_seq_id = 0
        self._prefix_query_tokens = 0
        self._prefix_hit_tokens = 0
        self._ended: Counter[EndReason] = Counter()

    # --- queries -----------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """A request is live, so there is a step to schedule or to apply."""
        return bool(self._groups)

    @property
    def in_flight(self) -> bool:
        """A step was scheduled and not yet applied."""
        return self._step is not None

    def is_live(self, request_id: str) -> bool:
        """The request was granted and still holds pages."""
        return request_id in self._groups

    def stats(self) -> SchedulerStats:
        running = sum(1 for group in self._groups.values() if group.started)
        return SchedulerStats(
            running=running,
            waiting=len(self._groups) - running,
            used_pages=self._ledger.bound_pages,
            cached_pages=self._pool.cached_pages,
            prefix_query_tokens=self._prefix_query_tokens,
            prefix_hit_tokens=self._prefix_hit_tokens,
            ended=dict(self._ended),
        )

    # --- admission ---------------------------------------------------------------------------------------------------

    def try_admit(self, request: Request, now_ms: int, *, ahead_pages: int = 0) -> Grant | Reject:
        """Reserves all pages of a request and queues it, or changes nothing. ``ahead_pages``: pages of requests that
        wait before it (they lengthen the forecast of a Reject)."""
        if request.request_id in self._groups:
            raise LedgerError(f"request {request.request_id!r} is live already")
        if len(request.prompt) + request.max_output_tokens > self._max_model_len:
            raise LedgerError(
                f"request {request.request_id!r}: {len(request.prompt)} + {request.max_output_tokens} tokens are above "
                f"the model's {self._max_model_len}"
            )
        page_tokens = self._pool.page_tokens
        root = self._pool.root(request.salt)
        keys = prompt_keys(request.prompt, page_tokens, root) if self._pool.prefix_cache else []
        cached = self._pool.find(keys)
        answer = self._ledger.reserve(
            request.request_id,
            prompt_tokens=len(request.prompt),
            output_tokens=request.max_output_tokens,
            n=request.n,
            cached_pages=cached,
            ahead_pages=ahead_pages,
            now_ms=now_ms,
        )
        if isinstance(answer, Reject):
            return answer
        for page in cached:
            self._pool.acquire(page)
        shared_pages = len(request.prompt) // page_tokens
        sequence_pages = -(-(len(request.prompt) + request.max_output_tokens) // page_tokens)
        group = Group(request, root, keys, len(cached) * page_tokens, sequence_pages - shared_pages)
        leader = self._new_sequence(group, unbound_pages=sequence_pages - len(cached))
        leader.pages = tuple(cached)
        leader.keys = keys[: len(cached)]
        leader.computed = group.cached_tokens
        for _ in range(1, request.n):
            self._new_sequence(group, unbound_pages=group.private_pages)
        self._groups[request.request_id] = group
        self._waiting.append(leader)
        return answer

    def _new_sequence(self, group: Group, *, unbound_pages: int) -> Sequence:
        choice = len(group.sequences)
        sequence = Sequence(self._next_seq_id, group, choice, group.request.choice_params(choice), unbound_pages)
        self._next_seq_id += 1
        group.sequences.append(sequence)
        group.live_sequences += 1
        return sequence

    # --- a step ------------------------------------------------------------------------------------------------------

    def schedule(self, now_ms: int) -> StepBatch | None:
        """The next step, now in flight; None when nothing is live."""
        if self._step is not None:
            raise LedgerError("a step is in flight; apply it first")
        plan = self._pick(now_ms)
        if not plan:
            return None
        chunks, copies = [], []
        self._step = {}
        for sequence, count in plan:
            self._grow(sequence, sequence.computed + count)
            chunk = sequence.chunk(count)
            if sequence.copy_from is not None:
                copies.append((sequence.copy_from, sequence.pages[-1]))
            chunks.append(chunk)
            self._step[sequence.seq_id] = (sequence, count, chunk.sample)
        return StepBatch(tuple(chunks), tuple(copies))

    def _pick(self, now_ms: int) -> list[tuple[Sequence, int]]:
        """Sequences of the next step with their token counts; moves waiting ones to the running."""
        decoding = [s for s in self._running if s.decoding]
        chosen = decoding[: self._max_batched_tokens]
        if len(chosen) < len(decoding):
            # More decode rows than tokens: they take turns.
            taken = {s.seq_id for s in chosen}
            self._running = [s for s in self._running if s.seq_id not in taken] + chosen
        plan = [(sequence, 1) for sequence in chosen]
        tokens = self._max_batched_tokens - len(plan)
        prefilling = deque(s for s in self._running if not s.decoding)
        while tokens:
            if prefilling:
                sequence = prefilling.popleft()
            elif self._waiting and len(self._running) < self._max_sequences:
                sequence = self._waiting.popleft()
                self._start(sequence, now_ms)
            else:
                break
            count = min(sequence.known - sequence.computed, tokens)
            plan.append((sequence, count))
            tokens -= count
        return plan

    def _start(self, sequence: Sequence, now_ms: int) -> None:
        self._running.append(sequence)
        group = sequence.group
        if not group.started:
            group.started = True
            group.started_ms = now_ms
            self._find_more(sequence)

    def _find_more(self, leader: Sequence) -> None:
        """While it waited, another request may have computed more of the same prefix: share that instead of computing
        it. A reserved page is given up for each page shared, so the charge never grows."""
        group = leader.group
        for page in self._pool.find(group.keys)[len(leader.pages) :]:
            self._ledger.relinquish(group.request.request_id, 1)
            leader.unbound_pages -= 1
            self._hold(group, page)
            leader.keys.append(group.keys[len(leader.pages)])
            leader.pages += (page,)
        group.cached_tokens = leader.computed = len(leader.pages) * self._pool.page_tokens
        # Counted here and not at the grant: one of several prompts may be granted and taken back many times over.
        if self._pool.prefix_cache:
            self._prefix_query_tokens += len(group.request.prompt)
            self._prefix_hit_tokens += group.cached_tokens

    def apply(self, sampled: Seq[Sampled], now_ms: int) -> list[TokenEvent]:
        """Takes the results of the step in flight: one Sampled for each chunk that asked for one, in any order."""
        if self._step is None:
            raise LedgerError("no step is in flight")
        by_id = {result.seq_id: result for result in sampled}
        wanted = {seq_id for seq_id, (_, _, sample) in self._step.items() if sample}
        if by_id.keys() != wanted or len(by_id) != len(sampled):
            raise LedgerError(f"sampled sequences {sorted(by_id)}, but the step asked for {sorted(wanted)}")
        step, self._step = self._step, None
        events: list[TokenEvent] = []
        for sequence, count, sample in step.values():
            sequence.computed += count
            self._end_copy(sequence)
            self._register(sequence)
            if sample and sequence.end is None:
                events.append(self._take(sequence, by_id[sequence.seq_id], now_ms))
        self._release_ended(sequence for sequence, _, _ in step.values())
        return events

    def abandon(self) -> None:
        """The step in flight has failed: forgets it, as if it had not been scheduled. Nothing of it is trusted."""
        if self._step is None:
            raise LedgerError("no step is in flight")
        step, self._step = self._step, None
        self._release_ended(sequence for sequence, _, _ in step.values())

    def _take(self, sequence: Sequence, result: Sampled, now_ms: int) -> TokenEvent:
        group = sequence.group
        first_token = not sequence.output
        sequence.output += (result.token_id,)
        self._ledger.progress(group.request.request_id, len(sequence.output), now_ms)
        if first_token and sequence.choice == 0:
            for other in reversed(group.sequences[1:]):
                if other.end is None:
                    self._fork(sequence, other)
        reason = sequence.finish_reason()
        sequence.end = reason
        return TokenEvent(
            request_id=group.request.request_id,
            choice=sequence.choice,
            token_id=result.token_id,
            logprob=result.logprob,
            top=result.top,
            finish_reason=reason,
            started_ms=group.started_ms,
            cached_tokens=group.cached_tokens,
        )

    # --- pages -------------------------------------------------------------------------------------------------------

    def _hold(self, group: Group, page: int) -> None:
        self._ledger.share(group.request.request_id, page)
        self._pool.acquire(page)

    def _let_go(self, group: Group, page: int) -> None:
        self._ledger.unbind(group.request.request_id, page)
        self._pool.release(page)

    def _allocate(self, sequence: Sequence) -> int:
        page = self._pool.allocate()
        self._ledger.bind(sequence.group.request.request_id, page)
        sequence.unbound_pages -= 1
        return page

    def _grow(self, sequence: Sequence, tokens: int) -> None:
        """Makes the reserved pages for the first ``tokens`` positions physical."""
        wanted = -(-tokens // self._pool.page_tokens)
        if wanted > len(sequence.pages):
            sequence.pages += tuple(self._allocate(sequence) for _ in range(wanted - len(sequence.pages)))

    def _register(self, sequence: Sequence) -> None:
        """Makes newly filled pages findable. Where another request was first with the same content, goes on with that
        page and frees its own: so whoever holds a registered page holds all the registered pages before it."""
        if not self._pool.prefix_cache:
            return
        page_tokens = self._pool.page_tokens
        for index in range(len(sequence.keys), sequence.computed // page_tokens):
            parent = sequence.keys[-1].digest if sequence.keys else sequence.group.root
            key = page_key(parent, sequence.tokens(index * page_tokens, (index + 1) * page_tokens))
            own = sequence.pages[index]
            first = self._pool.register(own, key)
            if first is None:
                break
            if first != own:
                self._let_go(sequence.group, own)
                self._hold(sequence.group, first)
                sequence.pages = (*sequence.pages[:index], first, *sequence.pages[index + 1 :])
            sequence.keys.append(key)

    def _fork(self, leader: Sequence, other: Sequence) -> None:
        """Starts a further choice on the leader's prompt. Its first token needs the forward pass of the prompt's last
        token, so it computes that one again, in a private copy of that token's page (``copy_from`` until then): the
        shared page is never written again. Where the prompt fills its last page, the copy serves for that one step and
        its page then holds the first output tokens; so no page beyond the reservation is needed."""
        prompt_tokens = len(leader.group.request.prompt)
        prompt_pages = leader.pages[: -(-prompt_tokens // self._pool.page_tokens)]
        for page in prompt_pages:
            self._hold(leader.group, page)
        other.copy_from = prompt_pages[-1]
        other.pages = (*prompt_pages[:-1], self._allocate(other))
        other.keys = leader.keys[: prompt_tokens // self._pool.page_tokens]
        other.computed = prompt_tokens - 1
        # Before the requests that wait: this one was started earlier.
        self._waiting.appendleft(other)

    def _end_copy(self, sequence: Sequence) -> None:
        if sequence.copy_from is None:
            return
        source, sequence.copy_from = sequence.copy_from, None
        if sequence.computed % self._pool.page_tokens:
            self._let_go(sequence.group, source)
        else:
            sequence.pages = (*sequence.pages[:-1], source, sequence.pages[-1])

    # --- ends --------------------------------------------------------------------------------------------------------

    def abort(self, request_id: str) -> None:
        """Ends a request whose client is gone. Nothing happens if it is not live (it may just have ended)."""
        group = self._groups.get(request_id)
        if group is not None:
            self._end(group.sequences, "abort")

    def finish(self, request_id: str, choice: int, reason: FinishReason) -> None:
        """Ends one choice from outside, after one of its tokens (a stop string was seen). Nothing happens if it has
        ended already."""
        group = self._groups.get(request_id)
        if group is None:
            return
        if not group.sequences[choice].output:
            raise LedgerError(f"choice {choice} of request {request_id!r} has no token yet; abort the request instead")
        self._end(group.sequences[choice : choice + 1], reason)

    def _end(self, sequences: Iterable[Sequence], reason: EndReason) -> None:
        ending = [sequence for sequence in sequences if sequence.end is None]
        for sequence in ending:
            sequence.end = reason
        # Pages that the step in flight reads or writes are released when it is applied.
        in_flight = self._step or {}
        self._release_ended([sequence for sequence in ending if sequence.seq_id not in in_flight])

    def _release_ended(self, sequences: Iterable[Sequence]) -> None:
        """Releases what has ended among ``sequences``, none of which is in flight."""
        released = set()
        for sequence in sequences:
            if sequence.end is not None:
                self._ended[sequence.end] += 1
                self._release(sequence)
                released.add(sequence.seq_id)
        if released:
            self._running = [s for s in self._running if s.seq_id not in released]
            self._waiting = deque(s for s in self._waiting if s.seq_id not in released)

    def _release(self, sequence: Sequence) -> None:
        group = sequence.group
        request_id = group.request.request_id
        pages = sequence.pages if sequence.copy_from is None else (*sequence.pages, sequence.copy_from)
        # The end of the chain first: the pool then takes cached pages from the end of a chain.
        for page in reversed(pages):
            self._let_go(group, page)
        self._ledger.relinquish(request_id, sequence.unbound_pages)
        group.live_sequences -= 1
        if not group.live_sequences:
            self._ledger.settle(request_id)
            del self._groups[request_id]
