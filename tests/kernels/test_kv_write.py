"""What is written is what the reference writes, bit by bit, and nothing beside it changes."""

import math
from typing import Any

import pytest
import torch

from kvbudget_kernels import reference
from kvbudget_kernels.errors import KernelInputError
from kvbudget_kernels.kv_write import kv_write, new_counters
from kvbudget_kernels.quantise import LARGEST, unpack_fp16
from kvbudget_kernels.storage import PRECISIONS, Layout, PagedKV
from support.kernel_cases import CPU, empty_cache, rel_l2
from support.pairwise import pairwise


def _clone(cache: PagedKV) -> PagedKV:
    scales = None if cache.scales is None else cache.scales.clone()
    return PagedKV(cache.layout, cache.key.clone(), cache.value.clone(), scales, cache.k_scale, cache.v_scale)


def _same_bits(a: PagedKV, b: PagedKV) -> bool:
    pairs = [(a.key, b.key), (a.value, b.value)]
    if a.scales is not None and b.scales is not None:
        pairs.append((a.scales, b.scales))
    return all(torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8)) for x, y in pairs)


def _rows(
    tokens: int, layout: Layout, seed: int = 0, dtype: torch.dtype = torch.float16
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V as views of a fused qkv tensor, rows of very different size, the first of zeros."""
    generator = torch.Generator().manual_seed(seed)
    fused = torch.randn(tokens, 2 * layout.kv_heads + 3, layout.head_dim, generator=generator)
    fused *= torch.logspace(-4, 2, tokens).view(-1, 1, 1)
    fused[0] = 0.0
    fused = fused.to(dtype)
    return fused[:, 1 : 1 + layout.kv_heads], fused[:, 2 + layout.kv_heads : 2 + 2 * layout.kv_heads]


AXES: dict[str, tuple[object, ...]] = {
    "precision": PRECISIONS,
    "head_dim": (64, 80, 96, 128, 192, 256),
    "page": (16, 32, 64, 128),
    "kv_heads": (1, 2, 3, 8),
    "form": ("plain", "interleaved", "split", "far"),
    "dtype": (torch.float16, torch.float32, torch.bfloat16),
}


@pytest.mark.parametrize("case", pairwise(AXES), ids=lambda case: "-".join(str(value) for value in case.values()))
def test_every_bit_is_the_reference_s(case: dict[str, Any]) -> None:
    page = case["page"]
    layout = Layout.of(case["precision"], case["kv_heads"], case["head_dim"], page)
    form = "plain" if case["form"] == "split" and layout.v_transposed else case["form"]
    ours = empty_cache(layout, 4, form)
    want = _clone(ours)
    key, value = _rows(13, layout, dtype=case["dtype"])
    slots = torch.tensor([3, page, -1, 4 * page - 1, 0, -1, 2 * page + 1, 9, 8, 7, 1, page + 5, -7])
    counters = new_counters(CPU)
    kv_write(ours, key, value, slots, counters)
    reference.kv_write(want, key, value, slots)
    assert _same_bits(ours, want)
    assert counters.tolist() == [0, 0]


@pytest.mark.parametrize(("head_dim", "form"), [(64, "far"), (80, "interleaved")])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_five_rows_of_two_heads(precision: str, head_dim: int, form: str) -> None:
    """#1, #13. Pages gibibytes apart; 80 channels: neither a half nor the last group of 32 is full. The last page is a
    page like any other."""
    layout = Layout.of(precision, 2, head_dim, 16)
    ours = empty_cache(layout, 3, form)
    want = _clone(ours)
    key, value = _rows(5, layout, dtype=torch.float32)
    slots = torch.tensor([47, 0, 17, -1, 16])
    kv_write(ours, key, value, slots, new_counters(CPU))
    reference.kv_write(want, key, value, slots)
    assert _same_bits(ours, want)


@pytest.mark.parametrize(("precision", "step"), [("INT8", 127.0), ("INT4", 15.0)])
def test_ties_go_to_the_even_code(precision: str, step: float) -> None:
    """A row from 0 to as many steps as there are codes: the step is exactly 1."""
    layout = Layout.of(precision, 1, 64, 16)
    cache = empty_cache(layout, 1)
    row = torch.zeros(1, 1, 64)
    row[0, 0, :32] = torch.cat((torch.arange(30) % 14 + 0.5, torch.tensor([0.0, step])))
    kv_write(cache, row, row, torch.tensor([0]), new_counters(CPU))
    stored = reference.dequantise(cache, torch.tensor([0]))[0, :, 0, 0]
    assert torch.equal(stored, row[0].round().expand(2, -1)), "torch rounds ties to even"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_padding_rows_change_nothing(precision: str) -> None:
    """#12. Rows of a padded graph: slot −1, K and V NaN. Page 0 is as real as any."""
    ours = empty_cache(Layout.of(precision, 2, 64, 16), 2)
    before = _clone(ours)
    nan = torch.full((5, 2, 64), math.nan)
    counters = new_counters(CPU)
    kv_write(ours, nan, nan, torch.full((5,), -1), counters)
    assert _same_bits(ours, before)
    assert counters.tolist() == [0, 0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_slot_behind_the_last_page_is_counted_and_not_written(precision: str) -> None:
    """#20. The cache is a view between guard pages."""
    layout = Layout.of(precision, 2, 64, 16)
    storage = torch.full((5, layout.page_bytes), 0x5A, dtype=torch.uint8)
    cache = PagedKV.over(layout, storage[1:4])
    key, value = _rows(4, layout)
    counters = new_counters(CPU)
    kv_write(cache, key, value, torch.tensor([47, 48, 2**40, 0]), counters)
    assert counters.tolist() == [0, 2]
    assert bool((storage[0] == 0x5A).all())
    assert bool((storage[4] == 0x5A).all())
    assert not bool((cache.key[2, :, 15] == 0x5A).all())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_not_finite_is_stored_as_something_that_is_and_counted(precision: str) -> None:
    layout = Layout.of(precision, 1, 64, 16)
    ours = empty_cache(layout, 1)
    key, value = torch.ones(1, 1, 64), torch.ones(1, 1, 64)
    key[0, 0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    value[0, 0, 63] = math.nan
    counters = new_counters(CPU)
    kv_write(ours, key, value, torch.tensor([5]), counters)
    assert counters.tolist() == [4, 0]
    want = empty_cache(layout, 1)
    reference.kv_write(want, key, value, torch.tensor([5]))
    assert _same_bits(ours, want), "NaN is 0, an infinity the largest number"
    stored = reference.dequantise(ours, torch.tensor([0]))[0, :, 0, 5]
    assert bool(torch.isfinite(stored).all())
    assert float(stored[0, 1]) > 0
    assert float(stored[0, 2]) < 0
    assert abs(float(stored[0, 1])) <= LARGEST[precision] * 1.01
    if layout.v_transposed and precision == "FP8E4M3":
        assert not bool(((ours.value[..., 5] & 0x7F) == 0x7F).any())


def test_every_e4m3_code_is_reached_and_rounding_is_torch_s() -> None:
    """#11. Ties, subnormals, the largest number, what is beyond it, and both zeros."""
    layout = Layout.of("FP8E4M3", 1, 256, 128)
    codes = torch.arange(256, dtype=torch.uint8)
    exact = codes.view(torch.float8_e4m3fn).float()
    exact = exact[torch.isfinite(exact)]
    between = (exact.sort().values[1:] + exact.sort().values[:-1]) / 2
    special = torch.tensor([448.0, 449.0, 464.0, 1e9, -1e9, 0.0, -0.0, 2.0**-10, 2.0**-9, 1e-30, -(2.0**-10)])
    numbers = torch.cat((exact, between, between * (1 + 2.0**-20), between * (1 - 2.0**-20), special))
    key = torch.nn.functional.pad(numbers, (0, -len(numbers) % 256)).view(-1, 1, 256)
    cache = empty_cache(layout, 1)
    cache = PagedKV(layout, cache.key, cache.value, None, torch.ones(1), torch.ones(1))
    kv_write(cache, key, -key, torch.arange(key.shape[0]), new_counters(CPU))
    want = key.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)[:, 0]
    assert torch.equal(cache.key[0, 0, : key.shape[0]], want)
    assert torch.equal(cache.value[0, 0].T[: key.shape[0]], want ^ 0x80)


@pytest.mark.parametrize("head_dim", [80, 96])
def test_padded_lanes_do_not_widen_an_int4_range(head_dim: int) -> None:
    """#13. All channels near 100: a lane of zeros would make the step 30 times larger. A constant row: range 0."""
    layout = Layout.of("INT4", 1, head_dim, 16)
    cache = empty_cache(layout, 1)
    key = 100 + torch.rand(2, 1, head_dim, generator=torch.Generator().manual_seed(1))
    key[1] = 3.25
    kv_write(cache, key, key, torch.tensor([0, 1]), new_counters(CPU))
    stored = reference.dequantise(cache, torch.tensor([0]))[0, 0, 0, :2]
    assert float((stored[0] - key[0, 0]).abs().max()) <= 1 / 15
    assert torch.equal(stored[1], key[1, 0])
    assert cache.scales is not None
    assert bool((unpack_fp16(cache.scales[0, 0, :2, ::2])[0] > 0).all()), "0 is no divisor"


def test_the_same_rows_give_the_same_bits_twenty_times() -> None:
    layout = Layout.of("INT4", 2, 80, 16)
    key, value = _rows(6, layout)
    first = empty_cache(layout, 1)
    kv_write(first, key, value, torch.arange(6), new_counters(CPU))
    for _ in range(20):
        again = empty_cache(layout, 1)
        kv_write(again, key, value, torch.arange(6), new_counters(CPU))
        assert _same_bits(first, again)


@pytest.mark.parametrize("precision", ["FP32", "INT8"])
def test_rope_turns_keys_and_leaves_values(precision: str) -> None:
    layout = Layout.of(precision, 3, 96, 16)
    cache, plain = empty_cache(layout, 1), empty_cache(layout, 1)
    key, value = _rows(7, layout)
    angle = torch.rand(7, 48, generator=torch.Generator().manual_seed(2)) * 6
    kv_write(cache, key, value, torch.arange(7), new_counters(CPU), rope=(angle.cos(), angle.sin()))
    reference.kv_write(plain, reference.rotate(key, angle.cos(), angle.sin()), value, torch.arange(7))
    got, want = (reference.dequantise(each, torch.tensor([0]))[0, :, :, :7] for each in (cache, plain))
    assert torch.equal(got[1], want[1])
    assert rel_l2(got[0], want[0].double()) <= (1e-6 if precision == "FP32" else 2e-3)


def test_rows_of_another_shape_are_refused() -> None:
    cache = empty_cache(Layout.of("FP16", 2, 64, 16), 1)
    with pytest.raises(KernelInputError, match="give \\[1, 2, 64\\]"):
        kv_write(
            cache, torch.zeros(1, 1, 64), torch.zeros(1, 1, 64), torch.zeros(1, dtype=torch.int64), new_counters(CPU)
        )
