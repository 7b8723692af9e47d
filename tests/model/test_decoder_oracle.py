"""The decoder against `transformers` on the same random weights, both in fp32."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvbudget_worker.batch import Chunk, SamplingParams, StepBatch
from kvbudget_worker.runner import Runner
from support.tinymodel import TinyModel, make_tiny_model, tiny_plan, variants

ALL = SamplingParams(temperature=0.0, logprobs=320)


@pytest.mark.parametrize("model", variants(), ids=str)
def test_every_variant_gives_the_oracles_probabilities_however_the_prompt_is_cut(
    model: TinyModel, tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path, model)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.randint(0, 256, (100,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = torch.log_softmax(oracle(tokens.unsqueeze(0)).logits[0], dim=-1)
    runner = Runner.load(tiny_plan(folder, model, precision="FP32"), "cpu")
    pages = (7, 3, 40, 12, 0, 63, 22)
    for first, last in [(0, 1), (1, 17), (17, 80), (80, 81), (81, 100)]:
        chunk = Chunk(0, tuple(tokens[first:last].tolist()), first, pages, True, ALL)
        (result,) = runner.step(StepBatch((chunk,)))
        got = torch.empty(320)
        for token_id, logprob in result.top:
            got[token_id] = logprob
        torch.testing.assert_close(got, expected[last - 1], rtol=0, atol=5e-5)
        assert result.token_id == expected[last - 1].argmax().item()


def test_tiles_of_a_long_chunk_join_without_a_seam(make_runner: Callable[..., Runner]) -> None:
    tokens = tuple(torch.randint(0, 256, (700,), generator=torch.Generator().manual_seed(2)).tolist())
    pages = tuple(range(44))
    runner = make_runner(precision="FP32", max_model_len=1024)
    (whole,) = runner.step(StepBatch((Chunk(0, tokens, 0, pages, True, ALL),)))
    for first, last in pairwise([0, 100, 356, 700]):
        (cut,) = runner.step(StepBatch((Chunk(0, tokens[first:last], first, pages, True, ALL),)))
    assert cut.token_id == whole.token_id
    difference = max(abs(dict(cut.top)[token_id] - logprob) for token_id, logprob in whole.top)
    assert difference < 1e-4
