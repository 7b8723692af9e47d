"""What the kernels compute, in fp64 torch: the specification. Slow, and correct for any device and shape."""

from dataclasses import dataclass, replace

import torch

from kvbudget_kernels.storage import PagedKV
from kvbudget_kernels.torch_pages import load, store


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """How a score comes about: q·k · ``sm_scale``, then ``softcap`` · tanh(s / softcap), then ALiBi, then the masks.

    ``window_tokens``: a query sees so many latest keys, itself included; None: all. ``softcap``: None is off.
    ``alibi_slopes``: fp32 [attention_heads], times (key position − query position). ``sinks``: fp32 [attention_heads],
    one extra logit per head without a value, counted once per query and contained in the returned lse.
    """

    sm_scale: float
    window_tokens: int | None = None
    softcap: float | None = None
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


def gather(cache: PagedKV, table: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of one sequence's first ``tokens`` tokens, each fp64 [tokens, kv_heads, head_dim]. ``table``: its page
    ids; only the first ⌈tokens / page_tokens⌉ are read."""
    used = -(-tokens // cache.layout.page_tokens)
    pages = table[:used].long().to(cache.key.device)
    both = dequantise(cache, pages)
    by_token = both.permute(1, 0, 3, 2, 4).reshape(2, -1, cache.layout.kv_heads, cache.layout.head_dim)
    return by_token[0, :tokens].double(), by_token[1, :tokens].double()


def dequantise(cache: PagedKV, pages: torch.Tensor) -> torch.Tensor:
    """fp32 [n, 2, kv_heads, page_tokens, head_dim] of ``pages``: int64 [n]."""
    scales = None if cache.scales is None else cache.scales[pages]
    key, value = load(replace(cache, key=cache.key[pages], value=cache.value[pages], scales=scales))
    return torch.stack((key, value), dim=1).float()


def kv_write(cache: PagedKV, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Stores ``key``, ``value`` [tokens, kv_heads, head_dim] at ``slots`` int64 [tokens] (page · page_tokens + offset).
    A slot below 0 is skipped, and so is one behind the last page."""
    tokens = cache.layout.page_tokens
    kept = (slots >= 0) & (slots < cache.pages * tokens)
    slots = slots[kept]
    store(cache, torch.stack((key[kept], value[kept]), dim=1), slots // tokens, slots % tokens)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE in the half-split form: ``x`` [tokens, heads, head_dim]; ``cos``, ``sin``: [tokens, head_dim/2]."""
    low, high = x.double().chunk(2, dim=-1)
    c, s = cos.double().unsqueeze(1), sin.double().unsqueeze(1)
    return torch.cat((low * c - high * s, high * c + low * s), dim=-1)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, positions: torch.Tensor, rules: ScoreRules
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence. ``query``: [queries, attention_heads, head_dim] at ``positions`` int64 [queries]; ``key``,
    ``value``: [tokens, kv_heads, head_dim] at 0, 1, …. Returns out fp64 like ``query`` and lse fp64 [queries,
    attention_heads]: 0 and −inf where a query sees nothing and has no sink."""
    heads, kv_heads = query.shape[1], key.shape[1]
    group = heads // kv_heads
    distance = torch.arange(key.shape[0], device=query.device).unsqueeze(0) - positions.unsqueeze(1)
    hidden = distance > 0
    if rules.window_tokens is not None:
        hidden = hidden | (distance <= -rules.window_tokens)
    unseen = hidden.all(0).view(-1, 1, 1)  # may hold anything, NaN too
    k = key.double().masked_fill(unseen, 0.0).repeat_interleave(group, dim=1)
    v = value.double().masked_fill(unseen, 0.0).repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->qhk", query.double(), k) * rules.sm_scale
    if rules.softcap is not None:
        scores = rules.softcap * torch.tanh(scores / rules.softcap)
    if rules.alibi_slopes is not None:
        scores = scores + rules.alibi_slopes.double().view(1, -1, 1) * distance.unsqueeze(1)
    scores = scores.masked_fill(hidden.unsqueeze(1), float("-inf"))
    if rules.sinks is not None:
        sink = rules.sinks.double().view(1, -1, 1).expand(scores.shape[0], -1, 1)
        scores = torch.cat((scores, sink), dim=-1)
        v = torch.cat((v, v.new_zeros(1, *v.shape[1:])))
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.unsqueeze(-1).clamp(min=torch.finfo(torch.float64).min))
    return torch.einsum("qhk,khd->qhd", weights, v), lse


def paged_decode(
    query: torch.Tensor, cache: PagedKV, table: torch.Tensor, seq_lens: torch.Tensor, rules: ScoreRules
) -> tuple[torch.Tensor, torch.Tensor]:
    """``query``: [batch, q_len, attention_heads, head_dim], the last q_len tokens of sequences of ``seq_lens`` tokens
    whose pages are in the rows of ``table``. A sequence of length 0 gives 0 and −inf (sinks included: it is
    padding)."""
    batch, q_len, heads, _ = query.shape
    out = torch.zeros_like(query, dtype=torch.float64)
    lse = torch.full((batch, q_len, heads), float("-inf"), dtype=torch.float64, device=query.device)
    for b, tokens in enumerate(seq_lens.tolist()):
        if tokens == 0:
            continue
        key, value = gather(cache, table[b], tokens)
        positions = torch.arange(tokens - q_len, tokens, device=query.device)
        out[b], lse[b] = attend(query[b], key, value, positions, rules)
    return out, lse


def paged_extend(
    query: torch.Tensor,
    cu_q: torch.Tensor,
    cache: PagedKV,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    rules: ScoreRules,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``query``: [tokens, attention_heads, head_dim]; sequence b owns rows ``cu_q[b]`` … ``cu_q[b+1]`` − 1, the last
    ones of its ``seq_lens[b]`` tokens, whose K and V are already in its pages. Rows that no sequence owns: 0, −inf."""
    out = torch.zeros_like(query, dtype=torch.float64)
    lse = torch.full(query.shape[:2], float("-inf"), dtype=torch.float64, device=query.device)
    bounds = cu_q.tolist()
    for b, tokens in enumerate(seq_lens.tolist()):
        first, last = bounds[b], bounds[b + 1]
        if first == last:
            continue
        key, value = gather(cache, table[b], tokens)
        positions = torch.arange(tokens - (last - first), tokens, device=query.device)
        out[first:last], lse[first:last] = attend(query[first:last], key, value, positions, rules)
    return out, lse


def merge(
    outs: list[torch.Tensor], lses: list[torch.Tensor], sinks: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """States over disjoint tokens, each out [..., heads, head_dim] and lse [..., heads], as one. (0, −inf) changes
    nothing. ``sinks``: fp32 [heads]."""
    logits = [lse.double() for lse in lses]
    if sinks is not None:
        logits.append(sinks.double().expand_as(logits[0]))
    stacked = torch.stack(logits)
    lse = torch.logsumexp(stacked, dim=0)
    weights = torch.exp(stacked - lse.clamp(min=torch.finfo(torch.float64).min))
    total = torch.zeros_like(outs[0], dtype=torch.float64)
    for out, weight in zip(outs, weights, strict=False):
        total = total + torch.where(weight.unsqueeze(-1) > 0, out.double() * weight.unsqueeze(-1), 0.0)
    return total, lse
