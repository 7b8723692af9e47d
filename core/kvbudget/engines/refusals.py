"""What makes an engine refuse to load, before any memory is counted."""

from kvbudget.engines.settings import Settings
from kvbudget.layers import Architecture, AttentionCache, StateCache

VOCABULARY_PADDING = 64
"""The vocabulary is padded to a multiple of this before ranks divide it (vLLM: vocab_parallel_embedding.py)."""


def refusal(arch: Architecture, settings: Settings) -> str | None:
    """Why the model cannot be split so, or None.

    Query heads and the padded vocabulary must divide by the ranks; KV heads must divide or be replicated evenly; the
    stages must be no more than the layers."""
    ranks, stages = settings.tensor_parallel, settings.pipeline_parallel
    if stages > arch.layers:
        return f"pipeline parallelism {stages} is more than the {arch.layers} layers; use at most {arch.layers}"
    if ranks == 1:
        return None
    if arch.attention_heads % ranks:
        return f"tensor parallelism {ranks} does not divide the {arch.attention_heads} attention heads"
    for group in arch.groups:
        match group.cache:
            case AttentionCache(kv_heads=heads) if heads % ranks and ranks % heads:
                return f"tensor parallelism {ranks} neither divides the {heads} KV heads nor is a multiple of them"
            case StateCache(heads=heads) if heads % ranks:
                return f"tensor parallelism {ranks} does not divide the {heads} heads of the {group.cache.kind} layers"
            case _:
                pass
    padded = -(-arch.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING
    if padded % ranks:
        return f"tensor parallelism {ranks} does not divide the padded vocabulary of {padded}"
    return None
