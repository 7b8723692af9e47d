"""Models built from what their layers keep, for laws over shapes that no checkpoint has."""

from collections.abc import Sequence

from hypothesis import strategies as st

from kvbudget.layers import (
    Architecture,
    AttentionCache,
    Cache,
    Elements,
    FeedForward,
    LatentCache,
    LayerGroup,
    StateCache,
)


def decoder(
    caches: Sequence[Cache],
    *,
    hidden: int = 1024,
    vocab: int = 32000,
    heads: int = 32,
    intermediate: int = 4096,
    experts: int = 0,
    length: int = 131072,
) -> Architecture:
    """A model whose layer i keeps ``caches[i]``; its MLPs are dense, or of ``experts`` experts."""
    positions: dict[Cache, list[int]] = {}
    for index, cache in enumerate(caches):
        positions.setdefault(cache, []).append(index)
    own = Elements(split=2 * hidden * hidden, kv=2 * hidden * hidden, kept=2 * hidden)
    mlp = Elements(split=0 if experts else 3 * hidden * intermediate, experts=experts * 3 * hidden * intermediate)
    return Architecture(
        model_type="made up",
        hidden_size=hidden,
        vocab_size=vocab,
        attention_heads=heads,
        groups=tuple(
            LayerGroup(cache=c, layers=tuple(i), elements=own, query_heads=heads) for c, i in positions.items()
        ),
        feed_forward=(
            FeedForward(
                layers=tuple(range(len(caches))),
                elements=mlp,
                intermediate=0 if experts else intermediate,
                experts=experts,
                experts_per_token=2 if experts else 0,
                expert_intermediate=intermediate if experts else 0,
            ),
        ),
        max_position_embeddings=length,
    )


FULL = AttentionCache(kv_heads=8, head_dim=128, v_head_dim=128)
SLIDING = AttentionCache(kv_heads=8, head_dim=128, v_head_dim=128, window=1024)
CHUNKED = AttentionCache(kv_heads=8, head_dim=128, v_head_dim=128, chunk=8192)
LATENT = LatentCache(latent_dim=512, rope_dim=64)
STATE = StateCache(
    kind="gdn", conv_channels=8192, group_channels=0, state_groups=0, conv_steps=3, heads=32, state_per_head=128 * 128,
    conv_dtype="BF16", state_dtype="FP32",
)  # fmt: skip

ATTENTION = st.builds(
    lambda heads, dim, window: AttentionCache(kv_heads=heads, head_dim=dim, v_head_dim=dim, window=window),
    st.sampled_from((1, 2, 4, 8)),
    st.sampled_from((64, 128, 256)),
    st.sampled_from((None, None, 512, 1024, 4096)),
)


@st.composite
def attention_decoders(draw: st.DrawFn) -> Architecture:
    """Decoders of attention layers: alike, or some with a window of the same heads."""
    cache = draw(ATTENTION)
    other = AttentionCache(kv_heads=cache.kv_heads, head_dim=cache.head_dim, v_head_dim=cache.v_head_dim)
    layers = draw(st.lists(st.sampled_from((cache, other)), min_size=1, max_size=12))
    return decoder(layers, vocab=draw(st.sampled_from((32000, 128256))))


@st.composite
def decoders(draw: st.DrawFn) -> Architecture:
    """Decoders of any kind that keeps tokens somewhere."""
    kinds: tuple[Cache, ...] = draw(
        st.sampled_from(((FULL,), (FULL, SLIDING), (FULL, CHUNKED), (LATENT,), (FULL, STATE), (SLIDING,)))
    )
    layers: list[Cache] = [kinds[0], *draw(st.lists(st.sampled_from(kinds), min_size=0, max_size=12))]
    return decoder(layers, vocab=draw(st.sampled_from((32000, 128256))), experts=draw(st.sampled_from((0, 0, 8))))
