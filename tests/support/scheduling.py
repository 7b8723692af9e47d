"""A scheduler that tests drive step by step, with a runner that checks every page it reads."""

from kvbudget.ledger import Grant, Reject, TokenLedger
from kvbudget_worker.batch import StepBatch
from kvbudget_worker.blocks import BlockPool
from kvbudget_worker.requests import Request, TokenEvent
from kvbudget_worker.scheduler import Scheduler
from support.kv_memory import MemoryRunner


class Worker:
    """A scheduler with its pool, its ledger and a runner that checks every page."""

    def __init__(
        self,
        pages: int = 64,
        page_tokens: int = 4,
        *,
        max_batched_tokens: int = 16,
        max_sequences: int = 8,
        prefix_cache: bool = True,
    ) -> None:
        self.pool = BlockPool(pages, page_tokens, prefix_cache=prefix_cache)
        self.ledger = TokenLedger(pages, page_tokens)
        self.scheduler = Scheduler(
            self.pool,
            self.ledger,
            max_batched_tokens=max_batched_tokens,
            max_sequences=max_sequences,
            max_model_len=pages * page_tokens,
        )
        self.runner = MemoryRunner(self.pool, max_batched_tokens, max_sequences)
        self.now_ms = 0

    def admit(self, request_id: str, prompt: range | list[int], output: int, **fields: object) -> Grant:
        answer = self.try_admit(request_id, prompt, output, **fields)
        assert isinstance(answer, Grant)
        return answer

    def try_admit(self, request_id: str, prompt: range | list[int], output: int, **fields: object) -> Grant | Reject:
        request = Request(request_id, tuple(prompt), output, **fields)  # type: ignore[arg-type]
        return self.scheduler.try_admit(request, self.now_ms)

    def step(self) -> tuple[StepBatch, list[TokenEvent]]:
        self.now_ms += 10
        batch = self.scheduler.schedule(self.now_ms)
        assert batch is not None
        return batch, self.scheduler.apply(self.runner.step(batch), self.now_ms)

    def run(self) -> dict[tuple[str, int], tuple[list[int], str]]:
        """Steps until nothing is live; the tokens and the finish reason of every choice."""
        outputs: dict[tuple[str, int], tuple[list[int], str]] = {}
        while self.scheduler.has_work:
            for event in self.step()[1]:
                tokens, _ = outputs.setdefault((event.request_id, event.choice), ([], ""))
                tokens.append(event.token_id)
                outputs[event.request_id, event.choice] = (tokens, event.finish_reason or "")
        return outputs

    def assert_empty(self) -> None:
        assert not self.scheduler.has_work
        assert (self.ledger.charged_pages, self.pool.held_pages) == (0, 0)
        assert self.pool.free_pages == self.pool.pages


def rows(batch: StepBatch) -> list[tuple[int, int, int]]:
    """(sequence, first position, tokens) of each chunk."""
    return [(chunk.seq_id, chunk.start, len(chunk.token_ids)) for chunk in batch.chunks]
