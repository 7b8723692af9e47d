"""Which kind each layer is, by whichever key of the file says so.

The keys are tried from the most to the least telling; a list with one entry a layer always wins over a rule. Kinds are
the words of :data:`Kind`.
"""

from collections.abc import Iterable
from typing import Final, Literal, NoReturn

from kvbudget.shapes.families import Family
from kvbudget.shapes.keys import Keys, short

Kind = Literal[
    "full", "sliding", "chunked", "mla", "compressed", "linear", "conv", "mamba", "parallel", "hybrid", "mlp", "moe"
]
"""``linear``: Gated DeltaNet, Kimi Delta or lightning attention. ``conv``: a short convolution. ``parallel``: attention
beside Mamba in one layer; ``hybrid``: the same with a shared block (Zamba2). ``mlp`` and ``moe``: a layer of its own
without a mixer (Nemotron-H)."""

_WORDS: Final[dict[str, Kind]] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "sliding_window_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "deepseek_sparse_attention": "mla",
    "indexed_attention": "mla",
    "mla": "mla",
    "mamba": "mamba",
    "mamba2": "mamba",
    "conv": "conv",
    "hybrid": "hybrid",
    "mlp": "mlp",
    "moe": "moe",
}
_LETTERS: Final[dict[str, Kind]] = {"M": "mamba", "*": "full", "-": "mlp", "E": "moe"}


_TYPE_LISTS: Final = ("attn_type_list", "decoder_attention_types")
_STATE_KEYS: Final = (
    "mamba_d_ssm",
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
    "conv_L_cache",
    "linear_num_key_heads",
)
"""Keys of layers with a state: in a model that has them, not every layer is attention."""


def _chosen(marks: Iterable[bool], yes: Kind, no: Kind) -> tuple[Kind, ...]:
    found: list[Kind] = [yes if mark else no for mark in marks]
    return tuple(found)


def _every(kind: Kind, layers: int) -> tuple[Kind, ...]:
    return (kind,) * layers


def layer_count(keys: Keys) -> int:
    """Layers of the model: the number itself, or the length of the list that describes them."""
    given = keys.optional("num_hidden_layers", "num_layers", "n_layers", "n_layer")
    if given is not None:
        return given
    for key in ("layers_block_type", "layer_types", "hybrid_override_pattern"):
        value = keys.config.get(key)
        if isinstance(value, list | tuple | str) and value:
            return keys.whole(len(value), f"the length of {key}", least=1, most=1024)
    return keys.count("num_hidden_layers")


def layer_kinds(keys: Keys, layers: int, family: Family) -> tuple[Kind, ...]:
    """The kind of each layer. Raises ShapeError for a word or a letter that is not known, and for lists of another
    length."""
    pattern = keys.text("hybrid_override_pattern")
    if pattern is not None:
        return _lettered(keys, pattern, layers)
    if keys.has("layers_block_type"):
        return _worded(keys, "layers_block_type", layers, family)
    if keys.has("attn_layer_period"):
        period, offset = keys.count("attn_layer_period"), keys.count("attn_layer_offset", default=0, least=0)
        return _chosen((i % period == offset for i in range(layers)), "full", "mamba")
    if keys.has("attn_layer_indices"):
        full = set(keys.counts("attn_layer_indices", None, most=layers - 1) or ())
        return _chosen((i in full for i in range(layers)), "full", "mamba")
    if keys.has("linear_attn_config"):
        return _kimi(keys, layers)
    typed = _typed(keys, layers, family)
    if typed:
        return typed
    if keys.has("compress_ratios"):
        return _every("compressed", layers)
    if keys.has("hybrid_layer_pattern"):
        marks = keys.counts("hybrid_layer_pattern", layers, most=1) or ()
        return _chosen((mark == 1 for mark in marks), "sliding", "full")
    if keys.has("layer_types"):
        kinds = _worded(keys, "layer_types", layers, family)
        softmax: Kind = "mla" if keys.has("kv_lora_rank") else "full"
        return tuple(softmax if kind == "full" else kind for kind in kinds)
    if keys.has("kv_lora_rank"):
        return _every("mla", layers)
    if keys.has("full_attention_interval"):
        interval = keys.count("full_attention_interval")
        return _chosen(((i + 1) % interval == 0 for i in range(layers)), "full", "linear")
    if family.states == "parallel":
        return _every("parallel", layers)
    if family.shared_blocks or family.linear == "lightning" or keys.has(*_STATE_KEYS):
        keys.fail("no list says what each layer is, although some have a state; add layer_types")
    if keys.has("attention_chunk_size") and not keys.has("sliding_window"):
        return _chunked(keys, layers, family)
    return _windowed(keys, layers, family)


def _lettered(keys: Keys, pattern: str, layers: int) -> tuple[Kind, ...]:
    unknown = sorted(set(pattern) - set(_LETTERS))
    if unknown:
        keys.fail(f"hybrid_override_pattern has {short(unknown[0])}; known: M Mamba, * attention, - MLP, E experts")
    if len(pattern) != layers:
        keys.fail(f"hybrid_override_pattern has {len(pattern)} letters for {layers} layers; it must have one for each")
    return tuple(_LETTERS[letter] for letter in pattern)


def _typed(keys: Keys, layers: int, family: Family) -> tuple[Kind, ...]:
    """MiniMax's lists, in which 1 is attention and 0 a linear layer; empty where no layer is linear."""
    key = next((key for key in _TYPE_LISTS if keys.config.get(key) is not None), None)
    marks = () if key is None else keys.counts(key, layers, most=1) or ()
    if 0 in marks and family.linear != "lightning":
        keys.fail(f"{key} is {short(list(marks))}: what its linear layers keep is known of MiniMax's models only")
    return _chosen((mark == 1 for mark in marks), "full", "linear") if 0 in marks else ()


def _worded(keys: Keys, key: str, layers: int, family: Family) -> tuple[Kind, ...]:
    words = keys.words(key, layers) or ()
    unknown = sorted({word for word in words if word not in _WORDS or (word == "hybrid" and not family.shared_blocks)})
    if unknown:
        keys.fail(f"{key} has {short(unknown[0])}, of which it is not known what it keeps; known: {', '.join(_WORDS)}")
    states = keys.has("mamba_num_heads", "mamba_n_heads", "n_mamba_heads") and not keys.has("linear_num_key_heads")
    return tuple("mamba" if states and _WORDS[word] == "linear" else _WORDS[word] for word in words)


def _kimi(keys: Keys, layers: int) -> tuple[Kind, ...]:
    nested = keys.child("linear_attn_config")
    if nested is None:
        return _every("mla", layers)
    full = set(nested.counts("full_attn_layers", None, least=1, most=layers) or ())  # counted from 1
    linear = set(nested.counts("kda_layers", None, least=1, most=layers) or ())
    if full & linear or len(full | linear) != layers:
        nested.fail(f"full_attn_layers and kda_layers must name each of the {layers} layers once, counted from 1")
    softmax: Kind = "mla" if keys.has("kv_lora_rank") else "full"
    return _chosen((i + 1 in full for i in range(layers)), softmax, "linear")


def _chunked(keys: Keys, layers: int, family: Family) -> tuple[Kind, ...]:
    """Llama 4: every fourth layer attends to everything and has no position encoding, the others to their chunk."""
    listed = keys.counts("no_rope_layers", layers, most=1) if keys.has("no_rope_layers") else None
    if listed is not None:
        return _chosen((uses_rope == 1 for uses_rope in listed), "chunked", "full")
    if family.window == "untold" and not keys.has("no_rope_layer_interval"):
        _untold(keys, "attention_chunk_size", "are cut into chunks")
    interval = keys.count("no_rope_layer_interval", default=4)
    return _chosen(((i + 1) % interval == 0 for i in range(layers)), "full", "chunked")


def _windowed(keys: Keys, layers: int, family: Family) -> tuple[Kind, ...]:
    window = keys.optional("sliding_window", least=0)
    if not window or not keys.flag("use_sliding_window", default=True):
        return _every("full", layers)
    longest = keys.optional("max_position_embeddings")
    if longest is not None and window >= longest:
        return _every("full", layers)
    if keys.has("sliding_window_pattern") or family.window == "pattern":
        period = keys.count("sliding_window_pattern", default=family.pattern)
        return _chosen(((i + 1) % period == 0 for i in range(layers)), "full", "sliding")
    if family.window == "even":
        return _chosen((i % 2 == 0 for i in range(layers)), "sliding", "full")
    if family.window == "untold" and not keys.has("max_window_layers"):
        _untold(keys, "sliding_window", "slide")
    if family.window in ("above_max_window_layers", "untold"):
        first = keys.count("max_window_layers", default=0, least=0)
        return _chosen((i >= first for i in range(layers)), "sliding", "full")
    return _every("sliding", layers)


def _untold(keys: Keys, key: str, what: str) -> NoReturn:
    name = short(keys.config.get("model_type"))
    keys.fail(
        f"{key} is {short(keys.config[key])}, but of model_type {name} it is not known which layers {what}; "
        "add layer_types"
    )
