"""The facts of a model from which its memory follows."""

from kvbudget.api.base import Model


class ModelShape(Model):
    """A dense decoder: every layer keeps K and V for every token (MHA, GQA or MQA).

    ``kv_heads == attention_heads`` is MHA, 1 is MQA, anything between is GQA.
    """

    layers: int
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tied_embeddings: bool = False
    weight_bytes: int | None = None
    """Bytes of the checkpoint where known; else the weights are counted from the shape and the weight precision."""
    rope_scaling: bool = False
    """The position encoding can be stretched: a maxModelLen above max_position_embeddings is then a warning."""
