"""What each sampling parameter does to the choice of the next token."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from kvbudget_worker.batch import Chunk, Sampled, SamplingParams
from kvbudget_worker.sampling import Sampler

GREEDY = SamplingParams(temperature=0.0)
LOGITS = (0.0, 3.0, 2.0, 1.0, -1.0)


def _chunk(
    params: SamplingParams, banned: tuple[int, ...] = (), output: tuple[int, ...] = (), seq_id: int = 0
) -> Chunk:
    return Chunk(seq_id, (0,), 0, (0,), True, params, banned, output)


def _sample(*chunks: Chunk, logits: tuple[float, ...] = LOGITS, seed: int = 0) -> list[Sampled]:
    return Sampler(seed).sample(torch.tensor([logits] * len(chunks)), chunks)


def _shares(params: SamplingParams, draws: int = 4000) -> dict[int, float]:
    counts = Counter(s.token_id for s in _sample(*[_chunk(params)] * draws))
    return {token: count / draws for token, count in counts.items()}


@pytest.mark.parametrize(
    ("chunk", "token"),
    [
        (_chunk(GREEDY), 1),
        (_chunk(replace(GREEDY, temperature=1e-6)), 1),
        (_chunk(GREEDY, banned=(1,)), 2),
        (_chunk(GREEDY, banned=(1, 2, 999)), 3),
        (_chunk(replace(GREEDY, logit_bias=((4, 100.0),))), 4),
        (_chunk(replace(GREEDY, logit_bias=((1, -100.0),))), 2),
        (_chunk(replace(GREEDY, logit_bias=((4, 100.0),)), banned=(4,)), 1),
        (_chunk(replace(GREEDY, presence_penalty=1.5), output=(1,)), 2),
        (_chunk(replace(GREEDY, presence_penalty=0.5), output=(1, 1, 1)), 1),
        (_chunk(replace(GREEDY, frequency_penalty=0.5), output=(1, 1, 1)), 2),
        (_chunk(replace(GREEDY, frequency_penalty=0.5), output=(1,)), 1),
        (_chunk(replace(GREEDY, temperature=1.0, top_k=1)), 1),
        (_chunk(replace(GREEDY, temperature=5.0, top_p=1e-9)), 1),
        (_chunk(replace(GREEDY, temperature=5.0, top_p=0.0)), 1),
    ],
)
def test_a_row_whose_token_is_certain(chunk: Chunk, token: int) -> None:
    (result,) = _sample(chunk)
    assert result == Sampled(0, token)


def test_each_row_follows_its_own_parameters() -> None:
    chunks = [
        _chunk(GREEDY, seq_id=7),
        _chunk(replace(GREEDY, temperature=1.0, top_k=1), banned=(1,), seq_id=8),
        _chunk(replace(GREEDY, logit_bias=((0, 50.0),)), seq_id=9),
        _chunk(GREEDY, seq_id=10),
    ]
    assert [(s.seq_id, s.token_id) for s in _sample(*chunks)] == [(7, 1), (8, 2), (9, 0), (10, 1)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    expected = torch.softmax(torch.tensor(LOGITS) / temperature, dim=0)
    shares = _shares(SamplingParams(temperature=temperature))
    for token in range(5):
        assert shares.get(token, 0.0) == pytest.approx(expected[token].item(), abs=0.03)


def test_top_k_keeps_the_best_k() -> None:
    assert set(_shares(SamplingParams(temperature=3.0, top_k=2))) == {1, 2}


def test_top_k_above_the_vocabulary_keeps_all() -> None:
    assert set(_shares(SamplingParams(temperature=3.0, top_k=10**6))) == set(range(5))


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    """Shares are .64, .24, .09, .03, .01: .7 needs two tokens, .9 three."""
    assert set(_shares(SamplingParams(top_p=0.7))) == {1, 2}
    assert set(_shares(SamplingParams(top_p=0.9))) == {1, 2, 3}


def test_a_seed_repeats_its_stream_whoever_shares_the_batch() -> None:
    seeded = SamplingParams(temperature=2.0, seed=42)

    def stream(neighbours: int, sampler_seed: int) -> list[int]:
        output: tuple[int, ...] = ()
        for _ in range(30):
            others = [_chunk(SamplingParams(temperature=2.0, top_p=0.9), seq_id=9)] * neighbours
            results = _sample(*others, _chunk(seeded, output=output), seed=sampler_seed)
            output += (results[-1].token_id,)
        return list(output)

    assert stream(0, 1) == stream(3, 2)
    assert len(set(stream(0, 1))) > 1


def test_different_seeds_give_different_streams() -> None:
    streams = {
        tuple(
            _sample(_chunk(SamplingParams(temperature=2.0, seed=seed), output=(0,) * i))[0].token_id for i in range(20)
        )
        for seed in range(8)
    }
    assert len(streams) == 8


def test_logprobs_are_the_models_own_best_first() -> None:
    expected = torch.log_softmax(torch.tensor(LOGITS), dim=0)
    (result,) = _sample(_chunk(replace(GREEDY, logprobs=3, logit_bias=((4, 100.0),))))
    assert result.token_id == 4
    assert result.logprob == pytest.approx(expected[4].item())
    assert [token for token, _ in result.top] == [1, 2, 3]
    assert [value for _, value in result.top] == pytest.approx(expected[[1, 2, 3]].tolist())


def test_logprobs_of_no_alternative_report_the_token_alone() -> None:
    (result,) = _sample(_chunk(replace(GREEDY, logprobs=0)))
    assert result.logprob is not None
    assert result.top == ()


def test_many_drawn_rows_are_all_answered_in_order() -> None:
    logits = torch.full((100, 50), -1e9)
    wanted = torch.randint(0, 50, (100,))
    logits[torch.arange(100), wanted] = 0.0
    chunks = [_chunk(SamplingParams(temperature=1.0, top_p=0.5), seq_id=i) for i in range(100)]
    results = Sampler(0).sample(logits, chunks)
    assert [(s.seq_id, s.token_id) for s in results] == list(enumerate(wanted.tolist()))
