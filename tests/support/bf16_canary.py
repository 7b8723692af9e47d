"""One matrix product of bf16 numbers, for the test that tells when the interpreter computes it rightly.

Imported while the interpreter is chosen (tests/kernels/conftest.py)."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def product_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """fp32 ``out`` = a @ b, each [N, N], contiguous."""
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))
