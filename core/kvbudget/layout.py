"""Bytes of one KV page: the one formula that the operator, the worker's allocator and the tests call.

A page holds K and V of ``page_tokens`` tokens in every layer of one rank, and their scales::

    page = layers × (2 × kv_heads × page_tokens × bytes(head_dim) + kv_heads × page_tokens × scale_bytes)

The seed example — 32 layers, hidden size 4096 (32 heads of 128, each with its own KV head), FP16, 8 sequences of 4096
tokens — by that formula, by 2·layers·hidden·bytes·tokens and by 2·layers·kv_heads·head_dim·bytes·tokens:

>>> from kvbudget.shape import ModelShape
>>> seed = ModelShape(layers=32, hidden_size=4096, intermediate_size=11008, attention_heads=32, kv_heads=32,
...                   head_dim=128, vocab_size=32000, max_position_embeddings=4096)
>>> tokens = 8 * 4096
>>> 2 * seed.layers * seed.hidden_size * 2 * tokens
17179869184
>>> 2 * seed.layers * seed.kv_heads * seed.head_dim * 2 * tokens
17179869184
>>> page_bytes(seed, "FP16", 64) * (tokens // 64)
17179869184
>>> kv_bytes_per_token(seed, "FP16")
524288

Source of the layouts: one layout per API name, so that bytes are a fact of the name. BF16, FP16 and FP32 have no
scales. FP8E4M3 has static scales per head and layer, which are no part of a page. INT8 keeps one FP16 scale for K and
one for V per token and head (4 B). INT4 is asymmetric in groups of 32 channels: scale and zero as FP16, for K and for V
(8 B per group). NVFP4 keeps one E4M3 scale per 16 channels, for K and for V (2 B per group).
"""

from typing import Final, Literal, get_args

from kvbudget.shape import ModelShape

KVPrecision = Literal["BF16", "FP16", "FP32", "FP8E4M3", "INT8", "INT4", "NVFP4"]
KV_PRECISIONS: Final[tuple[KVPrecision, ...]] = get_args(KVPrecision)

_BITS: Final[dict[str, int]] = {"BF16": 16, "FP16": 16, "FP32": 32, "FP8E4M3": 8, "INT8": 8, "INT4": 4, "NVFP4": 4}
_INT4_GROUP = 32
_NVFP4_GROUP = 16


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def scale_bytes(precision: str, head_dim: int) -> int:
    """Bytes of scales (and zero points) per token and KV head, K and V together.

    >>> scale_bytes("BF16", 128), scale_bytes("INT8", 128), scale_bytes("INT4", 128), scale_bytes("NVFP4", 128)
    (0, 4, 32, 16)
    """
    match precision:
        case "INT8":
            return 4
        case "INT4":
            return 8 * _ceil_div(head_dim, _INT4_GROUP)
        case "NVFP4":
            return 2 * _ceil_div(head_dim, _NVFP4_GROUP)
        case _:
            return 0


def element_bits(precision: str) -> int:
    """Bits of one stored K or V element. Raises ValueError for a name that is no KV precision."""
    try:
        return _BITS[precision]
    except KeyError:
        raise ValueError(f"{precision!r} is not a KV precision; use one of {', '.join(KV_PRECISIONS)}") from None


def kv_heads_per_rank(kv_heads: int, tensor_parallel: int) -> int:
    """KV heads that one rank stores. Heads are split over ranks, and replicated where there are more ranks than heads:
    a head is never divided.

    >>> [kv_heads_per_rank(8, tp) for tp in (1, 2, 8, 16)]
    [8, 4, 1, 1]
    """
    return _ceil_div(kv_heads, tensor_parallel)


def stage_layers(layers: int, pipeline_parallel: int) -> tuple[int, ...]:
    """Layers of each pipeline stage. A remainder goes to the stages before the last (which also holds the output
    projection), as vLLM does it.

    >>> stage_layers(30, 4)
    (7, 8, 8, 7)
    """
    base, rest = divmod(layers, pipeline_parallel)
    return tuple(
        base + (1 if pipeline_parallel - 1 - rest <= stage < pipeline_parallel - 1 else 0)
        for stage in range(pipeline_parallel)
    )


def kv_bytes_per_token(
    shape: ModelShape, precision: str, *, tensor_parallel: int = 1, layers: int | None = None
) -> int:
    """KV bytes of one token on one rank, over ``layers`` layers (default: all of them), scales included.

    >>> from kvbudget.served import named
    >>> kv_bytes_per_token(named("meta-llama/Llama-3.1-8B"), "BF16")
    131072
    >>> kv_bytes_per_token(named("Qwen/Qwen2.5-7B"), "BF16")
    57344
    """
    heads = kv_heads_per_rank(shape.kv_heads, tensor_parallel)
    codes = 2 * _ceil_div(shape.head_dim * element_bits(precision), 8)
    per_layer = heads * (codes + scale_bytes(precision, shape.head_dim))
    return (shape.layers if layers is None else layers) * per_layer


def page_bytes(
    shape: ModelShape, precision: str, page_tokens: int, *, tensor_parallel: int = 1, layers: int | None = None
) -> int:
    """Bytes of one page of ``page_tokens`` tokens over ``layers`` layers (default: all) of one rank.

    One layer of 8 KV heads of 128 and 64 tokens, for each name:

    >>> from kvbudget.served import named
    >>> llama = named("meta-llama/Llama-3.1-8B")
    >>> {p: page_bytes(llama, p, 64, layers=1) for p in ("BF16", "FP8E4M3", "INT8", "INT4", "NVFP4")}
    {'BF16': 262144, 'FP8E4M3': 131072, 'INT8': 133120, 'INT4': 81920, 'NVFP4': 73728}
    """
    return page_tokens * kv_bytes_per_token(shape, precision, tensor_parallel=tensor_parallel, layers=layers)


def pages_for(tokens: int, page_tokens: int) -> int:
    """Pages that a sequence of ``tokens`` tokens needs.

    >>> pages_for(64, 64), pages_for(65, 64)
    (1, 2)
    """
    return _ceil_div(tokens, page_tokens)
