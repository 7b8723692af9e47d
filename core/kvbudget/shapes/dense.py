"""Between the two descriptions of a dense decoder: :class:`ModelShape`, which a manifest and a Plan carry, and
:class:`Architecture`, which the engines' budgets read."""

from kvbudget.layers import Architecture, AttentionCache, DType, LayerGroup, uniform
from kvbudget.shape import ModelShape
from kvbudget.shapes import mlps
from kvbudget.shapes.families import Family
from kvbudget.shapes.mixers import attention

_LLAMA = Family()


def architecture_of(shape: ModelShape, *, dtype: DType = "BF16") -> Architecture:
    """The same model as groups of layers: every layer is attention over all tokens and a gated MLP.

    >>> from kvbudget.served import named
    >>> from kvbudget.weights import total_parameters
    >>> total_parameters(architecture_of(named("meta-llama/Llama-3.1-8B")))
    8030261248
    """
    layers = tuple(range(shape.layers))
    cache = AttentionCache(kv_heads=shape.kv_heads, head_dim=shape.head_dim, v_head_dim=shape.head_dim)
    mixer = attention(shape.hidden_size, shape.attention_heads, cache, _LLAMA)
    norms = _LLAMA.norms * shape.hidden_size
    bits = 32000 if dtype == "FP32" else 16000
    return Architecture(
        model_type="dense",
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        attention_heads=shape.attention_heads,
        groups=(
            LayerGroup(
                cache=cache, layers=layers, elements=mixer.elements.with_kept(norms), query_heads=mixer.query_heads
            ),
        ),
        feed_forward=mlps.grouped([mlps.dense(shape.hidden_size, shape.intermediate_size, _LLAMA)] * shape.layers),
        max_position_embeddings=shape.max_position_embeddings,
        tied_embeddings=shape.tied_embeddings,
        dtype=dtype,
        weights=uniform(dtype, bits, table_millibits=bits),
        weight_bytes=shape.weight_bytes,
        rope_scaling=shape.rope_scaling,
    )


def dense_of(model: Architecture) -> ModelShape | None:
    """The :class:`ModelShape` of a model all of whose layers keep the same K and V and have the same dense MLP; None
    for every other kind, which the bundled engine does not serve."""
    if len(model.groups) != 1 or len(model.feed_forward) != 1 or model.extra or model.vision_parameters != 0:
        return None
    cache, mlp = model.groups[0].cache, model.feed_forward[0]
    plain = isinstance(cache, AttentionCache) and cache == AttentionCache(
        kv_heads=cache.kv_heads, head_dim=cache.head_dim, v_head_dim=cache.head_dim
    )
    if not plain or not isinstance(cache, AttentionCache) or mlp.experts or len(mlp.layers) != model.layers:
        return None
    if model.max_position_embeddings is None:
        return None
    return ModelShape(
        layers=model.layers,
        hidden_size=model.hidden_size,
        intermediate_size=mlp.intermediate,
        attention_heads=model.attention_heads,
        kv_heads=cache.kv_heads,
        head_dim=cache.head_dim,
        vocab_size=model.vocab_size,
        max_position_embeddings=model.max_position_embeddings,
        tied_embeddings=model.tied_embeddings,
        weight_bytes=model.weight_bytes,
        rope_scaling=model.rope_scaling,
    )
