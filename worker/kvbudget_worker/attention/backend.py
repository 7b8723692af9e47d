"""The interface between the decoder and whatever computes attention over pages (torch here; kernels plug in later)."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from kvbudget_worker.batch import Chunk

PlanT = TypeVar("PlanT")


class AttentionBackend(Protocol[PlanT]):
    """Owns the paged cache. ``plan`` runs once per step, ``attend`` once per layer of it."""

    def plan(self, chunks: Sequence[Chunk]) -> PlanT:
        """What all layers of a step share: slots to write, page tables, masks. Modifies nothing."""

    def attend(self, layer: int, query: torch.Tensor, key_value: torch.Tensor, plan: PlanT) -> torch.Tensor:
        """Write the step's K and V to their pages, then attend over the pages, causally.

        ``query``: [tokens, attention_heads, head_dim]; ``key_value``: [tokens, 2, kv_heads, head_dim], both after RoPE,
        tokens in the order of ``plan``'s chunks. Returns [tokens, attention_heads * head_dim] in the query's dtype.
        """
