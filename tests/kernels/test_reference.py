"""The specification itself: against attention by hand, against torch, and how far quantised pages are off."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbudget_kernels.quantise import Coded, decode, encode
from kvbudget_kernels.reference import ScoreRules, attend, merge
from kvbudget_kernels.storage import Layout
from support.laws import share
from support.plain_attention import attend_by_hand


def _numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    tokens=st.integers(1, 12), queries=st.integers(1, 3), group=st.sampled_from([1, 3]), seed=st.integers(0, 999),
    window=st.one_of(st.none(), st.integers(1, 13)), softcap=st.sampled_from([None, 2.0]), sinks=st.booleans(),
    alibi=st.booleans(),
)  # fmt: skip
@share(0.5)
def test_the_reference_is_attention_by_hand(
    tokens: int, queries: int, group: int, seed: int, window: int | None, softcap: float | None, sinks: bool,
    alibi: bool,
) -> None:  # fmt: skip
    heads = 2 * group
    rules = ScoreRules(
        0.7, window, softcap, _numbers(seed, heads).abs() if alibi else None, _numbers(seed, heads) if sinks else None
    )
    query, key, value = (_numbers(seed + i, n, h, 4) for i, (n, h) in enumerate(((queries, heads), *[(tokens, 2)] * 2)))
    positions = [max(0, tokens - queries + i) for i in range(queries)]
    want = attend_by_hand(query, key, value, positions, rules)
    for got, exact in zip(attend(query, key, value, torch.tensor(positions), rules), want, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-6, atol=1e-6)


def test_without_masks_the_reference_is_torch_s_attention() -> None:
    query, key, value = _numbers(0, 5, 6, 16), _numbers(1, 5, 2, 16), _numbers(2, 5, 2, 16)
    k, v = (each.repeat_interleave(3, dim=1).transpose(0, 1) for each in (key, value))
    want = torch.nn.functional.scaled_dot_product_attention(query.transpose(0, 1), k, v, is_causal=True, scale=0.3)
    out, _ = attend(query, key, value, torch.arange(5), ScoreRules(0.3))
    torch.testing.assert_close(out, want.transpose(0, 1))


def test_merged_parts_are_attention_over_all_tokens() -> None:
    query, key, value = _numbers(0, 1, 2, 8), _numbers(1, 9, 2, 8), _numbers(2, 9, 2, 8)
    rules, sinks = ScoreRules(0.5), torch.tensor([0.3, -1.0])
    parts = [attend(query, key[a:b], value[a:b], torch.tensor([99]), rules) for a, b in ((0, 2), (2, 3), (3, 9))]
    got = merge([out for out, _ in parts], [lse for _, lse in parts], sinks)
    want = attend(query, key, value, torch.tensor([8]), ScoreRules(0.5, sinks=sinks))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def test_every_e4m3_code_means_what_torch_says() -> None:
    """#11."""
    codes = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8)
    got = decode(Coded(codes.view(1, 1, -1)), Layout.of("FP8E4M3", 1, 64, 16), torch.ones(1)).flatten()
    assert torch.equal(got, codes.view(torch.float8_e4m3fn).float())


ERRORS = {"BF16": 0.0024, "FP8E4M3": 0.039, "INT8": 0.0092, "INT4": 0.115}
"""Relative L2 norm of attention's error by storage: Gaussian K and V, 4096 tokens of 128 channels, measured once."""


@pytest.mark.parametrize("precision", ERRORS)
def test_stored_pages_cost_attention_no_more_than_their_precision_does(precision: str) -> None:
    key, value = (_numbers(i, 4096, 1, 128).float() for i in range(2))
    query = _numbers(2, 8, 1, 128)
    layout = Layout.of(precision, 1, 128, 64)
    scale = torch.tensor([4.5 / 448]) if precision == "FP8E4M3" else None
    stored = [decode(encode(each, layout, scale), layout, scale) for each in (key, value)]
    positions, rules = torch.full((8,), 4095), ScoreRules(128**-0.5)
    exact, _ = attend(query, key, value, positions, rules)
    got, _ = attend(query, stored[0], stored[1], positions, rules)
    error = float((got - exact).norm() / exact.norm())
    assert ERRORS[precision] / 3 <= error <= 1.3 * ERRORS[precision]
