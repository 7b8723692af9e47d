"""What the scheduler hands to the runner and gets back: plain data, no torch.

One step computes a batch of chunks. A decode is a chunk of one token; a prefill chunk may stop anywhere in the prompt.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 switch a filter off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    logprobs: int | None = None
    """Number of alternatives to report beside the chosen token; None: report nothing."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's share of a step.

    ``token_ids[i]`` sits at position ``start + i``; its K and V go to page ``pages[(start + i) // page_tokens]``, slot
    ``(start + i) % page_tokens``. ``pages`` covers positions ``0 … start + len(token_ids) - 1`` at least. All earlier
    positions are already in the cache. ``sample``: this chunk ends with the sequence's last known token, so one new
    token is to be sampled. ``banned_ids`` may not be sampled at this step (end tokens before ``min_tokens``).
    ``output_ids``: tokens generated so far, for penalties and the seeded random stream (its length is the step).
    """

    seq_id: int
    token_ids: tuple[int, ...]
    start: int
    pages: tuple[int, ...]
    sample: bool
    params: SamplingParams
    banned_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One forward pass. ``copies``: (from page, to page) whole-page copies to do before it (one prompt, n choices)."""

    chunks: tuple[Chunk, ...]
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def tokens(self) -> int:
        return sum(len(c.token_ids) for c in self.chunks)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sampled token of one sequence; ``top`` holds (token id, log probability) pairs, best first."""

    seq_id: int
    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = field(default=())
