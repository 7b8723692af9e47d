"""A model group by group: what its layers keep, for one token while it is kept and for a whole sequence.

>>> from kvbudget.shapes.config import from_config
>>> from kvbudget.shapes.table import facts
>>> rows = layer_rows(from_config(facts("google/gemma-3-1b-it")), "BF16", tensor_parallel=1)
>>> [(row.kind, row.layers, row.token_bytes, row.bound_tokens) for row in rows]
[('sliding', 22, 22528, 512), ('full', 4, 4096, None)]
>>> sum(sequence_bytes(row, 32768) for row in rows) // 2**20
139
"""

from dataclasses import dataclass

from kvbudget.cachebytes import index_bytes, state_bytes
from kvbudget.engines.pages import compressed_entry_bytes, layer_token_bytes
from kvbudget.layers import Architecture, AttentionCache, Cache, CompressedCache, LatentCache, StateCache, cache_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """``layers`` of them keep ``token_bytes`` together for each token that is kept, on one rank; ``bound_tokens`` is
    the most that are kept (None: all). ``ratio`` N: one entry of ``entry_bytes`` more for every N tokens.
    ``state_bytes``: a fixed state per sequence instead."""

    kind: str
    layers: int
    heads: str
    token_bytes: int = 0
    bound_tokens: int | None = None
    ratio: int = 0
    entry_bytes: int = 0
    state_bytes: int = 0


def layer_rows(shape: Architecture, kv_format: str, *, tensor_parallel: int) -> tuple[LayerRow, ...]:
    """One row for each group of layers, in the order of the model."""
    return tuple(_row(g.cache, g.count, g.query_heads, kv_format, tensor_parallel) for g in shape.groups)


def sequence_bytes(row: LayerRow, tokens: int) -> int:
    """Bytes of one sequence of so many tokens, without rounding to pages."""
    kept = tokens if row.bound_tokens is None else min(tokens, row.bound_tokens)
    entries = tokens // row.ratio if row.ratio else 0
    return row.state_bytes + kept * row.token_bytes + entries * row.entry_bytes


def _row(cache: Cache, layers: int, query_heads: int, kv_format: str, ranks: int) -> LayerRow:
    kind = cache_kind(cache)
    size = layers * layer_token_bytes(cache, kv_format, tensor_parallel=ranks)
    match cache:
        case AttentionCache():
            wide = "" if cache.v_head_dim == cache.head_dim else f"/{cache.v_head_dim}"
            sharing = {query_heads: "MHA", 1: "MQA"}.get(cache.kv_heads, "GQA")
            heads = f"{sharing}: {query_heads} query, {cache.kv_heads} KV of {cache.head_dim}{wide}"
            bound = cache.window or cache.chunk
            return LayerRow(kind=kind, layers=layers, heads=heads, token_bytes=size, bound_tokens=bound)
        case LatentCache():
            heads = f"latent {cache.latent_dim} + rope {cache.rope_dim}{_index(cache.index_dim)}"
            return LayerRow(kind=kind, layers=layers, heads=heads, token_bytes=size)
        case CompressedCache():
            entry = compressed_entry_bytes(cache) + index_bytes(cache.index_dim)
            return LayerRow(
                kind=kind,
                layers=layers,
                heads=f"latent {cache.latent_dim} + rope {cache.rope_dim}{_index(cache.index_dim)}",
                token_bytes=size,
                bound_tokens=cache.window,
                ratio=cache.ratio,
                entry_bytes=layers * entry if cache.ratio else 0,
            )
        case StateCache():
            state = layers * state_bytes(cache, tensor_parallel=ranks)
            heads = f"{cache.heads} heads × {cache.state_per_head}, conv {cache.conv_steps}"
            return LayerRow(kind=kind, layers=layers, heads=heads, state_bytes=state)
        case _:
            return LayerRow(kind=kind, layers=layers, heads="keeps nothing of its own")


def _index(dim: int) -> str:
    return f", indexer {dim}" if dim else ""
