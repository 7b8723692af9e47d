"""A model of the KV cache that knows what is in every slot, and a runner over it that checks every read and write.

A slot remembers the whole prefix of the token in it (as a chained hash), so a wrong page, a page taken too early or a
missing copy shows at the step that reads it. The next token is a pure function of the prefix: what a choice generates
can be compared with :func:`reference`, which has no cache at all.
"""

from kvbudget_worker.batch import Sampled, StepBatch
from kvbudget_worker.blocks import BlockPool
from kvbudget_worker.requests import Request

VOCAB = 4


def prefix_hashes(tokens: tuple[int, ...]) -> list[int]:
    hashes: list[int] = []
    for token in tokens:
        hashes.append(hash((hashes[-1] if hashes else 0, token)))
    return hashes


def next_token(prefix_hash: int, seed: int | None, banned: tuple[int, ...]) -> int:
    allowed = [token for token in range(VOCAB) if token not in banned]
    return allowed[hash((prefix_hash, seed)) % len(allowed)]


def reference(request: Request, choice: int) -> tuple[list[int], str]:
    """What a choice must generate, and how it must end."""
    output: list[int] = []
    while True:
        banned = request.ending_ids if len(output) < request.min_tokens else ()
        prefix = prefix_hashes(request.prompt + tuple(output))[-1]
        output.append(next_token(prefix, request.choice_params(choice).seed, banned))
        if output[-1] in request.ending_ids and output[-1] not in banned:
            return output, "stop"
        if len(output) == request.max_output_tokens:
            return output, "length"


class MemoryRunner:
    """Stands where the model runner stands: same contract, a table of prefixes instead of tensors."""

    def __init__(self, pool: BlockPool, max_batched_tokens: int, max_sequences: int) -> None:
        self.pool = pool
        self.max_batched_tokens = max_batched_tokens
        self.max_sequences = max_sequences
        self.slots: dict[tuple[int, int], int] = {}
        self.before: dict[int, int] = {}

    def step(self, batch: StepBatch) -> list[Sampled]:
        assert batch.chunks
        assert batch.tokens <= self.max_batched_tokens
        assert len(batch.chunks) <= self.max_sequences
        assert len({chunk.seq_id for chunk in batch.chunks}) == len(batch.chunks)
        page_tokens = self.pool.page_tokens
        copied = {
            (target, slot): self.slots.get((source, slot))
            for source, target in batch.copies
            for slot in range(page_tokens)
        }
        self.slots.update({where: what for where, what in copied.items() if what is not None})
        written: set[tuple[int, int]] = set()
        last: dict[int, int] = {}
        for chunk in batch.chunks:
            before = self.slots[self._slot(chunk.pages, chunk.start - 1)] if chunk.start else 0
            for position, token in enumerate(chunk.token_ids, chunk.start):
                where = self._slot(chunk.pages, position)
                assert where not in written, "two tokens in one slot"
                written.add(where)
                self.before[hash((before, token))] = before
                before = self.slots[where] = hash((before, token))
            last[chunk.seq_id] = before
        for chunk in batch.chunks:
            # Attention reads every position from the cache: together they must be one prefix, this sequence's.
            expected = last[chunk.seq_id]
            for position in reversed(range(chunk.start + len(chunk.token_ids))):
                assert self.slots[self._slot(chunk.pages, position)] == expected, "read another sequence's token"
                expected = self.before[expected]
        return [
            Sampled(chunk.seq_id, next_token(last[chunk.seq_id], chunk.params.seed, chunk.banned_ids))
            for chunk in batch.chunks
            if chunk.sample
        ]

    def _slot(self, pages: tuple[int, ...], position: int) -> tuple[int, int]:
        page = pages[position // self.pool.page_tokens]
        assert self.pool.refs(page) > 0, "used a page that nobody holds"
        return page, position % self.pool.page_tokens
