"""What ``models``, ``gpus`` and ``explain`` show, as plain data: one frozen row a model, a GPU type, a group of layers.

>>> row = describe("Qwen/Qwen3-8B", from_config(facts("Qwen/Qwen3-8B")))
>>> row.kind, row.layers, row.parameters, row.bytes_per_token
('full', 36, 8190735360, 147456)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from kvbudget.cachebytes import state_bytes, token_bytes
from kvbudget.gpu import CATALOGUE
from kvbudget.gpucatalogue import ROWS
from kvbudget.layers import (
    Architecture,
    AttentionCache,
    Cache,
    CompressedCache,
    LatentCache,
    SharedCache,
    StateCache,
    cache_kind,
)
from kvbudget.shapes.config import from_config
from kvbudget.shapes.table import facts, known_names
from kvbudget.weights import count, stored_bytes, total_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """Layers that keep the same, on one rank. ``bytes_per_token`` and ``bytes_per_sequence`` are of all of them
    together; the first is of a token that is still kept (``bounded_tokens`` says how many are), the second is a state.
    ``detail`` says heads and widths in words."""

    kind: str
    layers: int
    indices: str
    query_heads: int
    detail: str
    bytes_per_token: int
    bytes_per_sequence: int
    bounded_tokens: int | None
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model. ``bytes_per_token`` counts the layers that keep every token; ``window_bytes_per_token`` those that
    keep a bounded number."""

    name: str
    model_type: str
    kind: str
    layers: int
    parameters: int
    vision_parameters: int | None
    weight_format: str
    weight_bytes: int
    weight_bytes_are_exact: bool
    bytes_per_token: int
    window_bytes_per_token: int
    bytes_per_sequence: int
    precision: str
    experts: int
    max_position_embeddings: int | None
    draft_layers: int
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GPURow:
    """One GPU type; memory in bytes as drivers report it, low to high."""

    name: str
    memory_low_bytes: int
    memory_high_bytes: int
    measured: bool
    architecture: str
    bandwidth_bytes_per_second: int
    weight_precisions: tuple[str, ...]
    kv_precisions: tuple[str, ...]
    mig_profiles: tuple[tuple[str, int], ...]


def kv_precision(model: Architecture) -> str:
    """In which the model's KV is kept unless told otherwise: what the checkpoint asks for, else its own dtype."""
    return model.kv_dtype or model.dtype


def groups_of(model: Architecture, precision: str | None = None, *, tensor_parallel: int = 1) -> tuple[GroupRow, ...]:
    """A row for each group of layers, in the model's order. ``precision`` None is :func:`kv_precision`."""
    chosen = precision or kv_precision(model)
    return tuple(
        GroupRow(
            kind=cache_kind(group.cache),
            layers=group.count,
            indices=spans(group.layers),
            query_heads=group.query_heads,
            detail=detail(group.cache),
            bytes_per_token=group.count * token_bytes(group.cache, chosen, tensor_parallel=tensor_parallel),
            bytes_per_sequence=group.count * _state(group.cache, tensor_parallel),
            bounded_tokens=bounded_tokens(group.cache),
            parameters=group.count * group.elements.total,
        )
        for group in model.groups
    )


def describe(name: str, model: Architecture, *, tensor_parallel: int = 1) -> ModelRow:
    """The row of one model, for a rank of ``tensor_parallel``; parameters and weights are those of the whole."""
    groups = groups_of(model, tensor_parallel=tensor_parallel)
    exact = model.weight_bytes
    return ModelRow(
        name=name,
        model_type=model.model_type,
        kind=model.kind,
        layers=model.layers,
        parameters=total_parameters(model),
        vision_parameters=model.vision_parameters,
        weight_format=model.weights.name,
        weight_bytes=stored_bytes(model, count(model)) if exact is None else exact,
        weight_bytes_are_exact=exact is not None,
        bytes_per_token=sum(g.bytes_per_token for g in groups if g.bounded_tokens is None),
        window_bytes_per_token=sum(g.bytes_per_token for g in groups if g.bounded_tokens is not None),
        bytes_per_sequence=sum(g.bytes_per_sequence for g in groups),
        precision=kv_precision(model),
        experts=max((mlp.experts for mlp in model.feed_forward), default=0),
        max_position_embeddings=model.max_position_embeddings,
        draft_layers=0 if model.drafts is None else model.drafts.layers,
        assumptions=model.assumptions,
    )


def models() -> Iterator[ModelRow]:
    """Every model that is known by name, sorted."""
    return (describe(name, from_config(facts(name), name)) for name in known_names())


def gpus() -> Iterator[GPURow]:
    """Every GPU type of the catalogue, by memory."""
    for name in sorted(CATALOGUE, key=lambda name: (CATALOGUE[name].memory_bytes, name)):
        entry = CATALOGUE[name]
        yield GPURow(
            name=name,
            memory_low_bytes=entry.memory_bytes,
            memory_high_bytes=entry.memory_high_bytes,
            measured=entry.measured,
            architecture=entry.architecture,
            bandwidth_bytes_per_second=entry.bandwidth_bytes,
            weight_precisions=entry.weight_precisions,
            kv_precisions=entry.kv_precisions,
            mig_profiles=ROWS[name].mig,
        )


def bounded_tokens(cache: Cache) -> int | None:
    """Most tokens of a sequence that a layer looks at, and so must keep; None where it is all of them or none."""
    match cache:
        case AttentionCache(window=int(window)):
            return window
        case AttentionCache(chunk=int(chunk)):
            return chunk
        case CompressedCache(window=window):
            return window
        case _:
            return None


def _state(cache: Cache, tensor_parallel: int) -> int:
    return state_bytes(cache, tensor_parallel=tensor_parallel) if isinstance(cache, StateCache) else 0


def detail(cache: Cache) -> str:
    """Heads and widths of a cache in words.

    >>> detail(AttentionCache(kv_heads=8, head_dim=128, v_head_dim=128, window=4096))
    '8 KV heads of 128, last 4096 tokens'
    """
    match cache:
        case AttentionCache():
            width = (
                f"{cache.head_dim}" if cache.head_dim == cache.v_head_dim else f"{cache.head_dim}+{cache.v_head_dim}"
            )
            plural = "s" if cache.kv_heads > 1 else ""
            bound = f", last {cache.window} tokens" if cache.window else ""
            bound += f", chunks of {cache.chunk}" if cache.chunk else ""
            return f"{cache.kv_heads} KV head{plural} of {width}{bound}" + _indexed(cache.index_dim)
        case LatentCache():
            return f"latent of {cache.latent_dim}+{cache.rope_dim}, whole on every rank" + _indexed(cache.index_dim)
        case CompressedCache():
            older = f", one per {cache.ratio} before" if cache.ratio else ""
            latent = f"latent of {cache.latent_dim}+{cache.rope_dim}"
            return f"{latent} for the last {cache.window} tokens{older}" + _indexed(cache.index_dim)
        case StateCache():
            recurrent = f"{cache.heads} heads of {cache.state_per_head} {cache.state_dtype}"
            return f"{recurrent}, convolution over {cache.conv_steps + 1}"
        case SharedCache():
            return f"reads an earlier layer's: {detail(cache.like)}"
        case _:
            return "no mixer"


def _indexed(index_dim: int) -> str:
    return f", indexer key of {index_dim}" if index_dim else ""


def spans(indices: Iterable[int]) -> str:
    """Indices as ranges, and as a stride where they are evenly spaced.

    >>> spans([0, 1, 2, 3]), spans([3, 7, 11]), spans([0, 1, 2, 6]), spans([5])
    ('0-3', '3, 7, … 11', '0-2, 6', '5')
    """
    listed = list(indices)
    steps = {b - a for a, b in pairwise(listed)}
    if len(listed) > 2 and len(steps) == 1 and steps != {1}:
        return f"{listed[0]}, {listed[1]}, … {listed[-1]}"
    runs: list[list[int]] = []
    for index in listed:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
