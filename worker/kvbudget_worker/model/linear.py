"""Products with weights that may be held narrower than they are computed with."""

import torch
from torch.nn.functional import linear


class Linear:
    """``y = x W^T + b`` in the compute dtype.

    A weight of another dtype is widened for the one product: without vector instructions for bf16 a CPU multiplies it
    some ten times slower than fp32, so BF16 and FP16 weights cost a CPU a conversion per step, and FP32 ones none."""

    def __init__(self, compute_dtype: torch.dtype) -> None:
        self._dtype = compute_dtype

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x``: [tokens, in], ``weight``: [out, in], ``bias``: [out]. Returns [tokens, out]."""
        if weight.dtype != self._dtype:
            weight = weight.to(self._dtype)
            bias = None if bias is None else bias.to(self._dtype)
        return linear(x, weight, bias)
