"""Mixers of models that mix attention with something smaller: MiniMax's lightning attention, LFM2's short convolutions,
and the shared attention blocks of Zamba2.

What they keep follows vLLM (``model_executor/layers/mamba/mamba_utils.py``, ``models/minimax_text_01.py``, ``lfm2.py``,
``zamba2.py``), their parameters transformers.
"""

from kvbudget.layers import AttentionCache, DType, Elements, StateCache
from kvbudget.shapes.keys import Keys
from kvbudget.shapes.mixers import Mixer
from kvbudget.shapes.mlps import Mlp


def lightning(hidden: int, heads: int, head_dim: int, dtype: DType) -> Mixer:
    """MiniMax's linear attention: a square state per query head in the model's own precision, no convolution; weights
    of queries, keys, values, a gate and the output, all as wide as the heads together.

    >>> lightning(6144, 64, 128, "BF16").cache.state_per_head
    16384
    """
    width = heads * head_dim
    cache = StateCache(
        kind="lightning",
        conv_channels=0,
        group_channels=0,
        state_groups=0,
        conv_steps=0,
        heads=heads,
        state_per_head=head_dim * head_dim,
        conv_dtype=dtype,
        state_dtype=dtype,
    )
    return Mixer(cache, Elements(split=5 * hidden * width, kept=width))


def short_conv(keys: Keys, hidden: int, dtype: DType) -> Mixer:
    """LFM2's gated convolution over the last ``conv_L_cache`` tokens, of which all but the current are kept."""
    channels, kernel = keys.count("conv_dim", default=hidden), keys.count("conv_L_cache", least=2)
    bias = 4 * channels + hidden if keys.flag("conv_bias") else 0
    cache = StateCache(
        kind="conv",
        conv_channels=channels,
        group_channels=0,
        state_groups=0,
        conv_steps=kernel - 1,
        heads=0,
        state_per_head=0,
        conv_dtype=dtype,
        state_dtype=dtype,
    )
    return Mixer(cache, Elements(split=4 * hidden * channels, kept=channels * kernel + bias))


def shared_attention(keys: Keys, hidden: int, heads: int, cache: AttentionCache, *, owner: bool) -> Mixer:
    """Attention of a hybrid layer of Zamba2: over the layer's input beside the embedding, so 2 × hidden wide.

    Every hybrid layer keeps its own K and V. The weights are those of one of ``num_mem_blocks`` blocks, counted with
    the ``owner``, the first layer that uses the block; each layer has its own adapters and output projection."""
    queries, keys_wide, values = (
        heads * cache.head_dim,
        cache.kv_heads * cache.head_dim,
        cache.kv_heads * cache.v_head_dim,
    )
    split = kv = kept = 0
    if owner:
        split = 2 * hidden * queries + queries * hidden
        kv = 2 * hidden * (keys_wide + values)
        kept = 3 * hidden
    if keys.flag("use_shared_attention_adapter"):
        rank = keys.count("adapter_rank", default=128)
        split += 3 * 2 * hidden * rank + rank * (queries + keys_wide + values)
    return Mixer(cache, Elements(split=split, kv=kv, whole=hidden * hidden, kept=kept), heads)


def shared_mlp(keys: Keys, hidden: int, *, owner: bool) -> Mlp:
    """The MLP of a shared block, and the adapter that each hybrid layer has for it."""
    width = keys.count("intermediate_size", default=4 * hidden)
    rank = keys.count("adapter_rank", default=128)
    own = 3 * hidden * width if owner else 0
    return Mlp(elements=Elements(split=own + rank * (hidden + 2 * width)), intermediate=width)


def owners(keys: Keys, hybrid_layers: list[int]) -> frozenset[int]:
    """The first layer of each shared block: blocks take turns over the hybrid layers.

    >>> sorted(owners(Keys({"num_mem_blocks": 2}, "config.json"), [5, 11, 17, 23]))
    [5, 11]
    """
    return frozenset(hybrid_layers[: keys.count("num_mem_blocks", default=1)])
