"""Draft layers that come with a checkpoint (multi-token prediction)."""

from kvbudget.layers import AttentionCache, CompressedCache, Draft, Elements, LatentCache
from kvbudget.shapes.layerlist import Plan
from kvbudget.shapes.mixers import Mixer
from kvbudget.shapes.mlps import Mlp

_OWN_TABLES = ("deepseek_v3", "deepseek_v32")
"""Families whose draft layer comes with its own embedding and output projection."""
_NOT_PUBLISHED = ("minimax_m2",)
"""Families whose files count draft layers that their checkpoints do not hold."""


def draft_of(plan: Plan, mixers: list[tuple[Mixer, ...]], mlps: list[Mlp]) -> Draft | None:
    """The draft that the checkpoint holds, or None. Each of its layers is like the last attention layer of the model,
    after a projection of two hidden states into one."""
    keys = plan.keys
    count = keys.count("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=0, least=0)
    if not count or plan.name in _NOT_PUBLISHED:
        return None
    last = next(
        (
            i
            for i in reversed(range(plan.layers))
            if isinstance(mixers[i][0].cache, AttentionCache | LatentCache | CompressedCache)
        ),
        None,
    )
    if last is None:
        return None
    mixer = mixers[last][0]
    cache = mixer.cache
    if isinstance(cache, CompressedCache):  # the list of ratios ends with the draft's, which is 0
        cache = CompressedCache(latent_dim=cache.latent_dim, rope_dim=cache.rope_dim, window=cache.window, ratio=0)
    mlp = max(mlps, key=lambda found: found.elements.total)
    hidden = plan.hidden
    tables = 2 * keys.count("vocab_size") * hidden if plan.name in _OWN_TABLES else 0
    own = Elements(whole=2 * hidden * hidden, kept=(3 + plan.family.norms) * hidden + tables)
    return Draft(kind="mtp", layers=count, cache=cache, elements=mixer.elements + mlp.elements + own)
