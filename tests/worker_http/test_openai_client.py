"""The openai client against a real server process: every response through its typed models."""

import threading
import time
from collections.abc import Iterator

import openai
import pytest

from support.process import Served, served, wait_for
from support.scripted import ALPHABET, make_plan

MODEL = "test/scripted"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("worker"), make_plan(pages=64), ["--step-ms", "1"]) as running:
        yield running


@pytest.fixture
def client(worker: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_completion_tokens=5, max_tokens=9, n=2
    )
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert [c.message.content for c in answer.choices] == ["abcde", "abcde"]
    assert [c.finish_reason for c in answer.choices] == ["length", "length"]
    assert [c.message.role for c in answer.choices] == ["assistant", "assistant"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 10


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
        ],
        max_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=2,
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "abcdef"
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None] * 6 + ["length"]
    assert all(c.object == "chat.completion.chunk" and c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
    logprobs = chunks[1].choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(t.token, t.bytes, t.logprob) for t in logprobs.content] == [("a", [97], -0.5)]
    assert [t.token for t in logprobs.content[0].top_logprobs] == ["a", "b"]


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=4, n=2, logprobs=1)
    assert answer.object == "text_completion"
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [(i, "abcd", "length") for i in range(4)]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "c", "d"]
    assert logprobs.text_offset == [0, 1, 2, 3]
    assert logprobs.token_logprobs == [-0.5] * 4
    assert logprobs.top_logprobs is not None
    assert set(logprobs.top_logprobs[1]) == {"a", "b"}


@pytest.mark.parametrize("prompt", ["text", ["text"], [116, 101], [[116, 101]]])
def test_prompt_in_each_of_its_forms(client: openai.OpenAI, prompt: object) -> None:
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3)
    assert answer.choices[0].text == "abc"


def test_completion_stream_with_usage_in_each_chunk(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt="x",
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "abcd"
    assert [c.usage.completion_tokens for c in chunks if c.usage] == [1, 2, 3, 4, 4]


def test_stop_string_ends_the_text_before_it(client: openai.OpenAI, worker: Served) -> None:
    whole = client.completions.create(model=MODEL, prompt="x", max_tokens=20, stop=["fgh", "zzz"])
    stream = client.completions.create(model=MODEL, prompt="x", max_tokens=20, stop="fgh", stream=True)
    chunks = list(stream)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("abcde", "stop")
    assert "".join(c.choices[0].text for c in chunks) == "abcde"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8
    worker.until_pages_are_back()


def test_a_second_request_reports_its_cached_tokens(client: openai.OpenAI) -> None:
    prompt = "the same long beginning of two prompts, over three pages"
    for cached in (0, 48):
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == cached


def test_output_limit_is_told_where_none_was_named(client: openai.OpenAI) -> None:
    header = "x-kvbudget-output-limit-tokens"
    completion = client.completions.with_raw_response.create(model=MODEL, prompt="x")
    assert completion.headers[header] == "16"
    assert completion.parse().choices[0].text == ALPHABET[:16]
    talk = client.chat.completions.with_raw_response.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
    assert talk.headers[header] == "64"
    assert talk.parse().choices[0].finish_reason == "length"
    named = client.completions.with_raw_response.create(model=MODEL, prompt="x", max_tokens=16)
    assert header not in named.headers


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "kvbudget")
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] == 512
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_become_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="x" * 600)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model=MODEL, prompt="x", temperature=9)
    assert wrong.value.param == "temperature"


def test_ids_and_trace_context_are_echoed(worker: Served) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    given = worker.client.get("/version", headers={"x-request-id": "mine-1", "traceparent": trace})
    assert (given.headers["x-request-id"], given.headers["traceparent"]) == ("mine-1", trace)
    made = worker.client.get("/version", headers={"x-request-id": "has space"})
    assert made.headers["x-request-id"] not in ("", "has space")
    assert "traceparent" not in made.headers


async def test_async_client_streams_many_at_once(worker: Served) -> None:
    import asyncio

    async with openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as client:

        async def one(length: int) -> str:
            stream = await client.completions.create(model=MODEL, prompt="x", max_tokens=length, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        lengths = range(1, 25)
        assert await asyncio.gather(*map(one, lengths)) == [ALPHABET[:n] for n in lengths]
    worker.until_pages_are_back()


def test_the_clients_own_retry_honours_our_forecast(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The pool is full; the client waits as long as it is told, and then gets in without us doing anything."""
    with served(tmp_path_factory.mktemp("full"), make_plan(pages=8), ["--step-ms", "10"]) as worker:

        def hold() -> None:
            worker.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 100}).raise_for_status()

        holder = threading.Thread(target=hold)
        holder.start()
        wait_for(lambda: worker.client.get("/load").json()["kv_tokens_free"] < 32, "the pool to fill")
        with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as hasty:
            with pytest.raises(openai.RateLimitError) as refused:
                hasty.completions.create(model=MODEL, prompt="x", max_tokens=60)
            told_ms = int(refused.value.response.headers["retry-after-ms"])
        started = time.monotonic()
        with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=2) as patient:
            answer = patient.completions.create(model=MODEL, prompt="x", max_tokens=60)
        waited_ms = (time.monotonic() - started) * 1000
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 60
        assert worker.metric("vllm:admission_rejections_total") >= 2
        assert waited_ms > 100
        assert 1 <= told_ms <= 120_000
        holder.join()
        worker.until_pages_are_back()
