"""Pages of 8 and 4 bits in the worker: the same text alone and in company, from the cache or not, and how far the real
model's text moves."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from kv_precision import Accuracy, compare, logits, text_windows
from kvbudget.ledger import Grant, TokenLedger
from kvbudget_kernels.storage import PRECISIONS
from kvbudget_worker.batch import SamplingParams
from kvbudget_worker.blocks import BlockPool
from kvbudget_worker.model.parameters import load_parameters
from kvbudget_worker.requests import Request
from kvbudget_worker.runner import Runner
from kvbudget_worker.scheduler import Scheduler
from kvbudget_worker.tokenizer import Tokenizer
from kvbudget_worker.weights import open_checkpoint
from support.stepping import alone, together

MakeRunner = Callable[..., Runner]
SMALL = [precision for precision in PRECISIONS if precision in ("FP8E4M3", "INT8", "INT4")]
TIE_GAP = 0.05
WITH_LOGPROBS = SamplingParams(temperature=0.0, logprobs=2)


Step = tuple[int, float | None, tuple[tuple[int, float], ...]]


@dataclass(frozen=True)
class Answer:
    """``steps``: (token, log probability, alternatives) of every choice's steps, in order of their coming."""

    steps: list[Step]
    cached_tokens: int


class Serving:
    """One runner behind a real scheduler, asked for one request after the other."""

    def __init__(self, runner: Runner, max_batched_tokens: int) -> None:
        self.runner = runner
        self.pool = BlockPool(runner.pages, runner.cache.page_tokens, prefix_cache=True)
        self.ledger = TokenLedger(runner.pages, runner.cache.page_tokens)
        self.scheduler = Scheduler(
            self.pool, self.ledger, max_batched_tokens=max_batched_tokens, max_sequences=8, max_model_len=512
        )

    def ask(self, name: str, prompt: list[int], count: int, n: int = 1, abort_after: int | None = None) -> Answer:
        request = Request(name, tuple(prompt), count, n=n, params=WITH_LOGPROBS, ignore_eos=True)
        assert isinstance(self.scheduler.try_admit(request, 0), Grant)
        steps: list[Step] = []
        cached_tokens = 0
        while (batch := self.scheduler.schedule(0)) is not None:
            if len(steps) == abort_after:
                self.scheduler.abort(name)
            for event in self.scheduler.apply(self.runner.step(batch), 0):
                steps.append((event.token_id, event.logprob, event.top))
                cached_tokens = event.cached_tokens
        assert (self.ledger.charged_pages, self.pool.held_pages) == (0, 0)
        return Answer(steps, cached_tokens)


PROMPT = [(11 * i + i * i) % 256 for i in range(40)]


@pytest.mark.parametrize("precision", SMALL)
def test_a_batch_generates_as_each_alone_up_to_the_first_near_tie(precision: str, make_runner: MakeRunner) -> None:
    runner = make_runner(pages=60, precision=precision)
    prompts = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate([1, 16, 17, 40, 33, 5])]
    outputs = together(runner, prompts, 20, max_batched_tokens=24, params=WITH_LOGPROBS)
    compared = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        for token, expected in zip(output, alone(runner, prompt, 20), strict=True):
            if token.gap is not None and token.gap < TIE_GAP:
                break
            assert token.token_id == expected
            compared += 1
    assert compared >= 60


@pytest.mark.parametrize("precision", SMALL)
def test_a_prefix_hit_is_bit_by_bit_what_no_hit_is(precision: str, make_runner: MakeRunner) -> None:
    """The prompt in chunks of 32 and 8 tokens, or its first 32 from the cache: the last chunk is the same step."""
    cold = Serving(make_runner(precision=precision), max_batched_tokens=32).ask("cold", PROMPT, 12)
    serving = Serving(make_runner(precision=precision), max_batched_tokens=32)
    serving.ask("first", [*PROMPT[:32], 1, 2, 3], 7)
    warm = serving.ask("warm", PROMPT, 12)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 32)
    assert warm.steps == cold.steps


@pytest.mark.parametrize("precision", SMALL)
def test_choices_on_copied_pages_and_what_follows_an_abort_are_the_same(
    precision: str, make_runner: MakeRunner
) -> None:
    """A copy of a page takes its scales along, and pages that an aborted request left are as good as new."""
    serving = Serving(make_runner(precision=precision, pages=12), max_batched_tokens=64)
    want = [token for token, *_ in serving.ask("one", PROMPT, 10).steps]
    for round_ in range(3):
        serving.ask(f"gone {round_}", [7, *PROMPT, round_], 60, abort_after=20 + round_)
        steps = serving.ask(f"three {round_}", PROMPT, 10, n=3).steps
        tokens = [token for token, *_ in steps]
        assert sorted(tokens) == sorted(3 * want)


# --- the real model ---------------------------------------------------------------------------------------------------

WINDOW_TOKENS = 256


@pytest.fixture(scope="module")
def accuracies(smollm2: Path) -> dict[str, Accuracy]:
    """Of 256 tokens of Python's documentation, against FP32 pages."""
    checkpoint = open_checkpoint(smollm2)
    parameters = load_parameters(checkpoint, torch.float32, torch.device("cpu"))
    (ids,) = text_windows(Tokenizer.load(smollm2), 1, WINDOW_TOKENS)
    exact = logits(checkpoint.config, parameters, "FP32", ids)
    return {
        precision: compare(exact, logits(checkpoint.config, parameters, precision, ids), ids)
        for precision in ("BF16", *SMALL)
    }


@pytest.mark.weights
@pytest.mark.parametrize(
    ("precision", "change", "error", "agreement"),
    [("BF16", 0.005, 0.01, 0.98), ("INT8", 0.01, 0.03, 0.95), ("FP8E4M3", 0.02, 0.06, 0.9), ("INT4", 0.2, 0.2, 0.75)],
)
def test_the_real_models_predictions_move_no_further_than_measured(
    precision: str, change: float, error: float, agreement: float, accuracies: dict[str, Accuracy]
) -> None:
    found, whole = accuracies[precision], accuracies["BF16"]
    assert abs(found.perplexity / whole.perplexity - 1) <= change
    assert 0 < found.logit_error <= error
    assert found.agreement >= agreement
