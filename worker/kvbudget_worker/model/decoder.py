"""The forward pass of a llama-family decoder over one step's tokens, whatever sequences they belong to.

Every matrix product runs once per layer for the whole step, prefill and decode together; only attention looks at
sequences. Logits are computed for the rows that need a token, not for the whole step.
"""

from typing import Generic

import torch
from torch.nn.functional import embedding, rms_norm, silu

from kvbudget_worker.attention.backend import AttentionBackend, PlanT
from kvbudget_worker.model.config import ModelConfig
from kvbudget_worker.model.linear import Linear
from kvbudget_worker.model.parameters import LayerParameters, Parameters
from kvbudget_worker.model.rope import RotaryTable


class Decoder(Generic[PlanT]):
    """``max_positions`` bounds the positions that a step may name (the service's maxModelLen)."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        attention: AttentionBackend[PlanT],
        max_positions: int,
        compute_dtype: torch.dtype,
    ) -> None:
        self.config = config
        self._parameters = parameters
        self._attention = attention
        self._dtype = compute_dtype
        device = parameters.embedding.device
        self._rope = RotaryTable(config.rope, config.head_dim, max_positions, compute_dtype, device)
        self._linear = Linear(compute_dtype, device)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, plan: PlanT) -> torch.Tensor:
        """``tokens``, ``positions``: [tokens]; ``rows``: [n], places in the step whose next token is wanted. Returns
        logits [n, vocab] in fp32; n may be 0. Writes K and V of the step to the cache."""
        hidden = embedding(tokens, self._parameters.embedding).to(self._dtype)
        angles = self._rope.at(positions)
        for number, layer in enumerate(self._parameters.layers):
            hidden = hidden + self._attend(number, layer, hidden, angles, plan)
            hidden = hidden + self._feed_forward(layer, hidden)
        last = self._norm(hidden.index_select(0, rows), self._parameters.final_norm)
        return self._linear(last, self._parameters.head).float()

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, weight.shape, weight.to(self._dtype), self.config.rms_norm_eps)

    def _attend(
        self,
        number: int,
        layer: LayerParameters,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        plan: PlanT,
    ) -> torch.Tensor:
        config = self.config
        fused = self._linear(self._norm(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
        heads = fused.view(-1, config.attention_heads + 2 * config.kv_heads, config.head_dim)
        turned = self._rope.rotate(heads[:, : config.attention_heads + config.kv_heads], angles)
        query = turned[:, : config.attention_heads]
        key_value = torch.stack(
            (turned[:, config.attention_heads :], heads[:, config.attention_heads + config.kv_heads :]), dim=1
        )
        mixed = self._attention.attend(number, query, key_value, plan)
        return self._linear(mixed, layer.output, layer.output_bias)

    def _feed_forward(self, layer: LayerParameters, hidden: torch.Tensor) -> torch.Tensor:
        both = self._linear(self._norm(hidden, layer.post_norm), layer.gate_up)
        half = both.shape[1] // 2
        return self._linear(silu(both[:, :half]).mul_(both[:, half:]), layer.down)
