"""States over disjoint tokens combine exactly, in any order, and an empty one changes nothing."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbudget_kernels import reference
from kvbudget_kernels.errors import KernelInputError
from kvbudget_kernels.merge import merge_many, merge_states
from support.laws import share

State = tuple[torch.Tensor, torch.Tensor]


def _state(seed: int, spread: float = 5.0, rows: int = 3, heads: int = 2, head_dim: int = 20) -> State:
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(rows, heads, head_dim, generator=generator)
    return out, torch.randn(rows, heads, generator=generator) * spread


def _empty() -> State:
    """What an empty split may leave behind."""
    return torch.full((3, 2, 20), math.nan), torch.full((3, 2), -math.inf)


def _near(a: State, b: State) -> bool:
    return all(torch.allclose(x.double(), y.double(), rtol=1e-5, atol=1e-6) for x, y in zip(a, b, strict=True))


@given(seeds=st.tuples(*[st.integers(0, 10**6)] * 3), spread=st.sampled_from([0.0, 1.0, 30.0, 1e4]))
@share(0.2)
def test_merging_is_associative_and_commutative(seeds: tuple[int, int, int], spread: float) -> None:
    a, b, c = (_state(seed, spread) for seed in seeds)
    assert _near(merge_states(merge_states(a, b), c), merge_states(a, merge_states(b, c)))
    assert _near(merge_states(a, b), merge_states(b, a))
    assert _near(merge_states(a, b), reference.merge([a[0], b[0]], [a[1], b[1]]))


@given(
    count=st.integers(1, 5), head_dim=st.sampled_from([20, 64, 80, 256]), rows=st.integers(1, 40),
    dtype=st.sampled_from([torch.float16, torch.float32]), sinks=st.booleans(), data=st.data(),
)  # fmt: skip
@share(0.15)
def test_any_number_of_states_in_any_order_of_which_some_are_empty(
    count: int, head_dim: int, rows: int, dtype: torch.dtype, sinks: bool, data: st.DataObject
) -> None:
    """#7. An empty one holds NaN; rows of one state may be empty in part."""
    states = []
    for seed in range(count + 1):
        out, lse = _state(seed, rows=rows, head_dim=head_dim)
        gone = torch.tensor(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
        out[gone], lse[gone] = math.nan, -math.inf
        states.append((out.to(dtype), lse))
    sink = torch.tensor([0.5, -2.0]) if sinks else None
    want = reference.merge([s[0].nan_to_num(0.0) for s in states], [s[1] for s in states], sink)
    order = data.draw(st.permutations(states))
    parts = torch.stack([s[0] for s in order[1:]]), torch.stack([s[1] for s in order[1:]])
    got = merge_many(order[0], parts, sinks=sink)
    exact = {torch.float16: 1e-3, torch.float32: 2e-6}[dtype]
    torch.testing.assert_close(got[0].double(), want[0], rtol=exact, atol=exact)
    torch.testing.assert_close(got[1].double(), want[1], rtol=0, atol=1e-5)


def test_an_empty_state_changes_nothing_on_either_side() -> None:
    """#7."""
    a = _state(1)
    for merged in (merge_states(a, _empty()), merge_states(_empty(), a)):
        assert torch.equal(merged[0], a[0])
        torch.testing.assert_close(merged[1], a[1], rtol=0, atol=2e-6)  # it went through base 2


def test_two_empty_states_are_an_empty_state() -> None:
    out, lse = merge_states(_empty(), _empty())
    assert not out.any()
    assert bool((lse == -math.inf).all())


@pytest.mark.parametrize("sink", [1.5, 40.0])
def test_a_sink_takes_its_share_once_however_many_states_there_are(sink: float) -> None:
    """Below the states and above them: then they are scaled down."""
    parts = [_state(seed) for seed in range(4)]
    sinks = torch.tensor([sink, -math.inf])
    stacked = (torch.stack([p[0] for p in parts[1:]]), torch.stack([p[1] for p in parts[1:]]))
    got = merge_many(parts[0], stacked, sinks=sinks)
    want = reference.merge([p[0] for p in parts], [p[1] for p in parts], sinks)
    assert _near(got, want)
    only = merge_states(_empty(), _empty(), sinks=torch.tensor([2.0, 0.5]))
    assert not only[0].any()
    torch.testing.assert_close(only[1], torch.tensor([2.0, 0.5]).expand(3, 2), rtol=0, atol=1e-6)


def test_lse_is_a_natural_logarithm() -> None:
    """#8. Against torch.logsumexp."""
    generator = torch.Generator().manual_seed(3)
    scores, values = torch.randn(50, generator=generator) * 4, torch.randn(50, 20, generator=generator)
    halves = []
    for part in (slice(0, 20), slice(20, 50)):
        out = scores[part].softmax(0) @ values[part]
        halves.append((out.view(1, 1, 20), scores[part].logsumexp(0).view(1, 1)))
    out, lse = merge_states(*halves)
    torch.testing.assert_close(out.view(20), scores.softmax(0) @ values)
    torch.testing.assert_close(lse.view(()), scores.logsumexp(0))


def test_states_of_other_rows_are_refused() -> None:
    with pytest.raises(KernelInputError, match="states of the same rows"):
        merge_states(_state(1), _state(1, rows=4))
