"""The MLPs of a model, layer by layer: dense, experts, shared experts, or none.

A gated MLP has three matrices of hidden × width, a plain one two. Routers and their biases stay in 16 bits, whole on
every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvbudget.layers import NO_ELEMENTS, Elements, FeedForward
from kvbudget.shapes.families import Family
from kvbudget.shapes.keys import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """One layer's MLP, as :class:`FeedForward` without the layers. All zero: the layer has none."""

    elements: Elements = NO_ELEMENTS
    intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0


NONE = Mlp()


def dense(hidden: int, width: int, family: Family) -> Mlp:
    """A dense MLP of ``width``.

    >>> dense(4096, 14336, Family()).elements.split
    176160768
    """
    matrices = 3 if family.gated_mlp else 2
    bias = (matrices - 1) * width + hidden if family.mlp_bias else 0
    return Mlp(elements=Elements(split=matrices * hidden * width, kept=bias), intermediate=width)


def expert_count(keys: Keys) -> int:
    """Routed experts of an expert layer; 0 for a dense model."""
    return keys.count("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", default=0, least=0)


def mixture(keys: Keys, hidden: int, family: Family, *, beside: int = 0) -> Mlp:
    """An expert layer. ``beside``: width of a dense MLP that runs beside the experts (Gemma 4)."""
    experts = expert_count(keys)
    width = keys.count("moe_intermediate_size", "expert_intermediate_size", "ffn_hidden_size", "intermediate_size")
    used = keys.count("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", default=1)
    if used > experts:
        keys.fail(f"num_experts_per_tok is {used} of {experts} experts; use the model's own configuration file")
    matrices = 3 if family.gated_mlp else 2
    inner = keys.optional("moe_latent_size", "routed_expert_hidden_size") or hidden
    shared, shared_kept = _shared_width(keys, width), 0
    if keys.has("shared_expert_intermediate_size") and not keys.has("first_k_dense_replace"):
        shared_kept = hidden  # Qwen's gate on the shared expert
    routed = experts * matrices * inner * width
    kept = hidden * experts + (experts if family.router_bias else 0) + shared_kept
    if family.expert_bias:
        kept += experts * ((matrices - 1) * width + hidden)
    split = matrices * hidden * (shared + beside)
    whole = 0 if inner == hidden else 2 * hidden * inner
    return Mlp(
        elements=Elements(split=split, whole=whole, experts=routed, kept=kept),
        intermediate=beside,
        experts=experts,
        experts_per_token=used,
        expert_intermediate=width,
        shared_intermediate=shared,
    )


def _shared_width(keys: Keys, width: int) -> int:
    """Width of all shared experts of a layer together."""
    given = keys.optional(
        "moe_shared_expert_intermediate_size",
        "shared_expert_intermediate_size",
        "share_expert_dim",
        "shared_intermediate_size",
        least=0,
    )
    count = keys.count("n_shared_experts", "num_shared_experts", default=0, least=0)
    return given if given else count * width


def expert_layers(keys: Keys, layers: int) -> tuple[bool, ...]:
    """For each layer whether its MLP is a mixture of experts, by whichever key of the file says so."""
    if not expert_count(keys):
        return (False,) * layers
    listed = keys.words("mlp_layer_types", layers)
    if listed is not None:
        return tuple(word != "dense" for word in listed)
    if keys.has("moe_layers"):
        named = set(keys.counts("moe_layers", None, most=layers - 1) or ())
        return tuple(i in named for i in range(layers))
    if isinstance(keys.config.get("moe_layer_freq"), list):
        marks = keys.counts("moe_layer_freq", layers, most=1) or ()
        return tuple(mark == 1 for mark in marks)
    dense_first = keys.count("first_k_dense_replace", default=0, least=0)
    step = keys.count(
        "moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period", default=1
    )
    if keys.has("expert_layer_period"):
        offset = keys.count("expert_layer_offset", default=1, least=0)
        return tuple(i % step == offset for i in range(layers))
    dense_only = set(keys.counts("mlp_only_layers", None) or ())
    if keys.has("moe_layer_freq"):  # DeepSeek counts from layer 0, Qwen and Llama 4 from layer 1
        return tuple(i >= dense_first and i % step == 0 for i in range(layers))
    return tuple(i >= dense_first and i not in dense_only and (i + 1) % step == 0 for i in range(layers))


def grouped(mlps: Sequence[Mlp]) -> tuple[FeedForward, ...]:
    """Layers with the same MLP together; layers without one are left out."""
    found: dict[Mlp, list[int]] = {}
    for index, mlp in enumerate(mlps):
        if mlp != NONE:
            found.setdefault(mlp, []).append(index)
    return tuple(
        FeedForward(
            layers=tuple(layers),
            elements=mlp.elements,
            intermediate=mlp.intermediate,
            experts=mlp.experts,
            experts_per_token=mlp.experts_per_token,
            expert_intermediate=mlp.expert_intermediate,
            shared_intermediate=mlp.shared_intermediate,
        )
        for mlp, layers in found.items()
    )
