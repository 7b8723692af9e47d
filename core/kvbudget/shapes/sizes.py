"""Heads and widths that all layers of a model share, read with the family's rules."""

from typing import Final

from kvbudget.shapes.families import family_name
from kvbudget.shapes.keys import Keys

_MHA: Final = ("llama", "granite", "phi", "phi3", "olmo2", "cohere", "cohere2", "chatglm", "nemotron-nas", "zamba2")
"""Families whose code takes as many KV heads as query heads where the file names none. The classes of others have some
number of their own there (Mistral 8, Gemma 2 4, Qwen 3 32), which need not be the model's."""
_DOUBLE: Final = ("zamba2",)
"""Families whose attention sees the layer's input beside the embedding, so that heads are twice as wide."""


def model_name(keys: Keys) -> str:
    """The name under which the file's model_type is known, or an empty one."""
    return family_name(keys.text("model_type") or "")


def hidden_size(keys: Keys) -> int:
    return keys.count("hidden_size", "d_model", "n_embd")


def query_head_count(keys: Keys) -> int:
    return keys.count("num_attention_heads", "n_heads", "n_head")


def head_size(keys: Keys) -> int:
    """Width of a head: the file's, else hidden ÷ heads. Raises ShapeError where that is no whole number."""
    width, heads = hidden_size(keys), query_head_count(keys)
    if model_name(keys) in _DOUBLE:
        return max(1, 2 * width // heads)
    given = keys.optional("head_dim", "kv_channels")
    if given is None and width % heads and not keys.has("kv_lora_rank"):
        keys.fail(f"num_attention_heads {heads} does not divide hidden_size {width}; add head_dim")
    return max(1, width // heads) if given is None else given


def kv_head_count(keys: Keys) -> int:
    """Heads of K and V. Raises ShapeError where neither the file nor the family tells, and where they do not divide the
    query heads."""
    heads, name = query_head_count(keys), model_name(keys)
    grouped = keys.flag("multi_query_attention", default=True)
    kv_heads = keys.optional("num_key_value_heads", *(["multi_query_group_num"] if grouped else []), "n_head_kv")
    if kv_heads is None:
        if name not in _MHA and not keys.has("kv_lora_rank", "compress_ratios", "block_configs"):
            keys.fail(
                f"key num_key_value_heads is missing, and model_type {name or 'null'} does not tell how many heads of "
                f"K and V there are; add it ({heads} where each of the {heads} query heads has its own)"
            )
        return heads
    if heads % kv_heads:
        keys.fail(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}; "
            "every KV head serves the same number of query heads"
        )
    return kv_heads
