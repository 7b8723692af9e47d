"""From the sizes of a model to the mixer and the MLP of each of its layers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kvbudget.layers import AttentionCache, DType, Elements, SharedCache
from kvbudget.shapes import hybrids, mixers, mlps
from kvbudget.shapes.families import Family
from kvbudget.shapes.keys import MAX_LENGTH, MAX_WIDTH, Keys, short
from kvbudget.shapes.mixers import Mamba2, Mixer
from kvbudget.shapes.mlps import Mlp
from kvbudget.shapes.stack import Kind, layer_kinds

_STATE_DTYPES: Final[dict[str, DType]] = {"float32": "FP32", "bfloat16": "BF16", "float16": "FP16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of a model that its layers share. ``notes`` collects what was assumed while they are worked out."""

    keys: Keys
    family: Family
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: DType
    notes: list[str] = field(default_factory=list)

    @property
    def layer_extra(self) -> int:
        """Elements of a layer beside mixer, MLP and norms: the stream mixers of DeepSeek-V4, and those of Gemma 3n
        (AltUp) with its low-rank residual (Laurel)."""
        streams = self.keys.count("hc_mult", default=0, least=0)
        rows = (2 + streams) * streams
        mixing = 2 * (rows * streams * self.hidden + rows + 3) if streams else 0
        altup, rank = (self.keys.count(key, default=0, least=0) for key in ("altup_num_inputs", "laurel_rank"))
        if altup:
            mixing += altup**2 + altup**3 + (altup + 2) * self.hidden
        return mixing + ((2 * rank + 1) * self.hidden if rank else 0)


def layer_mixers(plan: Plan) -> list[tuple[Mixer, ...]]:
    """The mixers of each layer; two where attention and a state run side by side."""
    keys = plan.keys
    if keys.has("block_configs"):
        return [(_block_mixer(plan, block),) for block in _blocks(plan)]
    kinds = layer_kinds(keys, plan.layers, plan.family)
    made: dict[tuple[Kind, int], tuple[Mixer, ...]] = {}
    found = []
    owners = hybrids.owners(keys, [i for i, kind in enumerate(kinds) if kind == "hybrid"])
    for index, kind in enumerate(kinds):
        variant = int(index in owners) if kind == "hybrid" else _variant(plan, kind, index)
        if (kind, variant) not in made:
            made[kind, variant] = _mixers(plan, kind, variant)
        found.append(made[kind, variant])
    return _with_shared(plan, found)


def _variant(plan: Plan, kind: Kind, index: int) -> int:
    """What tells layers of one kind apart: the compression ratio, or whether the layer has an indexer."""
    keys = plan.keys
    if kind == "compressed":
        return (keys.counts("compress_ratios", plan.layers) or ())[index]
    if kind == "mla" and keys.has("index_head_dim"):
        return int(_has_indexer(plan, index))
    if kind == "full" and keys.has("sparse_attention_config"):
        nested = keys.child("sparse_attention_config")
        marks = nested.counts("sparse_attention_freq", plan.layers, most=1) if nested is not None else None
        return 1 if marks is None else marks[index]
    return 0


def _has_indexer(plan: Plan, index: int) -> bool:
    """Whether an MLA layer has its own indexer; others reuse the choice of the one before."""
    types = plan.keys.words("indexer_types", plan.layers)
    if types is not None:
        return types[index] == "full"
    pattern = plan.keys.text("index_topk_pattern")
    if pattern:
        if len(pattern) < plan.layers or set(pattern.upper()) - {"F", "S"}:
            plan.keys.fail(
                f"index_topk_pattern is {short(pattern)}; it must have F or S for each of {plan.layers} layers"
            )
        return pattern[index].upper() == "F"
    every = plan.keys.count("index_topk_freq", default=1)
    first = plan.keys.count("index_skip_topk_offset", default=3, least=0)
    return max(index - first + 1, 0) % every == 0


def _mixers(plan: Plan, kind: Kind, variant: int) -> tuple[Mixer, ...]:
    keys, hidden, heads = plan.keys, plan.hidden, plan.heads
    match kind:
        case "full":
            return (_full(plan, variant),)
        case "sliding":
            return (_sliding(plan),)
        case "chunked":
            return (_attention(plan, chunk=keys.count("attention_chunk_size")),)
        case "mla":
            gate = keys.flag("mla_use_output_gate")
            indexed = bool(variant) and keys.has("index_head_dim")
            return (mixers.latent(keys, hidden, heads, indexed=indexed, output_gate=gate),)
        case "compressed":
            return (mixers.compressed(keys, hidden, heads, variant),)
        case "linear" if plan.family.linear == "lightning":
            return (hybrids.lightning(hidden, heads, plan.head_dim, plan.dtype),)
        case "linear":
            nested = keys.child("linear_attn_config")
            if nested is not None:
                return (mixers.kimi_delta(nested, hidden, plan.dtype, _state_dtype(plan)),)
            return (mixers.gated_delta(keys, hidden, plan.dtype, _state_dtype(plan)),)
        case "mamba":
            return (_mamba(plan),)
        case "conv":
            return (hybrids.short_conv(keys, hidden, plan.dtype),)
        case "parallel":
            return (_attention(plan), _mamba(plan))
        case "hybrid":
            cache = AttentionCache(kv_heads=plan.kv_heads, head_dim=plan.head_dim, v_head_dim=plan.head_dim)
            shared = hybrids.shared_attention(keys, hidden, heads, cache, owner=bool(variant))
            return (shared, _mamba(plan))
        case "mlp" | "moe":
            return (mixers.NOTHING,)


def _attention(plan: Plan, *, window: int | None = None, chunk: int | None = None) -> Mixer:
    value = plan.keys.count("v_head_dim", default=plan.head_dim)
    cache = AttentionCache(kv_heads=plan.kv_heads, head_dim=plan.head_dim, v_head_dim=value, window=window, chunk=chunk)
    return mixers.attention(plan.hidden, plan.heads, cache, plan.family)


def _full(plan: Plan, sparse: int) -> Mixer:
    keys = plan.keys
    if keys.has("global_head_dim", "num_global_key_value_heads") or keys.flag("attention_k_eq_v"):
        dim = keys.count("global_head_dim", default=plan.head_dim)
        kv_heads = keys.count("num_global_key_value_heads", default=plan.kv_heads)
        cache = AttentionCache(kv_heads=kv_heads, head_dim=dim, v_head_dim=dim)
        equal = keys.flag("attention_k_eq_v")
        return mixers.attention(plan.hidden, plan.heads, cache, plan.family, keys_are_values=equal)
    nested = keys.child("sparse_attention_config")
    if nested is None or not sparse:
        return _attention(plan)
    index_dim, index_heads = nested.count("sparse_index_dim"), nested.count("sparse_num_index_heads", default=1)
    base = _attention(plan).cache
    if not isinstance(base, AttentionCache):
        return _attention(plan)
    note = "sparse_attention_config: one 16-bit index key per token and layer is taken to be kept on every rank"
    if note not in plan.notes:
        plan.notes.append(note)
    cache = replace(base, index_dim=index_dim)
    return mixers.attention(plan.hidden, plan.heads, cache, plan.family, index_heads=index_heads)


def _sliding(plan: Plan) -> Mixer:
    keys = plan.keys
    dim = keys.count("swa_head_dim", default=plan.head_dim)
    cache = AttentionCache(
        kv_heads=keys.count("swa_num_key_value_heads", default=plan.kv_heads),
        head_dim=dim,
        v_head_dim=keys.count("swa_v_head_dim", "v_head_dim", default=dim),
        window=keys.count("sliding_window"),
    )
    heads = keys.count("swa_num_attention_heads", "num_sliding_attention_heads", default=plan.heads)
    return mixers.attention(plan.hidden, heads, cache, plan.family)


def _mamba(plan: Plan) -> Mixer:
    keys, state = plan.keys, _state_dtype(plan)
    if plan.family.mamba == "mamba1":
        return mixers.mamba1(keys, plan.hidden, plan.dtype, state)
    heads = keys.count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    inner = keys.optional("mamba_d_ssm") or plan.hidden * keys.count("mamba_expand", "expand", default=2)
    sizes = Mamba2(
        heads=heads,
        head_dim=keys.count("mamba_head_dim", "mamba_d_head", "mamba_headdim", default=max(1, inner // heads)),
        state=keys.count("ssm_state_size", "mamba_d_state"),
        groups=keys.count("mamba_n_groups", "mamba_ngroups", "n_groups", default=1),
        kernel=keys.count("conv_kernel", "mamba_d_conv", default=4, least=2),
    )
    gated = keys.flag("mamba_rms_norm", default=plan.name != "falcon_h1")
    return mixers.mamba2(sizes, plan.hidden, plan.dtype, state, gated_norm=gated)


def _state_dtype(plan: Plan) -> DType:
    value = plan.keys.text("mamba_ssm_cache_dtype") or plan.keys.text("mamba_ssm_dtype")
    if value is None and plan.family.window == "untold" and _STATE_NOTE not in plan.notes:
        plan.notes.append(_STATE_NOTE)
    if value is None or value == "auto":
        return "FP32" if plan.family.state_dtype_is_float32 else plan.dtype
    if value not in _STATE_DTYPES:
        plan.keys.fail(f"mamba_ssm_dtype is {short(value)}; known: {', '.join(_STATE_DTYPES)}")
    return _STATE_DTYPES[value]


_STATE_NOTE: Final = "the precision of the state is not known; the model's own is taken, FP32 would be twice that"


def _with_shared(plan: Plan, found: list[tuple[Mixer, ...]]) -> list[tuple[Mixer, ...]]:
    """The last ``num_kv_shared_layers`` keep nothing: they read K and V of the last layer before of their kind."""
    count = plan.keys.count("num_kv_shared_layers", default=0, least=0)
    if not count:
        return found
    if count >= plan.layers:
        plan.keys.fail(f"num_kv_shared_layers is {count} of {plan.layers} layers; at least one must keep its own")
    first = plan.layers - count
    own = {layer[0].cache for layer in found[:first]}
    result = found[:first]
    for index, layer in enumerate(found[first:], start=first):
        cache = layer[0].cache
        if not isinstance(cache, AttentionCache) or cache not in own:
            plan.keys.fail(f"layer {index} shares K and V, but no layer before it keeps the same")
        own_weights = plan.family.shared_projections
        heads = layer[0].query_heads
        elements = layer[0].elements if own_weights else mixers.shared(plan.hidden, heads, cache, plan.family)
        result.append((Mixer(SharedCache(like=cache), elements, layer[0].query_heads),))
    return result


def layer_mlps(plan: Plan) -> list[Mlp]:
    """The MLP of each layer."""
    keys, hidden = plan.keys, plan.hidden
    if keys.has("block_configs"):
        return [_block_mlp(plan, block) for block in _blocks(plan)]
    kinds = layer_kinds(keys, plan.layers, plan.family)
    if plan.name == "nemotron_h" or {"mlp", "moe"} & set(kinds):
        width = keys.count("intermediate_size")
        made: dict[Kind, Mlp] = {}
        if "mlp" in kinds:
            made["mlp"] = mlps.dense(hidden, width, plan.family)
        if "moe" in kinds:
            made["moe"] = mlps.mixture(keys, hidden, plan.family)
        return [made.get(kind, mlps.NONE) for kind in kinds]
    if plan.family.shared_blocks:
        owners = hybrids.owners(keys, [i for i, kind in enumerate(kinds) if kind == "hybrid"])
        both = {owner: hybrids.shared_mlp(keys, hidden, owner=owner) for owner in (True, False)}
        return [both[i in owners] if kind == "hybrid" else mlps.NONE for i, kind in enumerate(kinds)]
    marks = mlps.expert_layers(keys, plan.layers)
    widths = () if all(marks) else _dense_widths(plan, any(marks))
    dense = {width: mlps.dense(hidden, width, plan.family) for width in set(widths)}
    expert = _expert_mlp(plan) if any(marks) else mlps.NONE
    result = [expert if mark else dense[widths[i]] for i, mark in enumerate(marks)]
    if keys.flag("use_double_wide_mlp"):
        first = plan.layers - keys.count("num_kv_shared_layers", default=0, least=0)
        wide = mlps.dense(hidden, 2 * _dense_width(plan, any(marks)), plan.family)
        result = [wide if index >= first else mlp for index, mlp in enumerate(result)]
    per_layer = keys.count("hidden_size_per_layer_input", default=0, least=0)
    if per_layer:
        gate = Elements(split=0, whole=2 * hidden * per_layer, kept=hidden)
        result = [replace(mlp, elements=mlp.elements + gate) for mlp in result]
    return result


def _dense_widths(plan: Plan, beside_experts: bool) -> tuple[int, ...]:
    """Width of the dense MLP of each layer; Gemma 3n lists them."""
    if isinstance(plan.keys.config.get("intermediate_size"), list):
        return plan.keys.counts("intermediate_size", plan.layers, least=1, most=MAX_WIDTH) or ()
    return (_dense_width(plan, beside_experts),) * plan.layers


def _dense_width(plan: Plan, beside_experts: bool) -> int:
    keys = plan.keys
    names = ["dense_intermediate_size", "intermediate_size_mlp"] if beside_experts else []
    if not mlps.expert_count(keys) and keys.has("shared_intermediate_size"):
        names.append("shared_intermediate_size")  # Granite's hybrids name the dense MLP so
    names += ["intermediate_size", "ffn_hidden_size", "n_inner"]
    if plan.name == "phi":
        return keys.count(*names, default=4 * plan.hidden)
    return keys.count(*names)


def _expert_mlp(plan: Plan) -> Mlp:
    keys, hidden = plan.keys, plan.hidden
    if plan.name == "gemma4":
        width = keys.count("intermediate_size")
        made = mlps.mixture(keys, hidden, plan.family, beside=width)
        return replace(made, elements=made.elements + Elements(kept=4 * hidden + made.experts))
    made = mlps.mixture(keys, hidden, plan.family)
    if plan.name == "llama4":  # one shared expert as wide as a routed one
        width = made.expert_intermediate
        return replace(made, elements=made.elements + Elements(split=3 * hidden * width), shared_intermediate=width)
    return made


# --- Nemotron-NAS: each block has its own sizes -----------------------------------------------------------------------


def _blocks(plan: Plan) -> list[Keys]:
    value = plan.keys.config.get("block_configs")
    if not isinstance(value, list) or len(value) != plan.layers or not all(isinstance(b, Mapping) for b in value):
        plan.keys.fail(f"block_configs must be a list with an object for each of the {plan.layers} layers")
    return [Keys(block, f"{plan.keys.path}: block_configs[{i}]") for i, block in enumerate(value)]


def _block_mixer(plan: Plan, block: Keys) -> Mixer:
    part = block.child("attention")
    if part is None or part.flag("no_op"):
        return mixers.NOTHING
    if part.flag("replace_with_linear"):
        return Mixer(mixers.NOTHING.cache, Elements(whole=plan.hidden * plan.hidden))
    group = part.count("n_heads_in_group")
    if plan.heads % group:
        part.fail(f"n_heads_in_group is {group}; it must divide the {plan.heads} attention heads")
    window = part.optional("window_length")
    return _attention(replace(plan, kv_heads=plan.heads // group), window=window)


def _block_mlp(plan: Plan, block: Keys) -> Mlp:
    part = block.child("ffn")
    if part is None or part.flag("no_op"):
        return mlps.NONE
    if part.flag("replace_with_linear"):
        return Mlp(elements=Elements(split=plan.hidden * plan.hidden))
    ratio = part.number("ffn_mult")
    if ratio is None or ratio > 64:
        part.fail(f"ffn_mult is {short(part.config.get('ffn_mult'))}; it must be a number above 0 and at most 64")
    width = -(-int(2 * ratio * plan.hidden / 3) // 256) * 256
    return mlps.dense(plan.hidden, min(width, MAX_LENGTH), plan.family)
