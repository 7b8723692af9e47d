"""Products with weights held in full and in half width."""

import pytest
import torch

from kvbudget_worker.model.linear import Linear


@pytest.mark.parametrize("rows", [0, 1, 2, 64, 65, 200])
@pytest.mark.parametrize("held", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7, 5), (5000, 300)], ids=["one block", "two blocks"])
def test_a_product_is_x_times_the_transposed_weight_plus_bias(
    rows: int, held: torch.dtype, shape: tuple[int, int]
) -> None:
    weight, bias = torch.randn(shape).to(held), torch.randn(shape[0]).to(held)
    x = torch.randn(rows, shape[1])
    product = Linear(torch.float32, torch.device("cpu"))
    for b in (None, bias):
        got = product(x, weight, b)
        expected = x @ weight.float().t() + (0 if b is None else b.float())
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        assert got.is_contiguous()
