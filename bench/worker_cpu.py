"""Output tokens/s and time to first token of the worker on a CPU, beside `transformers` in the same run.

    OMP_NUM_THREADS=2 python bench/worker_cpu.py [--rounds 3] [--concurrency 1 8 32]

All requests of a round arrive at once, 64 prompt tokens each, and generate 64 tokens. Compared are the worker (real
scheduler, ledger and runner, BF16 pages; no HTTP), ``generate`` called for one request after the other, and
``generate`` on one static batch (its best case: equal lengths, so nothing is padded). All compute in fp32 on the same
weights. The three take turns in every round, so that whatever else the machine does meets them alike; printed are the
medians over the rounds, and the medians of each round's ratios.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
import transformers

from kvbudget.ledger import Grant, TokenLedger
from kvbudget_worker.batch import SamplingParams
from kvbudget_worker.blocks import BlockPool
from kvbudget_worker.model.parameters import load_parameters
from kvbudget_worker.requests import Request
from kvbudget_worker.runner import Runner
from kvbudget_worker.scheduler import Scheduler
from kvbudget_worker.tokenizer import Tokenizer
from kvbudget_worker.weights import open_checkpoint

PROMPT_TOKENS = 64
OUTPUT_TOKENS = 64
PAGE_TOKENS = 64
MAX_BATCHED_TOKENS = 512
PAGES = 200
SINGLE_REQUESTS = 2
"""How many requests "one at a time" is measured on: its rate does not depend on how many wait."""

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Result:
    """Output tokens per second over the whole round, and the mean time to first token of its requests."""

    tokens_per_second: float
    ttft_ms: float


def worker(runner: Runner, prompts: Prompts) -> Result:
    pool = BlockPool(PAGES, PAGE_TOKENS, prefix_cache=False)
    ledger = TokenLedger(PAGES, PAGE_TOKENS)
    limits = {"max_batched_tokens": MAX_BATCHED_TOKENS, "max_sequences": 64, "max_model_len": 1024}
    scheduler = Scheduler(pool, ledger, **limits)
    params = SamplingParams(temperature=0.0)
    first: dict[str, float] = {}
    tokens = 0
    started = time.perf_counter()
    for number, prompt in enumerate(prompts):
        request = Request(str(number), tuple(prompt), OUTPUT_TOKENS, params=params, ignore_eos=True)
        if not isinstance(scheduler.try_admit(request, 0), Grant):
            raise SystemExit(f"{len(prompts)} requests do not fit {PAGES} pages")
    while (batch := scheduler.schedule(0)) is not None:
        for event in scheduler.apply(runner.step(batch), 0):
            first.setdefault(event.request_id, time.perf_counter() - started)
            tokens += 1
    return Result(tokens / (time.perf_counter() - started), 1000 * statistics.mean(first.values()))


class _FirstToken(transformers.StoppingCriteria):  # type: ignore[misc]  # transformers is untyped here
    """Notes when the first token is there; never stops anything."""

    def __init__(self) -> None:
        self.at: float | None = None

    def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        if self.at is None:
            self.at = time.perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def generate(model: transformers.PreTrainedModel, batches: Sequence[Prompts]) -> Result:
    """``generate`` on each of ``batches`` in turn; the time to first token is counted from its own batch's start."""
    firsts = []
    started = time.perf_counter()
    for batch in batches:
        ids = torch.tensor(batch)
        clock = _FirstToken()
        begun = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=OUTPUT_TOKENS,
                max_new_tokens=OUTPUT_TOKENS,
                do_sample=False,
                pad_token_id=2,
                stopping_criteria=[clock],
            )
        firsts.append((clock.at or begun) - begun)
    tokens = OUTPUT_TOKENS * sum(len(batch) for batch in batches)
    return Result(tokens / (time.perf_counter() - started), 1000 * statistics.mean(firsts))


def topic_prompts(tokenizer: Tokenizer, count: int) -> Prompts:
    ids = tokenizer.encode("\n".join(topics.values())[:40_000])
    return [ids[i * PROMPT_TOKENS : (i + 1) * PROMPT_TOKENS] for i in range(count)]


def _median(results: Sequence[Result]) -> Result:
    return Result(
        statistics.median(r.tokens_per_second for r in results), statistics.median(r.ttft_ms for r in results)
    )


def _ratio(ours: Sequence[Result], others: Sequence[Result]) -> float:
    return statistics.median(a.tokens_per_second / b.tokens_per_second for a, b in zip(ours, others, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbudget"
    parser.add_argument("--weights", type=Path, default=cache / "weights" / "smollm2")
    parser.add_argument(
        "--weight-precision", choices=("FP32", "BF16"), default="FP32", help="how the worker holds them"
    )
    options = parser.parse_args()

    checkpoint = open_checkpoint(options.weights)
    held = torch.bfloat16 if options.weight_precision == "BF16" else torch.float32
    parameters = load_parameters(checkpoint, held, torch.device("cpu"))
    runner = Runner(
        checkpoint.config,
        parameters,
        pages=PAGES,
        page_tokens=PAGE_TOKENS,
        precision="BF16",
        max_model_len=1024,
        compute_dtype=torch.float32,
    )
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(options.weights, dtype=torch.float32).eval()
    prompts = topic_prompts(Tokenizer.load(options.weights), max(options.concurrency))
    print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens, {options.rounds} rounds; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    print(
        "concurrency  worker tok/s  TTFT ms | one at a time tok/s  TTFT ms  ratio | static batch tok/s  TTFT ms  ratio"
    )
    worker(runner, prompts[:1])
    for concurrency in options.concurrency:
        mine = prompts[:concurrency]
        runs: dict[str, Callable[[], Result]] = {
            "worker": lambda mine=mine: worker(runner, mine),  # type: ignore[misc]
            "single": lambda: generate(model, [[p] for p in prompts[:SINGLE_REQUESTS]]),
            "static": lambda mine=mine: generate(model, [mine]),  # type: ignore[misc]
        }
        results: dict[str, list[Result]] = {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, run in runs.items():
                results[name].append(run())
        ours, single, static = (_median(results[name]) for name in ("worker", "single", "static"))
        print(
            f"{concurrency:11d}  {ours.tokens_per_second:12.1f}  {ours.ttft_ms:7.0f} | "
            f"{single.tokens_per_second:19.1f}  {single.ttft_ms:7.0f}  "
            f"{_ratio(results['worker'], results['single']):4.1f}x | "
            f"{static.tokens_per_second:18.1f}  {static.ttft_ms:7.0f}  "
            f"{_ratio(results['worker'], results['static']):4.1f}x",
            flush=True,
        )
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
