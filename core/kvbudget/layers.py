"""A model as groups of layers: the type that every parser makes and every engine's budget reads.

For whoever writes a budget:

- :class:`Architecture` is one model. ``groups`` says what each decoder layer keeps per token or per sequence; the
  indices of all groups together are 0 … layers - 1; a layer that keeps two things (Falcon-H1: K and V beside a state)
  is in two groups. ``feed_forward`` says the same of the MLPs, each layer at most once.
- What a layer keeps is one of :data:`Cache`: :class:`AttentionCache` (K and V per KV head; ``window`` or ``chunk``
  bound it), :class:`LatentCache` (MLA), :class:`CompressedCache` (a window plus one entry per ``ratio`` tokens),
  :class:`StateCache` (a fixed state per sequence), :class:`SharedCache` (reads an earlier layer's K and V) or
  :class:`NoCache`. ``match`` on the class.
- :meth:`Architecture.stage` gives the groups of a range of layers: a pipeline stage.
- Bytes are in ``cachebytes`` (one layer's bytes per token, state bytes) and ``parameters`` (weights of a rank).
- ``drafts`` are layers of a speculative draft (MTP, EAGLE) that come with the checkpoint. They keep KV only where the
  engine is told to use them.
- ``assumptions`` are sentences for the user: what the files did not say, and what was taken instead.

All counts are of the whole model; nothing here depends on how many GPUs it runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

DType = Literal["BF16", "FP16", "FP32", "FP8E4M3", "INT8", "NVFP4"]
DTYPE_BYTES: Final[dict[str, int]] = {"BF16": 2, "FP16": 2, "FP32": 4, "FP8E4M3": 1, "INT8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCache:
    """K and V for every token: ``kv_heads × (head_dim + v_head_dim)`` elements a token.

    ``window`` W: only the last W tokens are attended to. ``chunk`` C: only tokens of the same chunk of C. At most one
    of the two is set; neither is full attention. ``index_dim``: a sparse attention keeps beside them one 16-bit key of
    so many elements a token, on every rank (0: none)."""

    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    chunk: int | None = None
    index_dim: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentCache:
    """MLA: one latent of ``latent_dim + rope_dim`` elements a token, the same on every tensor-parallel rank.

    ``index_dim`` is the width of the sparse-attention indexer's key (DSA), 0 without one."""

    latent_dim: int
    rope_dim: int
    index_dim: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedCache:
    """DeepSeek-V4: one latent of ``latent_dim + rope_dim`` elements for each of the last ``window`` tokens, and one for
    every ``ratio`` tokens before (0: none). Not split over ranks. ``index_dim`` as in :class:`LatentCache`, one key per
    ``ratio`` tokens."""

    latent_dim: int
    rope_dim: int
    window: int
    ratio: int
    index_dim: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCache:
    """A state of fixed size per sequence: ``conv_steps`` past inputs of the convolution over all its channels, and
    ``heads × state_per_head`` elements of the recurrence. Ranks share heads and channels.

    ``conv_channels`` are divided by the ranks. ``group_channels`` are the B and C channels of one group; there are
    ``state_groups`` of them, and every rank has at least one (Mamba-2 replicates groups like KV heads)."""

    kind: Literal["mamba1", "mamba2", "gdn", "kda", "lightning", "conv"]
    conv_channels: int
    group_channels: int
    state_groups: int
    conv_steps: int
    heads: int
    state_per_head: int
    conv_dtype: DType
    state_dtype: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache:
    """Keeps nothing: attends to the K and V of an earlier layer, which has ``like``."""

    like: AttentionCache


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCache:
    """Keeps nothing: a layer without a mixer (only an MLP)."""


Cache = AttentionCache | LatentCache | CompressedCache | StateCache | SharedCache | NoCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Parameters by how ranks and quantisation treat them. ``split`` is divided by the ranks, ``kv`` by the ranks up to
    ``kv_heads`` and then replicated, ``whole`` lies on every rank; these are matrices, quantised with the checkpoint.
    ``experts`` are the routed experts, divided by the ranks too. ``kept`` stays in 16 bits and on every rank (norms,
    biases, routers)."""

    split: int = 0
    kv: int = 0
    whole: int = 0
    experts: int = 0
    kept: int = 0

    @property
    def total(self) -> int:
        return self.split + self.kv + self.whole + self.experts + self.kept

    def with_kept(self, more: int) -> "Elements":
        """The same with more that stays in 16 bits."""
        return replace(self, kept=self.kept + more)

    def __add__(self, other: "Elements") -> "Elements":
        return Elements(
            split=self.split + other.split,
            kv=self.kv + other.kv,
            whole=self.whole + other.whole,
            experts=self.experts + other.experts,
            kept=self.kept + other.kept,
        )


NO_ELEMENTS: Final = Elements()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that keep the same: ``layers`` are their indices, rising. ``elements`` are the parameters of one such
    layer's mixer (attention, state), with its norms."""

    cache: Cache
    layers: tuple[int, ...]
    elements: Elements
    query_heads: int = 0

    @property
    def count(self) -> int:
        return len(self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Layers with the same MLP. ``intermediate`` is the width of the dense MLP (0: none); with ``experts`` > 0 there
    are so many of width ``expert_intermediate``, of which a token uses ``experts_per_token``, and shared ones of
    ``shared_intermediate`` together."""

    layers: tuple[int, ...]
    elements: Elements
    intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How a checkpoint stores its matrices: ``name`` as the tool calls it, and bits of one element with the scales that
    belong to it, in 1/1000 bit: of mixers (attention and states), of dense and shared MLPs, of routed experts, and of
    the embeddings and the output projection. What :class:`Elements` calls ``kept`` is in the tables' format."""

    name: str
    mixer_millibits: int
    mlp_millibits: int
    expert_millibits: int
    table_millibits: int = 16000

    @property
    def drafts_plain(self) -> bool:
        """Whether draft layers stay in 16 bits, as in the published checkpoints that were made 4-bit afterwards."""
        return self.name.startswith(("AWQ", "GPTQ", "INT4"))


def uniform(name: str, millibits: int, *, table_millibits: int = 16000) -> WeightFormat:
    """One format for all matrices of the layers.

    >>> uniform("FP8", 8000).expert_millibits
    8000
    """
    return WeightFormat(
        name=name,
        mixer_millibits=millibits,
        mlp_millibits=millibits,
        expert_millibits=millibits,
        table_millibits=table_millibits,
    )


BF16: Final = uniform("BF16", 16000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Layers of a speculative draft in the checkpoint: ``layers`` of them, each keeping ``cache``."""

    kind: Literal["mtp", "eagle"]
    layers: int
    cache: Cache
    elements: Elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model. See the module."""

    model_type: str
    hidden_size: int
    vocab_size: int
    attention_heads: int
    groups: tuple[LayerGroup, ...]
    feed_forward: tuple[FeedForward, ...]
    max_position_embeddings: int | None = None
    tied_embeddings: bool = False
    dtype: DType = "BF16"
    """In which the model computes, and in which KV is kept unless told otherwise."""
    kv_dtype: DType | None = None
    """In which the checkpoint itself asks for KV to be kept."""
    weights: WeightFormat = BF16
    weight_bytes: int | None = None
    """Bytes of the checkpoint where a file said so."""
    vision_parameters: int | None = 0
    """Parameters of the vision (or audio) tower and its projector; 0: none, None: there is one of unknown size."""
    drafts: Draft | None = None
    extra: int = 0
    """Parameters beside layers, tables, the final norm and towers; on every rank, in 16 bits."""
    rotary_positions: int | None = None
    """Positions for which rotary tables are made, where they are more than ``max_position_embeddings``."""
    rope_scaling: bool = False
    assumptions: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        return len({index for group in self.groups for index in group.layers})

    @property
    def kind(self) -> str:
        """In one word or two: what decides the KV formula, ``gqa``, ``mla+dsa``, ``sliding+full``, ``gdn+full``, …"""
        return kind_of(group.cache for group in self.groups)

    @property
    def is_moe(self) -> bool:
        return any(mlp.experts for mlp in self.feed_forward)

    @property
    def is_multimodal(self) -> bool:
        return self.vision_parameters != 0

    @property
    def is_hybrid(self) -> bool:
        """Whether layers keep different things, so that an engine needs several cache groups."""
        return len({group.cache for group in self.groups if not isinstance(group.cache, SharedCache | NoCache)}) > 1

    def stage(self, first: int, last: int) -> "Architecture":
        """The model as a pipeline stage of the layers first … last - 1 sees it. Groups without a layer there are left
        out; indices stay those of the whole model."""

        def inside(layers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(i for i in layers if first <= i < last)

        return replace(
            self,
            groups=tuple(replace(g, layers=inside(g.layers)) for g in self.groups if inside(g.layers)),
            feed_forward=tuple(replace(f, layers=inside(f.layers)) for f in self.feed_forward if inside(f.layers)),
        )


def kind_of(caches: Iterable[Cache]) -> str:
    """Names of the caches, without repetition, joined by ``+``; attention alone says whether it is MHA, GQA or MQA."""
    seen = dict.fromkeys(cache_kind(cache) for cache in caches)
    seen.pop("none", None)
    return "+".join(seen) or "none"


def cache_kind(cache: Cache) -> str:
    """One cache in a word.

    >>> cache_kind(LatentCache(latent_dim=512, rope_dim=64)), cache_kind(NoCache())
    ('mla', 'none')
    """
    match cache:
        case AttentionCache(window=int()):
            return "sliding"
        case AttentionCache(chunk=int()):
            return "chunked"
        case AttentionCache(index_dim=0):
            return "full"
        case AttentionCache():
            return "sparse"
        case LatentCache(index_dim=0):
            return "mla"
        case LatentCache():
            return "mla-dsa"
        case CompressedCache():
            return "compressed"
        case StateCache(kind=kind):
            return kind
        case SharedCache():
            return "shared"
        case NoCache():
            return "none"
