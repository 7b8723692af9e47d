"""The paged KV cache: the only place where keys and values of past tokens live.

One tensor of bytes per layer, ``[pages + 1, page_bytes]``: a page is one contiguous span per layer, in the one format
of its precision (:mod:`kvbudget_kernels.storage`), which torch and the kernels both read. Page ids have no special
meaning; the last page is scratch, never granted, and stands in table cells that no sequence owns.
"""

from collections.abc import Sequence

import torch

from kvbudget.errors import UnsupportedError
from kvbudget_kernels.storage import PRECISIONS, Layout, PagedKV, allocate


def check_precision(precision: str) -> None:
    """Raises UnsupportedError for a precision that the planner knows and this worker does not serve."""
    if precision not in PRECISIONS:
        raise UnsupportedError("spec.kvCache.precision", f"{precision} is not served yet: use {', '.join(PRECISIONS)}")


class PagedCache:
    """``layers[n]`` is layer n as the backends see it, ``storage[n]`` its bytes. All memory is taken, and touched, when
    it is made: a pool that exists cannot run out later. It begins as zeros: an attention mask multiplies with what
    stands in unused slots. FP8E4M3 has a scale of 1 in every head: numbers beyond ±448 are stored as ±448."""

    def __init__(self, layout: Layout, *, layers: int, pages: int, device: torch.device) -> None:
        self.layout = layout
        self.device = device
        self.pages = pages
        self.scratch_page = pages
        self.storage = tuple(allocate(layout, pages + 1, device) for _ in range(layers))
        self.layers = tuple(PagedKV.over(layout, storage) for storage in self.storage)

    @property
    def page_tokens(self) -> int:
        return self.layout.page_tokens

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes for storage in self.storage)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, from the tensors."""
        return self.nbytes // (self.pages + 1)

    def copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (from, to) in every layer. No target may be a source."""
        if not copies:
            return
        sources, targets = (torch.tensor(ids, device=self.device) for ids in zip(*copies, strict=True))
        for storage in self.storage:
            storage.index_copy_(0, targets, storage.index_select(0, sources))
