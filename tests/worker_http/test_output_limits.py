"""How many tokens a request may generate."""

import pytest

from kvbudget_worker.limits import Kind, output_limit
from kvbudget_worker.refusals import Refused
from support.scripted import make_plan

LIMITS = make_plan(max_model_len=100, max_input_tokens=80, max_output_tokens=40, default_output_tokens=30).limits


@pytest.mark.parametrize(
    ("kind", "prompt", "asked", "limit"),
    [
        ("chat", 10, None, 30),  # the service's default
        ("chat", 75, None, 25),  # what the context leaves
        ("completion", 10, None, 16),  # OpenAI's default for completions
        ("completion", 80, 20, 20),
        ("chat", 60, 40, 40),
        ("chat", 80, 20, 20),
        ("chat", 1, 1, 1),
    ],
)
def test_limit(kind: Kind, prompt: int, asked: int | None, limit: int) -> None:
    assert output_limit(kind, prompt, asked, LIMITS, param="max_tokens") == limit


@pytest.mark.parametrize(
    ("prompt", "asked", "param", "code", "words"),
    [
        (0, 5, "messages", None, "no tokens"),
        (81, 5, "messages", "context_length_exceeded", "at most 80"),
        (10, 41, "max_tokens", "context_length_exceeded", "at most 40 tokens"),
        (80, 21, "max_tokens", "context_length_exceeded", "80 prompt tokens + max_tokens 21 = 101"),
    ],
)
def test_what_was_named_is_refused_and_never_cut(
    prompt: int, asked: int, param: str, code: str | None, words: str
) -> None:
    with pytest.raises(Refused) as caught:
        output_limit("chat", prompt, asked, LIMITS, param="max_tokens")
    refusal = caught.value.refusal
    assert (refusal.status, refusal.param, refusal.code) == (400, param, code)
    assert words in refusal.message
    assert (("x-should-retry", "false") in refusal.headers) is (code is not None)


def test_a_prompt_that_leaves_no_room_for_one_token_is_refused() -> None:
    limits = make_plan(max_model_len=50, max_input_tokens=50).limits
    with pytest.raises(Refused, match="no room for one token"):
        output_limit("completion", 50, None, limits, param="max_tokens")
