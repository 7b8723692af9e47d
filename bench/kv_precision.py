"""What a smaller KV precision costs in accuracy and in speed, with real weights on a CPU.

    OMP_NUM_THREADS=2 python bench/kv_precision.py [--windows 4] [--tokens 512] [--rounds 2] [--concurrency 8]

Accuracy: each window of text goes through the model once; its K and V are stored in pages and read back, so that each
position attends over stored keys and values as in serving. Everything else is FP32. Compared with FP32 pages on the
same tokens: perplexity, relative L2 error of the logits, share of positions whose likeliest token is the same, and the
mean KL divergence of the next token's distribution. Speed: the worker's own requests as in worker_cpu.py, all
precisions taking turns in every round; the median, and its ratio to BF16.
"""

import argparse
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch

from kvbudget.layout import pages_for
from kvbudget_kernels.storage import PRECISIONS, Layout
from kvbudget_worker.attention import PagedCache, TorchAttention
from kvbudget_worker.batch import Chunk, SamplingParams
from kvbudget_worker.model.config import ModelConfig
from kvbudget_worker.model.decoder import Decoder
from kvbudget_worker.model.parameters import Parameters, load_parameters
from kvbudget_worker.runner import Runner
from kvbudget_worker.tokenizer import Tokenizer
from kvbudget_worker.weights import open_checkpoint

PAGE_TOKENS = 64


@dataclass(frozen=True)
class Accuracy:
    """``agreement``: share of positions with the same likeliest token. ``divergence``: nats per token."""

    perplexity: float
    logit_error: float
    agreement: float
    divergence: float


@torch.inference_mode()
def logits(config: ModelConfig, parameters: Parameters, precision: str, token_ids: Sequence[int]) -> torch.Tensor:
    """fp32 [tokens, vocab]: after each token, what comes next, with KV pages in ``precision``."""
    layout = Layout.stored(precision, config.kv_heads, config.head_dim, PAGE_TOKENS)
    pages = pages_for(len(token_ids), PAGE_TOKENS)
    cache = PagedCache(layout, layers=config.layers, pages=pages, device=torch.device("cpu"))
    attention = TorchAttention(cache, config.attention_heads, torch.float32)
    decoder = Decoder(config, parameters, attention, len(token_ids), torch.float32)
    step = attention.plan([Chunk(0, tuple(token_ids), 0, tuple(range(pages)), True, SamplingParams())])
    positions = torch.arange(len(token_ids))
    return decoder.forward(torch.tensor(token_ids), positions, positions, step)


def compare(exact: torch.Tensor, got: torch.Tensor, token_ids: Sequence[int]) -> Accuracy:
    """``exact``, ``got``: [tokens, vocab] of the same tokens; the last row predicts what is not there."""
    want, have = (x[:-1].log_softmax(-1) for x in (exact, got))
    chosen = have.gather(1, torch.tensor(token_ids[1:]).unsqueeze(1))
    return Accuracy(
        perplexity=math.exp(-float(chosen.mean())),
        logit_error=float((got - exact).norm() / exact.norm()),
        agreement=float((got.argmax(-1) == exact.argmax(-1)).float().mean()),
        divergence=float((want.exp() * (want - have)).sum(-1).mean()),
    )


def text_windows(tokenizer: Tokenizer, windows: int, tokens: int) -> list[list[int]]:
    """Consecutive pieces of Python's own documentation."""
    ids = tokenizer.encode("\n".join(topics.values())[: 8 * windows * tokens])
    if len(ids) < windows * tokens:
        raise SystemExit(f"the text has {len(ids)} tokens; {windows} windows of {tokens} need more")
    return [ids[at : at + tokens] for at in range(0, windows * tokens, tokens)]


def _mean(found: Sequence[Accuracy]) -> Accuracy:
    return Accuracy(
        perplexity=math.exp(statistics.mean(math.log(a.perplexity) for a in found)),
        logit_error=statistics.mean(a.logit_error for a in found),
        agreement=statistics.mean(a.agreement for a in found),
        divergence=statistics.mean(a.divergence for a in found),
    )


def _speeds(
    config: ModelConfig, parameters: Parameters, tokenizer: Tokenizer, rounds: int, concurrency: int
) -> dict[str, list[float]]:
    """Output tokens per second of each round."""
    from worker_cpu import PAGES, topic_prompts, worker  # imports transformers, which the rest does not need

    prompts = topic_prompts(tokenizer, concurrency)
    found: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    for turn in range(rounds + 1):
        for precision in PRECISIONS:
            runner = Runner(
                config, parameters, pages=PAGES, page_tokens=PAGE_TOKENS, precision=precision, max_model_len=1024,
                compute_dtype=torch.float32,
            )  # fmt: skip
            speed = worker(runner, prompts if turn else prompts[:1]).tokens_per_second
            if turn:  # the first turn warms up
                found[precision].append(speed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=8)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbudget"
    parser.add_argument("--weights", type=Path, default=cache / "weights" / "smollm2")
    options = parser.parse_args()

    checkpoint = open_checkpoint(options.weights)
    config = checkpoint.config
    parameters = load_parameters(checkpoint, torch.float32, torch.device("cpu"))
    tokenizer = Tokenizer.load(options.weights)
    found: dict[str, list[Accuracy]] = {precision: [] for precision in PRECISIONS}
    for ids in text_windows(tokenizer, options.windows, options.tokens):
        exact = logits(config, parameters, "FP32", ids)
        for precision in PRECISIONS:
            found[precision].append(compare(exact, logits(config, parameters, precision, ids), ids))
    speeds = _speeds(config, parameters, tokenizer, options.rounds, options.concurrency) if options.rounds else None

    whole = _mean(found["FP32"]).perplexity
    print(
        f"{options.windows} windows of {options.tokens} tokens; {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}; load {os.getloadavg()[0]:.1f}"
    )
    print("precision  B/token  perplexity  change  logit error  same token  KL (nats)   tok/s  over BF16")
    for precision in PRECISIONS:
        row = _mean(found[precision])
        token_bytes = config.layers * Layout.stored(precision, config.kv_heads, config.head_dim, 1).page_bytes
        line = (
            f"{precision:<9}  {token_bytes:7d}  {row.perplexity:10.3f}  {row.perplexity / whole - 1:+6.2%}  "
            f"{row.logit_error:11.4f}  {row.agreement:10.1%}  {row.divergence:9.5f}"
        )
        if speeds is not None:
            ratio = statistics.median(a / b for a, b in zip(speeds[precision], speeds["BF16"], strict=True))
            line += f"  {statistics.median(speeds[precision]):6.1f}  {ratio:8.2f}x"
        print(line)


if __name__ == "__main__":
    main()
