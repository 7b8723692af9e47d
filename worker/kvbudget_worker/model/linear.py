"""Products with weights, in the form that is fastest where they run."""

import torch
from torch.nn.functional import linear

_FEW_ROWS = range(2, 65)
_BLOCK_VALUES = 1 << 20


class Linear:
    """``y = x W^T + b`` in the compute dtype.

    Without vector instructions for bf16 a CPU multiplies it some ten times slower than fp32. So a weight that is held
    narrower than it is computed with is widened block by block, each small enough to stay in the processor's cache
    until it is multiplied: memory is read at the narrow width.

    For a decode batch on a CPU the product is computed as ``(W x^T)^T``: the library then splits the many rows of W
    rather than the few of x, which measured 1.1 to 1.5 times as fast at 2 to 64 rows (bench/linear_cpu.py)."""

    def __init__(self, compute_dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = compute_dtype
        self._on_cpu = device.type == "cpu"
        self._block = torch.empty(0, dtype=compute_dtype, device=device)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x``: [tokens, in], ``weight``: [out, in], ``bias``: [out]. Returns [tokens, out], contiguous."""
        turned = self._on_cpu and x.shape[0] in _FEW_ROWS
        if weight.dtype == self._dtype:
            if not turned:
                return linear(x, weight, bias)
            product = torch.mm(weight, x.t()).t().contiguous()
        else:
            product = self._widened(x, weight, turned=turned)
        return product if bias is None else product.add_(bias)

    def _widened(self, x: torch.Tensor, weight: torch.Tensor, *, turned: bool) -> torch.Tensor:
        rows, width = weight.shape
        step = max(1, _BLOCK_VALUES // width)
        if self._block.numel() < step * width:
            self._block = self._block.new_empty(step * width)
        product = x.new_empty((rows, x.shape[0]) if turned else (x.shape[0], rows))
        for first in range(0, rows, step):
            last = min(first + step, rows)
            block = self._block[: (last - first) * width].view(last - first, width)
            block.copy_(weight[first:last])
            if turned:
                torch.mm(block, x.t(), out=product[first:last])
            else:
                torch.mm(x, block.t(), out=product[:, first:last])
        return product.t().contiguous() if turned else product
