"""What an engine is told: the card, and the options that decide its memory. None is the engine's own default."""

from dataclasses import dataclass
from typing import Literal

KVFormat = Literal["BF16", "FP16", "FP32", "FP8E4M3", "INT8", "INT4", "NVFP4"]
"""``FP8E4M3`` of a model with a sparse-attention indexer is the engines' ``fp8_ds_mla`` layout: they offer no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One device. ``memory_bytes`` is what the driver reports, not what the box says; ``name`` as in its product name.
    ``compute_capability`` as NVIDIA writes it, None for other makers."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options. Counts are 1 or more; ``memory_fraction`` is above 0 and at most 1 and means what the engine's own
    option means: vLLM ``gpu_memory_utilization``, SGLang ``mem_fraction_static``, TensorRT-LLM
    ``free_gpu_memory_fraction``.

    ``weight_bytes`` replaces the predicted weights: one figure per stage, or one for all, as a log printed it.
    ``kv_cache_bytes`` replaces the whole budget (vLLM ``--kv-cache-memory-bytes``). ``stage_layers`` replaces the even
    split. ``draft_tokens`` are speculative tokens per step; with them the checkpoint's draft layers keep KV."""

    max_model_len: int | None = None
    memory_fraction: float | None = None
    tensor_parallel: int = 1
    """Ranks that share a layer's attention."""
    mlp_ranks: int | None = None
    """Ranks that share MLPs, experts and the output projection, where they are more than those (SGLang: data-parallel
    attention)."""
    pipeline_parallel: int = 1
    data_parallel: int = 1
    """vLLM ``--data-parallel-size``: copies of everything but the experts, each with a pool and a batch of its own.
    Experts are shared by the ranks of all copies."""
    expert_parallel: bool = False
    """vLLM ``--enable-expert-parallel``: a rank holds whole experts, not a part of each."""
    context_parallel: int = 1
    kv_format: KVFormat | None = None
    block_tokens: int | None = None
    max_batched_tokens: int | None = None
    max_sequences: int | None = None
    eager: bool = False
    prefix_caching: bool = False
    draft_tokens: int = 0
    hybrid_groups: bool = True
    weight_bytes: tuple[int, ...] = ()
    kv_cache_bytes: int | None = None
    stage_layers: tuple[int, ...] = ()
    window_share: float | None = None
    """SGLang ``--swa-full-tokens-ratio``."""
    prefill_graph_tokens: tuple[int, ...] = ()
    """SGLang: sizes in tokens for which prefill graphs are captured."""
    state_slots: int | None = None
    """SGLang ``--max-mamba-cache-size``."""
