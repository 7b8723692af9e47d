"""``python -m kvbudget_worker`` with a tiny random model: what clients see is the model's own greedy text."""

from collections.abc import Iterator

import openai
import pytest

from kvbudget.ledger import TokenLedger
from kvbudget.plan import Plan
from kvbudget_worker.batch import SamplingParams
from kvbudget_worker.blocks import BlockPool
from kvbudget_worker.engine import monotonic_ms
from kvbudget_worker.loading import load_model
from kvbudget_worker.requests import Request
from kvbudget_worker.scheduler import Scheduler
from support.process import Served
from support.realworker import real_worker
from support.tinymodel import make_tiny_model, tiny_plan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return tiny_plan(make_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny"))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Iterator[Served]:
    with real_worker(tmp_path_factory.mktemp("worker"), plan) as served:
        yield served


def greedy(plan: Plan, prompt: list[int], length: int) -> tuple[str, list[int]]:
    """The model's own continuation, step by step, through a scheduler of its own."""
    loaded = load_model(plan, "cpu")
    scheduler = Scheduler(
        BlockPool(plan.kv.pages, plan.kv.page_tokens, prefix_cache=False),
        TokenLedger(plan.kv.pages, plan.kv.page_tokens),
        max_batched_tokens=512,
        max_sequences=1,
        max_model_len=512,
    )
    request = Request("r", tuple(prompt), length, params=SamplingParams(temperature=0), ignore_eos=True)
    scheduler.try_admit(request, monotonic_ms())
    ids: list[int] = []
    while (batch := scheduler.schedule(monotonic_ms())) is not None:
        ids += [event.token_id for event in scheduler.apply(loaded.runner.step(batch), monotonic_ms())]
    return loaded.tokenizer.decode(ids), ids


def test_served_text_is_the_models_greedy_text(worker: Served, plan: Plan) -> None:
    prompt = list(b"The quick brown fox jumps over the lazy dog")
    text, ids = greedy(plan, prompt, 40)
    with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as client:
        options = {"ignore_eos": True}
        whole = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=40, temperature=0, logprobs=2, extra_body=options
        )
        chunks = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=40, temperature=0, stream=True, extra_body=options
        )
        streamed = "".join(chunk.choices[0].text for chunk in chunks)
    assert whole.choices[0].text == text
    assert streamed == text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(ids) == 40
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    for chosen, alternatives in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert chosen == max(alternatives.values()) <= 0


def test_a_seed_repeats_and_choices_differ(worker: Served) -> None:
    with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as client:

        def draw(seed: int | None) -> list[str]:
            answer = client.completions.create(
                model="tiny",
                prompt="once",
                max_tokens=20,
                n=3,
                seed=seed,
                temperature=1.5,
                extra_body={"ignore_eos": True},
            )
            return [choice.text for choice in answer.choices]

        first, again, other = draw(7), draw(7), draw(70)
    assert first == again
    assert len({*first, *other}) == 6


def test_token_counts_agree_with_what_a_request_is_charged(worker: Served) -> None:
    messages = [{"role": "user", "content": "count me"}]
    counted = worker.client.post("/tokenize", json={"messages": messages}).json()
    answer = worker.client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()
    assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
    text = worker.client.post("/detokenize", json={"tokens": counted["tokens"]}).json()["prompt"]
    assert text == "<|im_start|>user\ncount me<|im_end|>\n<|im_start|>assistant\n"


def test_measured_facts_equal_the_plan(worker: Served, plan: Plan) -> None:
    assert worker.metric("kvbudget_measured_pages") == plan.kv.pages
    assert worker.metric("kvbudget_measured_page_bytes") == plan.kv.page_bytes
    assert worker.metric("kvbudget_measured_weight_bytes") > 0
    assert worker.metric("kvbudget_measured_free_bytes") > 0
    worker.until_pages_are_back()
