"""Attention by hand: loops over Python numbers, without a mask, a table or a tensor operation in common with
``kvbudget_kernels.reference``."""

import math

import torch

from kvbudget_kernels.reference import ScoreRules


def attend_by_hand(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, positions: list[int], rules: ScoreRules
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kvbudget_kernels.reference.attend`, one query, head and key after the other."""
    heads, kv_heads, width = query.shape[1], key.shape[1], value.shape[2]
    outs, lses = [], []
    for row, position in enumerate(positions):
        for head in range(heads):
            seen = list(range(max(0, position - (rules.window_tokens or position + 1) + 1), position + 1))
            kv = head // (heads // kv_heads)
            logits = [_logit(query[row, head], key[at, kv], at - position, head, rules) for at in seen]
            total = sum(map(math.exp, logits))
            if rules.sinks is not None:
                total += math.exp(float(rules.sinks[head]))
            weights = [math.exp(each) / total for each in logits] if total else []
            outs.append([sum(w * float(value[at, kv, d]) for w, at in zip(weights, seen, strict=True))
                         for d in range(width)])  # fmt: skip
            lses.append(math.log(total) if total else -math.inf)
    shape = (len(positions), heads)
    return torch.tensor(outs, dtype=torch.float64).view(*shape, width), torch.tensor(lses, dtype=torch.float64).view(
        shape
    )


def _logit(query: torch.Tensor, key: torch.Tensor, distance: int, head: int, rules: ScoreRules) -> float:
    logit = sum(a * b for a, b in zip(query.tolist(), key.tolist(), strict=True)) * rules.sm_scale
    if rules.softcap is not None:
        logit = rules.softcap * math.tanh(logit / rules.softcap)
    if rules.alibi_slopes is not None:
        logit += float(rules.alibi_slopes[head]) * distance
    return float(logit)
