"""Parameters and weight bytes of a dense decoder, per tensor-parallel rank and pipeline stage.

    embedding  vocab × hidden                    (also the output projection, unless tied)
    per layer  hidden × (heads + 2 kv_heads) × head_dim + heads × head_dim × hidden     attention
               3 × hidden × intermediate                                                gate, up, down
               2 × hidden                                                               norms
    last       hidden                                                                   norm

Llama-3.1-8B has 8,030,261,248 parameters, SmolLM2-135M (tied) 134,515,008:

>>> from kvbudget.served import named
>>> count(named("meta-llama/Llama-3.1-8B")).total, count(named("SmolLM2-135M-Instruct")).total
(8030261248, 134515008)

Biases and query/key norms of some families are not counted: at most 0.01% of the bytes.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from kvbudget.layout import kv_heads_per_rank, stage_layers
from kvbudget.shape import ModelShape

WeightPrecision = Literal["BF16", "FP16", "FP32", "FP8", "INT8", "INT4"]
WEIGHT_PRECISIONS: Final[tuple[WeightPrecision, ...]] = get_args(WeightPrecision)

_BYTES_PER_256: Final[dict[str, int]] = {"BF16": 512, "FP16": 512, "FP32": 1024, "FP8": 256, "INT8": 256, "INT4": 133}
"""Bytes of 256 matrix elements. INT4 has an FP16 scale and a 4-bit zero per 128 (AWQ, GPTQ); the scales of FP8 and INT8
are per channel or tensor and below 0.1%."""

_AGREES_PERCENT = 25


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of elements. ``matrices`` are the layers' projections, which a quantised checkpoint stores in fewer bits;
    ``rest`` (embeddings, output projection, norms) stays in 16 bits then."""

    matrices: int
    rest: int

    @property
    def total(self) -> int:
        return self.matrices + self.rest

    def bytes_at(self, precision: str) -> int:
        """Bytes of these elements in ``precision``.

        >>> Parameters(matrices=256, rest=10).bytes_at("INT4"), Parameters(matrices=256, rest=10).bytes_at("FP32")
        (153, 1064)
        """
        rest_bytes = 4 if precision == "FP32" else 2
        return -(-self.matrices * _BYTES_PER_256[precision] // 256) + self.rest * rest_bytes


def count(
    shape: ModelShape, *, tensor_parallel: int = 1, pipeline_parallel: int = 1, stage: int | None = None
) -> Parameters:
    """Parameters of one rank of ``stage`` (None: of the whole depth, as if there were one stage).

    The first stage holds the embedding, the last the output projection; tied weights lie on both. Vocabulary, heads and
    the MLP are split over ranks (rounded up), norms are replicated, KV heads too where there are more ranks than heads.
    """
    layers, first, last = shape.layers, True, True
    if stage is not None:
        layers = stage_layers(shape.layers, pipeline_parallel)[stage]
        first, last = stage == 0, stage == pipeline_parallel - 1
    heads = -(-shape.attention_heads // tensor_parallel)
    kv_heads = kv_heads_per_rank(shape.kv_heads, tensor_parallel)
    ffn = -(-shape.intermediate_size // tensor_parallel)
    attention = shape.hidden_size * shape.head_dim * (2 * heads + 2 * kv_heads)
    table = -(-shape.vocab_size // tensor_parallel) * shape.hidden_size
    tables = int(first) + int(last)
    if shape.tied_embeddings and first and last:
        tables = 1
    norms = 2 * shape.hidden_size * layers + (shape.hidden_size if last else 0)
    return Parameters(matrices=layers * (attention + 3 * shape.hidden_size * ffn), rest=tables * table + norms)


def checkpoint_agrees(shape: ModelShape, precision: str) -> bool:
    """Whether ``weight_bytes`` can be a checkpoint in ``precision``: within 25% of what the shape counts. Precisions
    lie a factor of about 2 apart, so a checkpoint of another precision never agrees.

    >>> from kvbudget.served import named
    >>> llama = named("meta-llama/Llama-3.1-8B")
    >>> checkpoint_agrees(llama, "BF16"), checkpoint_agrees(llama, "FP8")
    (True, False)
    """
    counted = count(shape).bytes_at(precision)
    given = shape.weight_bytes
    return given is not None and abs(given - counted) * 100 <= _AGREES_PERCENT * counted


def weight_bytes(
    shape: ModelShape,
    precision: str,
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    stage: int | None = None,
) -> int:
    """Bytes of the weights on one rank, loaded in ``precision``: the checkpoint's bytes where they are known for that
    precision (:func:`checkpoint_agrees`), else counted. A rank gets its share of the counted parameters of them.

    >>> from kvbudget.served import named
    >>> llama = named("meta-llama/Llama-3.1-8B")
    >>> weight_bytes(llama, "BF16"), weight_bytes(llama, "FP8")
    (16060522496, 9081200640)
    """
    part = count(shape, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel, stage=stage)
    counted = part.bytes_at(precision)
    if shape.weight_bytes is None or not checkpoint_agrees(shape, precision):
        return counted
    return -(-shape.weight_bytes * counted // count(shape).bytes_at(precision))
