"""How pages lie in memory.

A layer's cache is ``[num_pages, page_bytes]`` of bytes: a page is one contiguous span, so that a copy, a swap and a
transfer are one span each. In it stand K ``[kv_heads, page_tokens, row_bytes]``, V of the same size, then the scales as
int32. ``row_bytes`` = head_dim · bits / 8. The bytes are those of :func:`kvbudget.layout.page_bytes`.

==========  ==================================================  ===================================================
precision   codes                                               scales per token and head
==========  ==================================================  ===================================================
BF16 FP16   the element itself                                  none
FP32
FP8E4M3     e4m3 as uint8                                       none; ``k_scale``, ``v_scale`` fp32 [kv_heads]
INT8        int8, −127 … 127                                    int32 [1]: fp16 of K | fp16 of V << 16
INT4        uint8: channel d | channel d + head_dim/2 << 4      int32 [groups, 2]: K, V; fp16 scale | fp16 zero << 16
==========  ==================================================  ===================================================

An INT4 value is ``code · scale + zero`` in groups of 32 channels. V of 8- and 4-bit precisions is stored
token-contiguous in its page (``v_transposed``): ``[kv_heads, row_bytes, page_tokens]``, because the inner dimension of
P·V is tokens and 8-bit data has no transposed matrix load. Codes are always finite, also in slots that no token owns:
such V is read unmasked.
"""

from dataclasses import dataclass

import torch

from kvbudget.layout import element_bits, scale_bytes
from kvbudget_kernels.errors import require

PRECISIONS = ("BF16", "FP16", "FP32", "FP8E4M3", "INT8", "INT4")
PAGE_TOKENS = (16, 32, 64, 128)
HEAD_DIMS = (64, 80, 96, 128, 192, 256)
INT4_GROUP = 32
_CODE_DTYPES = {
    "BF16": torch.bfloat16,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP8E4M3": torch.uint8,
    "INT8": torch.int8,
    "INT4": torch.uint8,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """One layer's page format. ``v_transposed``: V lies token-contiguous (8- and 4-bit precisions only)."""

    precision: str
    kv_heads: int
    head_dim: int
    page_tokens: int
    v_transposed: bool

    @classmethod
    def of(cls, precision: str, kv_heads: int, head_dim: int, page_tokens: int) -> "Layout":
        """The one format of a precision, where the kernels handle it. Raises KernelInputError where they do not."""
        layout = cls.stored(precision, kv_heads, head_dim, page_tokens)
        layout.check_kernels()
        return layout

    @classmethod
    def stored(cls, precision: str, kv_heads: int, head_dim: int, page_tokens: int) -> "Layout":
        """The one format of a precision, for heads and pages that torch alone may attend over. Raises KernelInputError
        for a precision that has none."""
        require(precision in PRECISIONS, "precision", f"{precision!r} has no kernel", f"use {', '.join(PRECISIONS)}")
        require(kv_heads >= 1, "kv_heads", f"{kv_heads} heads", "give at least 1")
        return cls(precision, kv_heads, head_dim, page_tokens, v_transposed=element_bits(precision) <= 8)

    def check_kernels(self) -> None:
        """Raises KernelInputError where no kernel handles these heads or pages."""
        require(
            16 <= self.head_dim <= 256 and self.head_dim % 8 == 0,
            "head_dim",
            f"{self.head_dim} has no kernel",
            "use a multiple of 8 from 16 to 256",
        )
        require(
            self.page_tokens in PAGE_TOKENS, "page_tokens", f"{self.page_tokens} has no kernel", f"use {PAGE_TOKENS}"
        )

    @property
    def code_dtype(self) -> torch.dtype:
        return _CODE_DTYPES[self.precision]

    @property
    def row_codes(self) -> int:
        """Elements of ``code_dtype`` that hold one token's K (or V) of one head."""
        return self.head_dim // 2 if self.precision == "INT4" else self.head_dim

    @property
    def groups(self) -> int:
        """INT4 groups of a head."""
        return -(-self.head_dim // INT4_GROUP)

    @property
    def scale_words(self) -> int:
        """int32 words of scales per token and head."""
        return scale_bytes(self.precision, self.head_dim) // 4

    @property
    def code_bytes(self) -> int:
        """Bytes of K and V codes of one page."""
        return 2 * self.kv_heads * self.page_tokens * self.row_codes * self.code_dtype.itemsize

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of this layer, scales included."""
        return self.code_bytes + 4 * self.kv_heads * self.page_tokens * self.scale_words


@dataclass(frozen=True, slots=True)
class PagedKV:
    """One layer's cache as the kernels see it. Every dimension but the last may have any stride.

    ``key``: [pages, kv_heads, page_tokens, row_codes]. ``value``: the same, or [pages, kv_heads, row_codes,
    page_tokens] where ``layout.v_transposed``. ``scales``: int32 [pages, kv_heads, page_tokens, scale_words], None
    without scales. ``k_scale``, ``v_scale``: fp32 [kv_heads], FP8E4M3 only.
    """

    layout: Layout
    key: torch.Tensor
    value: torch.Tensor
    scales: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    @property
    def pages(self) -> int:
        return self.key.shape[0]

    @classmethod
    def over(
        cls,
        layout: Layout,
        storage: torch.Tensor,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
    ) -> "PagedKV":
        """Views of ``storage``: uint8 [pages, layout.page_bytes], whose last dimension is contiguous and whose pages
        begin at multiples of 16 bytes. FP8E4M3 scales default to 1."""
        pages, heads, tokens = storage.shape[0], layout.kv_heads, layout.page_tokens
        require(
            storage.dtype == torch.uint8 and storage.shape[1:] == (layout.page_bytes,) and storage.stride(1) == 1,
            "storage",
            f"{storage.dtype} {tuple(storage.shape)} with strides {storage.stride()}",
            f"give uint8 [pages, {layout.page_bytes}], contiguous within a page",
        )
        row = (layout.row_codes, tokens) if layout.v_transposed else (tokens, layout.row_codes)
        half = layout.code_bytes // 2
        key = storage[:, :half].view(layout.code_dtype).view(pages, heads, tokens, layout.row_codes)
        value = storage[:, half : 2 * half].view(layout.code_dtype).view(pages, heads, *row)
        scales = None
        if layout.scale_words:
            words = storage[:, 2 * half :].view(torch.int32)
            scales = words.view(pages, heads, tokens, layout.scale_words)
        if layout.precision == "FP8E4M3":
            one = torch.ones(heads, dtype=torch.float32, device=storage.device)
            k_scale = one if k_scale is None else k_scale
            v_scale = one.clone() if v_scale is None else v_scale
        return cls(layout, key, value, scales, k_scale, v_scale)


def allocate(layout: Layout, pages: int, device: torch.device) -> torch.Tensor:
    """Zeroed storage of one layer, uint8 [pages, page_bytes]: zero is a finite code in every precision. The memory is
    touched, so that what is there cannot run out later."""
    return torch.empty(pages, layout.page_bytes, dtype=torch.uint8, device=device).zero_()
