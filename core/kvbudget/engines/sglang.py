"""SGLang's budget: a share of what was free before the weights came, weights included; everything else is slack.

From mem_cache/kv_cache_configurator.py, model_executor/pool_configurator.py and arg_groups/memory_hook.py (0.5.23)::

    free      = total − context
    kv        = free × mem_fraction_static − weights − state slots
    tokens    = kv // cell // page × page, the least over all ranks and stages
    cell      = heads per rank × (head_dim + v_head_dim) × bytes × layers       windows: layers × swa-full-tokens-ratio

There is no dry run: activations and every CUDA graph live in ``free × (1 − fraction)``, so a pool can be planned that
leaves the graphs no room. A server also starts with a pool smaller than the context; that is "KV too small" here.

>>> default_fraction(85029615370, chunked_prefill=8192, ranks=1, decode_sizes=256, prefill_sizes=0, latent=False)
0.834
"""

import math
from dataclasses import replace
from typing import Final

from kvbudget.cachebytes import index_bytes, state_bytes
from kvbudget.engines import activation
from kvbudget.engines.compressed import OVERLAPPING_RATIO, compressor_state_bytes, indexer_state_bytes, is_compressed
from kvbudget.engines.pages import compressed_entry_bytes, layer_token_bytes
from kvbudget.engines.replica import Stage, replica_budget, require_tokens
from kvbudget.engines.result import Band, CacheGroup, EngineBudget, Pool, StageBudget, Term, band, exact
from kvbudget.engines.settings import Card, Settings
from kvbudget.engines.stages import kept_caches
from kvbudget.engines.weights import stage_weights
from kvbudget.layers import Architecture, AttentionCache, Cache, CompressedCache, LatentCache, StateCache

ENGINE: Final = "sglang"
WINDOW_SHARE: Final = 0.8
"""``--swa-full-tokens-ratio``: tokens of the windowed pool per token of the full one."""
COMPRESSED_WINDOW_SHARE: Final = 0.1
COMPRESSED_PAGE_TOKENS: Final = 256
_RING: Final = {4: 8, 128: 128}
"""States of the compressor per window, by ratio (get_compress_state_ring_size); twice as many with speculation."""
CONTEXT: Final = band(0.30, 0.40, 0.70)
CONTEXT_MANY: Final = band(0.50, 1.40, 2.00)
_LARGE_CARD: Final = 60 * 1024**3
_MIB: Final = 1024**2
_GRAPH_MIB_LATENT: Final = 1536


def sglang_budget(arch: Architecture, card: Card, version: str, settings: Settings) -> EngineBudget:
    """The budget of one replica. Raises ValueError for a model of which no layer keeps tokens."""
    require_tokens(arch)
    told = with_defaults(arch, card, settings)
    return replica_budget(arch, card, told, _stage, engine=ENGINE, version=version)


def default_fraction(
    memory_bytes: int, *, chunked_prefill: int, ranks: int, decode_sizes: int, prefill_sizes: int, latent: bool
) -> float:
    """mem_fraction_static where it is not given: all but a reserve, in thousandths (memory_hook.py)."""
    graphs = _GRAPH_MIB_LATENT if latent else 2 * decode_sizes + 8 * prefill_sizes
    reserve = 512 + 1.5 * max(chunked_prefill, 2048) + ranks / 8 * 1024 + graphs
    if memory_bytes > _LARGE_CARD:
        reserve = max(reserve, 10 * 1024)
    return math.floor(1000 * (1 - reserve * _MIB / memory_bytes)) / 1000


def prefill_graph_sizes(most_tokens: int) -> tuple[int, ...]:
    """Sizes for which a prefill graph is captured: every 4 tokens up to 32, 16 up to 256, 32, 64, 256 and 512.

    >>> len(prefill_graph_sizes(8192)), sum(prefill_graph_sizes(8192))
    (58, 95328)
    """
    steps = ((32, 4), (256, 16), (512, 32), (1024, 64), (4096, 256), (1 << 30, 512))
    sizes, size = [], 0
    for top, step in steps:
        while size + step <= min(top, most_tokens):
            size += step
            sizes.append(size)
    return tuple(sizes)


def with_defaults(arch: Architecture, card: Card, settings: Settings) -> Settings:
    """The settings with the engine's defaults for what was left out."""
    large = card.memory_bytes > _LARGE_CARD
    prefill = settings.max_batched_tokens or (8192 if large else 2048)
    sequences = settings.max_sequences or (256 if large else 24)
    ranks = settings.tensor_parallel * settings.pipeline_parallel
    fraction = settings.memory_fraction
    if fraction is None:
        fraction = default_fraction(
            card.memory_bytes,
            chunked_prefill=prefill,
            ranks=ranks,
            decode_sizes=sequences,
            prefill_sizes=len(settings.prefill_graph_tokens),
            latent=any(isinstance(g.cache, LatentCache) for g in arch.groups),
        )
    page = COMPRESSED_PAGE_TOKENS if is_compressed(arch) else 1
    share = COMPRESSED_WINDOW_SHARE if is_compressed(arch) else WINDOW_SHARE
    return replace(
        settings,
        memory_fraction=fraction,
        max_batched_tokens=prefill,
        max_sequences=sequences,
        block_tokens=settings.block_tokens or page,
        window_share=share if settings.window_share is None else settings.window_share,
    )


def cell_bytes(arch: Architecture, told: Settings, kv_format: str, span: tuple[int, int]) -> float:
    """Bytes of one token in all layers of a stage: windowed layers by their share, compressed ones by what they keep
    (``bytes_per_full_token``; DeepSeek-V4-Pro has 23749.84, its draft layer's window included)."""
    share = told.window_share or WINDOW_SHARE
    caches = kept_caches(arch, span)
    if is_compressed(arch) and span[1] == arch.layers and arch.drafts is not None:
        caches += [arch.drafts.cache] * arch.drafts.layers
    cell = sum(_layer_cell(cache, told, kv_format, share) for cache in caches)
    if told.draft_tokens and arch.drafts is not None and not is_compressed(arch):
        cell *= 1 + arch.drafts.layers / max(1, len(caches))
    return cell


def _layer_cell(cache: Cache, told: Settings, kv_format: str, share: float) -> float:
    if isinstance(cache, CompressedCache):
        return _compressed_cell(cache, share, speculative=told.draft_tokens > 0)
    size = layer_token_bytes(cache, kv_format, tensor_parallel=told.tensor_parallel)
    windowed = isinstance(cache, AttentionCache) and told.hybrid_groups and cache.window is not None
    return size * share if windowed else size


def _compressed_cell(cache: CompressedCache, share: float, *, speculative: bool) -> float:
    entry = compressed_entry_bytes(cache)
    cell = share * entry
    if not cache.ratio:
        return cell
    ring = _RING.get(cache.ratio, cache.ratio) * (2 if speculative else 1) / cache.window
    cell += entry / cache.ratio + share * ring * (compressor_state_bytes(cache) + indexer_state_bytes(cache))
    return cell + (index_bytes(cache.index_dim) / cache.ratio if cache.ratio == OVERLAPPING_RATIO else 0)


def _stage(at: Stage) -> StageBudget:
    arch, told, span = at.arch, at.told, at.span
    many = told.tensor_parallel * told.pipeline_parallel > 1
    free = _free(at.card, CONTEXT_MANY if many else CONTEXT)
    fraction = told.memory_fraction or 1.0
    share = Band(*(math.floor(size * fraction) for size in free))
    page = told.block_tokens or 1
    cell = cell_bytes(arch, told, at.kv_format, span)
    group = CacheGroup(kind=arch.kind, layers=at.layers, block_tokens=page, shares=told.context_parallel)
    return StageBudget(
        stage=at.number,
        layers=at.layers,
        memory_bytes=free[1],
        usable_bytes=share.expected,
        terms=_terms(at, share),
        outside=_outside(arch, told, span),
        pool=Pool(page_bytes=max(1, math.ceil(cell * page)), groups=(group,)),
    )


def _terms(at: Stage, share: Band) -> tuple[Term, ...]:
    told, unknown = at.told, at.card.memory_bytes // 100
    if told.kv_cache_bytes is not None:
        return (Term("all but KV", exact(share.expected - told.kv_cache_bytes), "the pool is given"),)
    return (
        Term("weights", *stage_weights(at.arch, told, at.number, at.span)),
        Term("state slots", exact(_state_slots(at.arch, told, at.span)), "recurrent states of every running request"),
        Term(
            "context",
            Band(share.expected - share.high, 0, share.expected - share.low),
            "what the context takes before the weights come",
        ),
        Term("not modelled", Band(-unknown // 2, 0, 5 * unknown), "reserves that differ between versions"),
    )


def _free(card: Card, context: Band) -> tuple[int, int, int]:
    """Free before the weights come, low, expected, high; exact where the card is described by that already."""
    if card.name.endswith(FREE_MEMORY):
        return card.memory_bytes, card.memory_bytes, card.memory_bytes
    size = card.memory_bytes
    return size - context.high, size - context.expected, size - context.low


FREE_MEMORY: Final = "(free)"
"""At the end of a card's name: its memory is what is free once the context exists, as SGLang's log prints it."""


def _state_slots(arch: Architecture, told: Settings, span: tuple[int, int]) -> int:
    slots = told.state_slots or (told.max_sequences or 1)
    caches = kept_caches(arch, span)
    states = (c for c in caches if isinstance(c, StateCache))
    return slots * sum(state_bytes(c, tensor_parallel=told.tensor_parallel) for c in states)


def _outside(arch: Architecture, told: Settings, span: tuple[int, int]) -> tuple[Term, ...]:
    tokens, layers = told.max_batched_tokens or 1, span[1] - span[0]
    prefill = activation.prefill_bytes(arch, tokens, tensor_parallel=told.tensor_parallel)
    experts = activation.expert_workspace_bytes(arch, tokens, tensor_parallel=told.tensor_parallel)
    logits = (told.max_sequences or 1) * arch.vocab_size * 8
    terms = [Term("activation", exact(prefill + experts + logits), "prefill of one chunk, logits of the running batch")]
    if not told.eager:
        terms.append(Term("decode graphs", band(0.5, 1.2, 2.5), "CUDA graphs of the decode sizes"))
    if told.prefill_graph_tokens:
        # Piecewise graphs keep every layer's attention output for every size: 26 of 58 sizes took 11.5 GiB of a model
        # of 28 layers and 16 heads of 128.
        width = arch.attention_heads * _head_dim(arch) // told.tensor_parallel * activation.element_bytes(arch)
        graphs = math.ceil(sum(told.prefill_graph_tokens) * layers * width * 1.2)
        terms.append(Term("prefill graphs", exact(graphs), "every layer's attention output for each captured size"))
    return tuple(terms)


def _head_dim(arch: Architecture) -> int:
    dims = [g.cache.v_head_dim for g in arch.groups if isinstance(g.cache, AttentionCache)]
    return max(dims, default=arch.hidden_size // arch.attention_heads)
