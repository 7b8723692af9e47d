"""From logits to tokens: greedy, temperature, top-k, top-p, seeds, penalties, biases, bans, log probabilities.

Whatever is asked of one row touches only that row. A batch that is greedy throughout costs one argmax.
Log probabilities are the model's own, before penalties and temperature, as vLLM reports them.
"""

import random
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import torch

from kvbudget_worker.batch import Chunk, Sampled

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing by it would overflow."""
SLICE_ROWS = 16
"""Rows that are sorted at once: sorting takes some 20 B per logit, and the budget holds 14 for the whole batch."""


class Sampler:
    """Draws unseeded numbers from one generator; ``seed`` fixes it (tests)."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def sample(self, logits: torch.Tensor, chunks: Sequence[Chunk]) -> list[Sampled]:
        """``logits``: [len(chunks), vocab] in fp32, may be modified. One result per chunk, in order."""
        if not chunks:
            return []
        reports = self._reports(logits, chunks)
        _adjust(logits, chunks)
        tokens = logits.argmax(dim=-1)
        drawn = [i for i, c in enumerate(chunks) if c.params.temperature >= GREEDY_BELOW]
        for at in range(0, len(drawn), SLICE_ROWS):
            part = drawn[at : at + SLICE_ROWS]
            rows = torch.tensor(part, device=logits.device)
            tokens[rows] = self._draw(logits.index_select(0, rows), [chunks[i] for i in part])
        ids = tokens.tolist()
        results = [Sampled(c.seq_id, token) for c, token in zip(chunks, ids, strict=True)]
        for row, (logprobs, top) in reports.items():
            results[row] = Sampled(chunks[row].seq_id, ids[row], float(logprobs[ids[row]]), top)
        return results

    def _reports(
        self, logits: torch.Tensor, chunks: Sequence[Chunk]
    ) -> dict[int, tuple[torch.Tensor, tuple[tuple[int, float], ...]]]:
        """Per row that asks for them: log probabilities [vocab], and the best alternatives."""
        reports = {}
        for row, chunk in enumerate(chunks):
            if chunk.params.logprobs is not None:
                logprobs = torch.log_softmax(logits[row], dim=-1)
                values, ids = logprobs.topk(min(chunk.params.logprobs, logprobs.numel()))
                reports[row] = (logprobs, tuple(zip(ids.tolist(), values.tolist(), strict=True)))
        return reports

    def _draw(self, logits: torch.Tensor, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Sample [n] tokens from [n, vocab] logits by inverting the cumulated probabilities at one number per row."""
        device = logits.device
        temperature = torch.tensor([[c.params.temperature] for c in chunks], device=device)
        points = torch.tensor([[self._point(c)] for c in chunks], dtype=torch.float64, device=device)
        scaled = logits / temperature
        if any(c.params.top_k > 0 or c.params.top_p < 1 for c in chunks):
            scaled.masked_fill_(_excluded(scaled, chunks), float("-inf"))
        # In the vocabulary's order, filtered or not: a row's draw must not depend on who else is in the batch.
        cumulated = torch.softmax(scaled, dim=-1).to(torch.float64).cumsum(dim=-1)
        # Never a token of probability 0: the point stays below the sum, however that was rounded.
        places = torch.searchsorted(cumulated, points * cumulated[:, -1:], right=True)
        return places.clamp_(max=scaled.shape[1] - 1).squeeze(1)

    def _point(self, chunk: Chunk) -> float:
        """Uniform in [0, 1). A seeded stream depends on the seed and the step alone, not on who shares the batch."""
        if chunk.params.seed is None:
            return self._random.random()
        key = f"{chunk.params.seed}/{len(chunk.output_ids)}".encode()
        return (int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 11) / 2**53


def _adjust(logits: torch.Tensor, chunks: Sequence[Chunk]) -> None:
    """Add biases and penalties, and rule out banned tokens, in place."""
    rows: list[int] = []
    columns: list[int] = []
    amounts: list[float] = []
    vocab = logits.shape[1]
    for row, chunk in enumerate(chunks):
        params = chunk.params
        changes = dict.fromkeys(chunk.banned_ids, float("-inf"))
        for token, bias in params.logit_bias:
            changes[token] = changes.get(token, 0.0) + bias
        if params.presence_penalty or params.frequency_penalty:
            for token, count in Counter(chunk.output_ids).items():
                penalty = params.presence_penalty + params.frequency_penalty * count
                changes[token] = changes.get(token, 0.0) - penalty
        known = {token: amount for token, amount in changes.items() if 0 <= token < vocab}
        rows.extend([row] * len(known))
        columns.extend(known)
        amounts.extend(known.values())
    if rows:
        at = (torch.tensor(rows, device=logits.device), torch.tensor(columns, device=logits.device))
        logits.index_put_(at, torch.tensor(amounts, device=logits.device), accumulate=True)


def _excluded(logits: torch.Tensor, chunks: Sequence[Chunk]) -> torch.Tensor:
    """[n, vocab], true for what top_k and top_p exclude. The best token always stays; top_p keeps the token that
    crosses it."""
    descending, order = logits.sort(dim=-1, descending=True)
    device, vocab = logits.device, logits.shape[1]
    most = torch.tensor([[c.params.top_k if 0 < c.params.top_k < vocab else vocab] for c in chunks], device=device)
    excluded = torch.arange(vocab, device=device) >= most
    if any(c.params.top_p < 1 for c in chunks):
        share = torch.tensor([[c.params.top_p] for c in chunks], device=device)
        probabilities = torch.softmax(descending.masked_fill_(excluded, float("-inf")), dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        excluded |= (before >= share) & (share < 1)
        excluded[:, 0] = False
    return torch.empty_like(excluded).scatter_(1, order, excluded)
