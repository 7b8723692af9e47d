"""TensorRT-LLM's budget: a share of what a dry run leaves free.

From _torch/pyexecutor/_util.py (KvCacheCreator) and cpp/…/kvCacheManager.cpp::

    peak    = weights + activation of max_num_tokens + runtime, measured in a dry run
    kv      = (total − peak) × free_gpu_memory_fraction           default 0.9, a share of what is FREE
    tokens  = kv // bytes per token, in blocks of tokens_per_block (32; 64 before 1.0)

The logged case: (139.81 − 91.46) × 0.85 = 41.10 GiB.

>>> round((139.81 - 91.46) * 0.85, 2)
41.1
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvbudget.cachebytes import state_bytes
from kvbudget.engines.activation import element_bytes
from kvbudget.engines.pages import layer_token_bytes
from kvbudget.engines.replica import Stage, replica_budget, require_tokens
from kvbudget.engines.result import Band, CacheGroup, EngineBudget, Pool, StageBudget, Term, band, exact
from kvbudget.engines.settings import Card, Settings
from kvbudget.engines.stages import kept_caches
from kvbudget.engines.weights import stage_weights
from kvbudget.layers import Architecture, AttentionCache, Cache, StateCache

ENGINE: Final = "tensorrt_llm"
MEMORY_FRACTION: Final = 0.9
BLOCK_TOKENS: Final = 32
OLD_BLOCK_TOKENS: Final = 64
MAX_TOKENS: Final = 8192
MAX_SEQUENCES: Final = 2048
RUNTIME: Final = band(3.0, 4.0, 5.0)
"""CUDA context, cuBLAS and attention workspaces, sampler and decoder buffers. 36 largest batches on H100 and GB300."""
NCCL: Final = band(0.20, 0.36, 0.60)
RESERVE_PER_MILLE: Final = 5
"""Share of the card that is never handed out: page tables and the driver's own."""


def activation_coefficient(tensor_parallel: int, *, moe: bool) -> int:
    """Rows as wide as the residual stream that the dry run's peak holds per token, on each of so many ranks.

    >>> [activation_coefficient(n, moe=False) for n in (1, 2, 4, 8)], activation_coefficient(1, moe=True)
    ([10, 6, 5, 5], 22)
    """
    row = _COEFFICIENTS[moe]
    return row[min(max(tensor_parallel.bit_length() - 1, 0), len(row) - 1)]


_COEFFICIENTS: Final = {False: (10, 6, 5, 5), True: (22, 13, 10, 10)}


def tensorrt_llm_budget(arch: Architecture, card: Card, version: str, settings: Settings) -> EngineBudget:
    """The budget of one replica. Raises ValueError for a model of which no layer keeps tokens."""
    require_tokens(arch)
    told = _with_defaults(version, settings)
    return replica_budget(arch, card, told, _stage, engine=ENGINE, version=version)


def _with_defaults(version: str, settings: Settings) -> Settings:
    block = OLD_BLOCK_TOKENS if version.lstrip("v").startswith("0.") else BLOCK_TOKENS
    return replace(
        settings,
        memory_fraction=MEMORY_FRACTION if settings.memory_fraction is None else settings.memory_fraction,
        max_batched_tokens=settings.max_batched_tokens or MAX_TOKENS,
        max_sequences=settings.max_sequences or MAX_SEQUENCES,
        block_tokens=settings.block_tokens or block,
    )


def _stage(at: Stage) -> StageBudget:
    block = at.told.block_tokens or BLOCK_TOKENS
    caches = kept_caches(at.arch, at.span, draft=at.told.draft_tokens > 0)
    cell = sum(_cell(cache, at.told, at.kv_format) for cache in caches)
    return StageBudget(
        stage=at.number,
        layers=at.layers,
        memory_bytes=at.card.memory_bytes,
        usable_bytes=at.card.memory_bytes,
        terms=_terms(at, caches),
        outside=(),
        pool=Pool(
            page_bytes=max(1, cell * block),
            groups=(CacheGroup(kind=at.arch.kind, layers=at.layers, block_tokens=block),),
        ),
    )


def _terms(at: Stage, caches: Sequence[Cache]) -> tuple[Term, ...]:
    arch, card, told = at.arch, at.card, at.told
    if told.kv_cache_bytes is not None:
        return (Term("all but KV", exact(card.memory_bytes - told.kv_cache_bytes), "the pool is given"),)
    rows = activation_coefficient(told.tensor_parallel, moe=arch.is_moe)
    peak = (told.max_batched_tokens or 1) * arch.hidden_size * element_bytes(arch) * rows
    terms = [
        Term("weights", *stage_weights(arch, told, at.number, at.span)),
        Term("activation", Band(peak * 3 // 4, peak, peak * 5 // 4), "dry run of max_num_tokens"),
        Term("runtime", RUNTIME, "context, workspaces, decoder; fitted on largest batches"),
        Term("reserve", exact(card.memory_bytes * RESERVE_PER_MILLE // 1000), "never handed out"),
    ]
    if told.tensor_parallel > 1:
        terms.append(Term("nccl", NCCL, "communicators of the ranks"))
    terms.append(_left_free(card, terms, told.memory_fraction or 1.0))
    states = sum(state_bytes(c, tensor_parallel=told.tensor_parallel) for c in caches if isinstance(c, StateCache))
    if states:
        terms.append(Term("state slots", exact(states * (told.max_sequences or 1)), "a state for each sequence"))
    return tuple(terms)


def _left_free(card: Card, terms: Sequence[Term], fraction: float) -> Term:
    """The share left free shrinks with what is free, so its ends are crossed: free is high when the peak is low."""
    peaks = [sum(ends) for ends in zip(*((t.bytes.low, t.bytes.expected, t.bytes.high) for t in terms), strict=True)]
    free = [max(0, card.memory_bytes - size) for size in peaks]
    left = sorted(size - math.floor(size * fraction) for size in free)
    return Term("left free", Band(*left), "1 − free_gpu_memory_fraction of what is free")


def _cell(cache: Cache, told: Settings, kv_format: str) -> int:
    """Bytes of one token in one layer. A window bounds the pool only where max_attention_window is set; by default the
    pool is sized as if every layer kept every token."""
    if isinstance(cache, AttentionCache):
        cache = replace(cache, window=None, chunk=None)
    return layer_token_bytes(cache, kv_format, tensor_parallel=told.tensor_parallel)
