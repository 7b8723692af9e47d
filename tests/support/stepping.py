"""Generate with a real runner: one sequence by itself, or many through the real scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvbudget.ledger import Grant, TokenLedger
from kvbudget_worker.batch import Chunk, SamplingParams, StepBatch
from kvbudget_worker.blocks import BlockPool
from kvbudget_worker.requests import Request
from kvbudget_worker.runner import Runner
from kvbudget_worker.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Token:
    """A generated token, and the gap between the two best log probabilities where these were asked for."""

    token_id: int
    gap: float | None = None


def alone(runner: Runner, prompt: Sequence[int], count: int, params: SamplingParams = GREEDY) -> list[int]:
    """``count`` tokens after ``prompt``, one sequence in the batch, its pages in descending order."""
    page_tokens = runner.cache.page_tokens
    needed = -(-(len(prompt) + count) // page_tokens)
    pages = tuple(range(runner.pages - 1, runner.pages - 1 - needed, -1))
    output: list[int] = []
    tokens, start = tuple(prompt), 0
    for _ in range(count):
        chunk = Chunk(0, tokens, start, pages, True, params, output_ids=tuple(output))
        (result,) = runner.step(StepBatch((chunk,)))
        start += len(tokens)
        tokens = (result.token_id,)
        output.append(result.token_id)
    return output


def together(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    max_batched_tokens: int,
    params: SamplingParams = GREEDY,
    arrivals_per_step: int = 2,
) -> list[list[Token]]:
    """``count`` tokens after each prompt through the real scheduler; requests arrive while others decode."""
    pool = BlockPool(runner.pages, runner.cache.page_tokens, prefix_cache=True)
    ledger = TokenLedger(runner.pages, runner.cache.page_tokens)
    scheduler = Scheduler(
        pool, ledger, max_batched_tokens=max_batched_tokens, max_sequences=len(prompts), max_model_len=4096
    )
    outputs: list[list[Token]] = [[] for _ in prompts]
    coming = list(enumerate(prompts))
    now_ms = 0
    while coming or scheduler.has_work:
        for number, prompt in coming[:arrivals_per_step]:
            request = Request(str(number), tuple(prompt), count, params=params, ignore_eos=True, arrived_ms=now_ms)
            assert isinstance(scheduler.try_admit(request, now_ms), Grant)
        del coming[:arrivals_per_step]
        batch = scheduler.schedule(now_ms)
        assert batch is not None
        for event in scheduler.apply(runner.step(batch), now_ms):
            gap = event.top[0][1] - event.top[1][1] if len(event.top) > 1 else None
            outputs[int(event.request_id)].append(Token(event.token_id, gap))
        now_ms += 10
    assert ledger.charged_pages == 0
    return outputs
