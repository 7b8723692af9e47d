"""The real small model: its golden text, and greedy decoding equal to `transformers` token by token."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvbudget_worker.batch import SamplingParams
from kvbudget_worker.model.parameters import Parameters, load_parameters
from kvbudget_worker.runner import Runner
from kvbudget_worker.tokenizer import Tokenizer
from kvbudget_worker.weights import open_checkpoint
from support.stepping import Token, alone, together

pytestmark = pytest.mark.weights
NEW_TOKENS = 12
TIE_GAP = 0.05
QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Write a haiku about the sea.",
    "What is 12 + 30?",
    "Explain photosynthesis in one sentence.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "List the planets of the solar system.",
    "What does CPU stand for?",
    "Give me a recipe for pancakes.",
)
TEXTS = (
    "Once upon a time",
    "The quick brown fox jumps over",
    "In 1969, Neil Armstrong",
    "def fibonacci(n):\n",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at 100 degrees",
    "import os\nimport sys\n\n",
    "It was the best of times, it was the worst of times, it was the age of wisdom, " * 4,
    "1, 1, 2, 3, 5, 8, 13,",
)


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.load(smollm2)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    chats = [tokenizer.chat([{"role": "user", "content": q}]) for q in QUESTIONS]
    return chats + [tokenizer.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def parameters(smollm2: Path) -> Parameters:
    return load_parameters(open_checkpoint(smollm2), torch.float32, torch.device("cpu"))


@pytest.fixture(scope="module")
def make_real(smollm2: Path, parameters: Parameters) -> Callable[[str], Runner]:
    def make(precision: str) -> Runner:
        config = open_checkpoint(smollm2).config
        return Runner(
            config,
            parameters,
            pages=300,
            page_tokens=16,
            precision=precision,
            max_model_len=1024,
            compute_dtype=torch.float32,
        )

    return make


@pytest.fixture(scope="module")
def exact(make_real: Callable[[str], Runner], prompts: list[list[int]]) -> list[list[Token]]:
    """fp32 with an fp32 cache, all prompts in one mixed batch with chunked prefill."""
    return together(make_real("FP32"), prompts, NEW_TOKENS, max_batched_tokens=48)


@pytest.mark.parametrize("precision", ["BF16", "INT8"])
def test_the_golden_text(
    precision: str, make_real: Callable[[str], Runner], tokenizer: Tokenizer, prompts: list[list[int]]
) -> None:
    assert tokenizer.decode(alone(make_real(precision), prompts[0], 8)) == "The capital of France is Paris."


def test_a_mixed_batch_with_chunked_prefill_decodes_as_transformers_does(
    smollm2: Path, prompts: list[list[int]], exact: list[list[Token]]
) -> None:
    """The oracle's choice after each prefix is the token that was chosen: so its own greedy text is the same."""
    oracle = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    for prompt, output in zip(prompts, exact, strict=True):
        ids = [token.token_id for token in output]
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + ids[:-1]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(dim=-1).tolist() == ids
    with torch.inference_mode():
        generated = oracle.generate(torch.tensor([prompts[1]]), max_new_tokens=NEW_TOKENS, do_sample=False)
    own = [token.token_id for token in exact[1]]
    assert generated[0, len(prompts[1]) :].tolist() == own[: generated.shape[1] - len(prompts[1])]


def test_each_prompt_alone_decodes_as_in_the_mixed_batch(
    make_real: Callable[[str], Runner], prompts: list[list[int]], exact: list[list[Token]]
) -> None:
    runner = make_real("FP32")
    for prompt, output in zip(prompts, exact, strict=True):
        assert alone(runner, prompt, NEW_TOKENS) == [token.token_id for token in output]


@pytest.mark.parametrize("precision", ["BF16", "FP16"])
def test_a_half_width_cache_decodes_alike_up_to_the_first_near_tie(
    precision: str, make_real: Callable[[str], Runner], prompts: list[list[int]], exact: list[list[Token]]
) -> None:
    params = SamplingParams(temperature=0.0, logprobs=2)
    outputs = together(make_real(precision), prompts, NEW_TOKENS, max_batched_tokens=64, params=params)
    compared = 0
    for output, expected in zip(outputs, exact, strict=True):
        for got, want in zip(output, expected, strict=True):
            if got.gap is not None and got.gap < TIE_GAP:
                break
            assert got.token_id == want.token_id
            compared += 1
    assert compared > len(prompts) * NEW_TOKENS // 2
