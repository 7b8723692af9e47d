"""What these tests rely on in the interpreter, and what they may not."""

import pytest
import torch

from kvbudget_kernels.device.pages import move_pages_kernel
from support import bf16_canary


@pytest.mark.xfail(strict=True, reason="the interpreter takes bf16 for 16-bit integers")
def test_the_interpreter_multiplies_bf16_rightly() -> None:
    """#31. When this passes, BF16 pages can be computed in bf16 here too (``launch.math_dtype``)."""
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(2))
    out = torch.zeros(16, 16)
    bf16_canary.product_kernel[(1,)](a, b, out, 16)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("source", "target"), [(0, 3), (3, 0), (-1, 0)])
def test_a_kernel_that_leaves_its_tensors_is_stopped(source: int, target: int) -> None:
    """Pages that are not there, of a storage between others: on a GPU that would be somebody else's memory."""
    storage = torch.zeros(5, 64, dtype=torch.int32)
    ids = [torch.tensor([each]) for each in (source, target)]
    with pytest.raises(Exception, match="leaves the launch's tensors"):
        move_pages_kernel[(1,)](storage[1:4], storage[1:4], *ids, 64, 64, 64, WORDS=64)
    assert not storage.any()
