"""What the mixer of one layer keeps and how many parameters it has: attention, MLA, and the state-space kinds.

Parameters follow the models' code (transformers 5). Matrices that engines keep whole on every rank (MLA's down
projections, indexers) are ``whole``; norms, biases, convolutions and the like are ``kept``.
"""

from dataclasses import dataclass
from typing import Final

from kvbudget.layers import AttentionCache, Cache, CompressedCache, DType, Elements, LatentCache, NoCache, StateCache
from kvbudget.shapes.families import Family
from kvbudget.shapes.keys import Keys


@dataclass(frozen=True, slots=True)
class Mixer:
    """What one layer keeps, and its parameters with the norms before and after the mixer."""

    cache: Cache
    elements: Elements
    query_heads: int = 0


NOTHING: Final = Mixer(NoCache(), Elements())


def attention(
    hidden: int,
    heads: int,
    cache: AttentionCache,
    family: Family,
    *,
    keys_are_values: bool = False,
    index_heads: int = 0,
) -> Mixer:
    """Softmax attention: projections of queries, keys, values and output, and what the family adds.

    >>> mixer = attention(4096, 32, AttentionCache(kv_heads=8, head_dim=128, v_head_dim=128), Family())
    >>> mixer.elements.split, mixer.elements.kv
    (33554432, 8388608)
    """
    queries, keys, values = heads * cache.head_dim, cache.kv_heads * cache.head_dim, cache.kv_heads * cache.v_head_dim
    split = hidden * (queries + heads * cache.v_head_dim)
    whole = 0
    if family.output_gate == "wide":
        split += hidden * queries
    elif family.output_gate == "head":
        whole += hidden * heads
    kept = 0
    if family.qkv_bias:
        kept += queries + keys + values
    if family.o_bias:
        kept += hidden
    if family.qk_norm == "head":
        kept += 2 * cache.head_dim
    elif family.qk_norm == "all":
        kept += queries + keys
    if family.sinks == "all" or (family.sinks == "sliding" and cache.window is not None):
        kept += heads
    if cache.index_dim:
        whole += hidden * cache.index_dim * (index_heads + 1)
        kept += 2 * cache.index_dim
    kv = hidden * (keys if keys_are_values else keys + values)
    return Mixer(cache, Elements(split=split, kv=kv, whole=whole, kept=kept), heads)


def shared(hidden: int, heads: int, cache: AttentionCache, family: Family) -> Elements:
    """Parameters of a layer that attends to an earlier layer's K and V: queries and output only."""
    own = attention(hidden, heads, cache, family).elements
    norms = cache.head_dim if family.qk_norm == "head" else 0
    return Elements(split=own.split, kept=own.kept - norms)


def latent(keys: Keys, hidden: int, heads: int, *, indexed: bool, output_gate: bool = False) -> Mixer:
    """MLA: queries (through their own low rank where there is one), the shared latent, and its expansion per head.

    Needs kv_lora_rank, qk_nope_head_dim and v_head_dim; ``indexed`` layers have a sparse-attention indexer too."""
    rank, rope = keys.count("kv_lora_rank"), keys.count("qk_rope_head_dim")
    nope, value = keys.count("qk_nope_head_dim", default=128), keys.count("v_head_dim", default=128)
    q_rank = keys.optional("q_lora_rank")
    query = heads * (nope + rope)
    split = rank * heads * (nope + value) + heads * value * hidden
    whole = hidden * (rank + rope)
    kept = rank
    if q_rank is None:
        split += hidden * query
    else:
        split += q_rank * query
        whole += hidden * q_rank
        kept += q_rank
    if output_gate:
        split += hidden * heads * value
    index_dim = 0
    if indexed:
        index_dim, index_heads = keys.count("index_head_dim"), keys.count("index_n_heads")
        whole += (q_rank or hidden) * index_heads * index_dim + hidden * index_dim
        kept += 2 * index_dim + hidden * index_heads
    cache = LatentCache(latent_dim=rank, rope_dim=rope, index_dim=index_dim)
    return Mixer(cache, Elements(split=split, whole=whole, kept=kept), heads)


def compressed(keys: Keys, hidden: int, heads: int, ratio: int) -> Mixer:
    """DeepSeek-V4: one key-value head whose last ``sliding_window`` entries are whole, and older ones are averaged by
    learned gates into one entry per ``ratio`` tokens (4: two overlapping streams and an indexer; 128: one stream)."""
    dim, rope, rank = keys.count("head_dim"), keys.count("qk_rope_head_dim"), keys.count("q_lora_rank")
    groups, o_rank = keys.count("o_groups", default=8), keys.count("o_lora_rank", default=1024)
    if rope >= dim:
        keys.fail(f"qk_rope_head_dim is {rope}; it must be less than head_dim {dim}, of which it is a part")
    split = rank * heads * dim + heads * dim * o_rank + groups * o_rank * hidden
    whole = hidden * rank + hidden * dim
    kept = rank + dim + heads
    index_dim = 0
    if ratio:
        overlapping = ratio == _INDEXED_RATIO
        wide = 2 * dim if overlapping else dim
        whole += 2 * hidden * wide
        kept += ratio * wide + dim
        if overlapping:
            index_dim, index_heads = keys.count("index_head_dim"), keys.count("index_n_heads")
            whole += 2 * hidden * 2 * index_dim + rank * index_heads * index_dim
            kept += ratio * 2 * index_dim + index_dim + hidden * index_heads
    cache = CompressedCache(
        latent_dim=dim - rope, rope_dim=rope, window=keys.count("sliding_window"), ratio=ratio, index_dim=index_dim
    )
    return Mixer(cache, Elements(split=split, whole=whole, kept=kept), heads)


_INDEXED_RATIO: Final = 4
"""The ratio whose layers select entries by an indexer."""


def gated_delta(keys: Keys, hidden: int, dtype: DType, state_dtype: DType) -> Mixer:
    """Gated DeltaNet (Qwen3-Next, 3.5 and later): a state of key width × value width per value head, a convolution over
    queries, keys and values."""
    key_heads, key_dim = keys.count("linear_num_key_heads"), keys.count("linear_key_head_dim")
    value_heads, value_dim = keys.count("linear_num_value_heads"), keys.count("linear_value_head_dim")
    kernel = keys.count("linear_conv_kernel_dim", least=2)
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    split = hidden * (channels + 2 * value_heads * value_dim + 2 * value_heads)
    kept = channels * kernel + 2 * value_heads + value_dim
    cache = StateCache(
        kind="gdn",
        conv_channels=channels,
        group_channels=0,
        state_groups=0,
        conv_steps=kernel - 1,
        heads=value_heads,
        state_per_head=key_dim * value_dim,
        conv_dtype=dtype,
        state_dtype=state_dtype,
    )
    return Mixer(cache, Elements(split=split, kept=kept))


def kimi_delta(keys: Keys, hidden: int, dtype: DType, state_dtype: DType) -> Mixer:
    """Kimi Delta Attention: a square state per head, convolutions over queries, keys and values, and low-rank gates.
    ``keys`` is ``linear_attn_config``."""
    heads, dim = keys.count("num_heads"), keys.count("head_dim")
    kernel = keys.count("short_conv_kernel_size", default=4, least=2)
    width = heads * dim
    gates = hidden * dim + dim * width
    output_gate = hidden * width if keys.flag("use_full_rank_gate") else gates
    split = 4 * hidden * width + gates + output_gate
    kept = 3 * width * kernel + hidden * heads + width + heads + dim
    cache = StateCache(
        kind="kda",
        conv_channels=3 * width,
        group_channels=0,
        state_groups=0,
        conv_steps=kernel - 1,
        heads=heads,
        state_per_head=dim * dim,
        conv_dtype=dtype,
        state_dtype=state_dtype,
    )
    return Mixer(cache, Elements(split=split, kept=kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """Sizes of a Mamba-2 layer; model families name their keys differently."""

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int


def mamba2(sizes: Mamba2, hidden: int, dtype: DType, state_dtype: DType, *, gated_norm: bool = True) -> Mixer:
    """Mamba-2: one projection to gate, input, B, C and step, a convolution over input, B and C, a state of head width ×
    state size per head."""
    inner, groups = sizes.heads * sizes.head_dim, sizes.groups * sizes.state
    channels = inner + 2 * groups
    split = hidden * (inner + channels + sizes.heads) + inner * hidden
    kept = channels * (sizes.kernel + 1) + 3 * sizes.heads + (inner if gated_norm else 0)
    cache = StateCache(
        kind="mamba2",
        conv_channels=inner,
        group_channels=2 * sizes.state,
        state_groups=sizes.groups,
        conv_steps=sizes.kernel - 1,
        heads=sizes.heads,
        state_per_head=sizes.head_dim * sizes.state,
        conv_dtype=dtype,
        state_dtype=state_dtype,
    )
    return Mixer(cache, Elements(split=split, kept=kept))


def mamba1(keys: Keys, hidden: int, dtype: DType, state_dtype: DType) -> Mixer:
    """Mamba-1 (Jamba): as many channels as the inner width, each with its own state; the step size has a low rank."""
    state, kernel = keys.count("mamba_d_state", "state_size"), keys.count("mamba_d_conv", "conv_kernel", least=2)
    inner = hidden * keys.count("mamba_expand", "expand", default=2)
    rank = keys.count("mamba_dt_rank", "time_step_rank", default=-(-hidden // 16))
    split = 3 * hidden * inner + inner * (rank + 2 * state) + rank * inner
    kept = inner * (kernel + 1) + inner + inner * (state + 1) + rank + 2 * state
    cache = StateCache(
        kind="mamba1",
        conv_channels=inner,
        group_channels=0,
        state_groups=0,
        conv_steps=kernel - 1,
        heads=inner,
        state_per_head=state,
        conv_dtype=dtype,
        state_dtype=state_dtype,
    )
    return Mixer(cache, Elements(split=split, kept=kept))
