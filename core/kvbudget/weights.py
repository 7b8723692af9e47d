"""Parameters and weight bytes of an :class:`Architecture`, as a whole and of one rank.

    a layer    mixer + MLP, with what :class:`Elements` says of splitting
    tables     vocab × hidden for the embedding (first stage) and for the output projection (last stage); tied weights
               are one table where both lie on one stage
    beside     final norm, towers, extra

``parameters`` counts a :class:`kvbudget.shape.ModelShape` (dense decoders) by the same rules.
"""

from dataclasses import dataclass
from typing import Final

from kvbudget.layers import Architecture, AttentionCache, Cache, Elements, SharedCache
from kvbudget.layout import kv_heads_per_rank

_MILLIBITS_PER_BYTE: Final = 8000
_PLAIN: Final = 16000


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Parameters of one rank by the format in which the checkpoint stores them."""

    mixer: int
    mlp: int
    experts: int
    tables: int
    kept: int

    @property
    def total(self) -> int:
        return self.mixer + self.mlp + self.experts + self.tables + self.kept


def count(
    model: Architecture, *, tensor_parallel: int = 1, first: int = 0, last: int | None = None, drafts: bool = False
) -> Counted:
    """Parameters on one rank of the stage of layers ``first`` … ``last`` - 1 (None: to the end). Heads, MLPs, experts
    and vocabulary are divided by the ranks and rounded up; ``drafts`` adds the checkpoint's draft layers to the last
    stage."""
    end = model.layers if last is None else last
    stage = model if (first, end) == (0, model.layers) else model.stage(first, end)
    is_first, is_last = first == 0, end == model.layers
    mixer = mlp = experts = 0
    kept = model.extra + (model.hidden_size if is_last else 0)
    for group in stage.groups:
        mixer += group.count * _split(group.elements, tensor_parallel, _kv_share(group.cache, tensor_parallel))
        kept += group.count * group.elements.kept
    for layer in stage.feed_forward:
        own = layer.elements
        mlp += len(layer.layers) * _split(own, tensor_parallel, (1, 1))
        experts += len(layer.layers) * -(-own.experts // tensor_parallel)
        kept += len(layer.layers) * own.kept
    if drafts and is_last and model.drafts is not None:
        own, number = model.drafts.elements, model.drafts.layers
        share = _kv_share(model.drafts.cache, tensor_parallel)
        matrices, routed = _split(own, tensor_parallel, share), -(-own.experts // tensor_parallel)
        if model.weights.drafts_plain:
            kept += number * (matrices + routed)
        else:
            mixer, experts = mixer + number * matrices, experts + number * routed
        kept += number * own.kept
    if is_first:
        kept += -(-(model.vision_parameters or 0) // tensor_parallel)
    return Counted(
        mixer=mixer, mlp=mlp, experts=experts, tables=_tables(model, tensor_parallel, is_first, is_last), kept=kept
    )


def _split(own: Elements, tensor_parallel: int, share: tuple[int, int]) -> int:
    part, of = share
    return -(-own.split // tensor_parallel) + own.whole + -(-own.kv * part // of)


def _kv_share(cache: Cache, tensor_parallel: int) -> tuple[int, int]:
    """Share of K and V projections on one rank: KV heads are divided, then replicated."""
    match cache:
        case AttentionCache(kv_heads=heads) | SharedCache(like=AttentionCache(kv_heads=heads)):
            return kv_heads_per_rank(heads, tensor_parallel), heads
        case _:
            return 1, 1


def _tables(model: Architecture, tensor_parallel: int, is_first: bool, is_last: bool) -> int:
    table = -(-model.vocab_size // tensor_parallel) * model.hidden_size
    number = int(is_first) + int(is_last)
    return table * (1 if model.tied_embeddings and number == 2 else number)


def total_parameters(model: Architecture, *, drafts: bool = False) -> int:
    """Parameters of the whole model, towers included.

    >>> from kvbudget.shapes.config import from_config
    >>> from kvbudget.shapes.table import facts
    >>> total_parameters(from_config(facts("meta-llama/Meta-Llama-3.1-8B")))
    8030261248
    """
    return count(model, drafts=drafts).total


def stored_bytes(model: Architecture, counted: Counted) -> int:
    """Bytes of these parameters in the checkpoint's format.

    >>> from kvbudget.shapes.config import from_config
    >>> from kvbudget.shapes.table import facts
    >>> llama = from_config(facts("meta-llama/Meta-Llama-3.1-8B"))
    >>> stored_bytes(llama, count(llama))
    16060522496
    """
    form = model.weights
    millibits = (
        counted.mixer * form.mixer_millibits
        + counted.mlp * form.mlp_millibits
        + counted.experts * form.expert_millibits
        + (counted.tables + counted.kept) * max(_PLAIN if model.dtype != "FP32" else 2 * _PLAIN, form.table_millibits)
    )
    return -(-millibits // _MILLIBITS_PER_BYTE)


def rank_bytes(
    model: Architecture, *, tensor_parallel: int = 1, first: int = 0, last: int | None = None, drafts: bool = False
) -> int:
    """Weight bytes on one rank of a stage. Where the checkpoint's bytes are known, the rank gets its share of them (a
    checkpoint's draft layers are counted in its bytes whether they are loaded or not).

    >>> from kvbudget.shapes.config import from_config
    >>> from kvbudget.shapes.table import facts
    >>> qwen = from_config(facts("Qwen/Qwen3-8B"))
    >>> round(rank_bytes(qwen, tensor_parallel=2) / 2**30, 2)
    7.63
    """
    part = count(model, tensor_parallel=tensor_parallel, first=first, last=last, drafts=drafts)
    counted = stored_bytes(model, part)
    if model.weight_bytes is None:
        return counted
    return -(-model.weight_bytes * counted // stored_bytes(model, count(model, drafts=True)))
