"""The paged KV cache: the only place where keys and values of past tokens live.

One tensor per layer, ``[pages + 1, 2, kv_heads, page_tokens, head_dim]``: K and V of one page are adjacent, so a page
is one contiguous span per layer. Page ids have no special meaning; the last page is scratch, never granted, and stands
in table cells that no sequence owns.
"""

from collections.abc import Sequence

import torch

from kvbudget.errors import UnsupportedError

KV_DTYPES = {"BF16": torch.bfloat16, "FP16": torch.float16, "FP32": torch.float32}


def kv_dtype(precision: str) -> torch.dtype:
    """Raises UnsupportedError for a precision that the planner knows and this worker does not serve."""
    try:
        return KV_DTYPES[precision]
    except KeyError:
        raise UnsupportedError(
            "spec.kvCache.precision", f"{precision} is not served yet: use {' or '.join(KV_DTYPES)}"
        ) from None


class PagedCache:
    """``layers[n]`` is layer n's tensor. All memory is taken, and touched, when it is made: a pool that exists cannot
    run out later."""

    def __init__(
        self,
        *,
        layers: int,
        pages: int,
        kv_heads: int,
        page_tokens: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.pages = pages
        self.scratch_page = pages
        self.page_tokens = page_tokens
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        shape = (pages + 1, 2, kv_heads, page_tokens, head_dim)
        self.layers = tuple(torch.empty(shape, dtype=dtype, device=device) for _ in range(layers))
        for layer in self.layers:
            layer.zero_()  # touches the memory; and an attention mask multiplies with what stands in unused slots

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, from the tensors."""
        return self.nbytes // (self.pages + 1)

    def copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (from, to) in every layer. No target may be a source."""
        if not copies:
            return
        sources, targets = (torch.tensor(ids, device=self.layers[0].device) for ids in zip(*copies, strict=True))
        for layer in self.layers:
            layer.index_copy_(0, targets, layer.index_select(0, sources))
