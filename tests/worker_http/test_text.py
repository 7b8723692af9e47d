"""Tokens become text: whole characters only, end tokens never, and log probabilities in both formats."""

import json
from typing import Any

import pytest

from kvbudget_worker.http.chunks import ChunkWriter, Usage, error_event
from support.inprocess import InProcess, in_process
from support.scripted import EOS, make_plan

EURO = list("a€b".encode())


async def stream(worker: InProcess, **fields: Any) -> list[dict[str, Any]]:
    response = await worker.complete(stream=True, **fields)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = [line for line in response.text.splitlines() if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_a_character_is_never_split() -> None:
    async with in_process(script=EURO) as worker:
        chunks = await stream(worker, max_tokens=5)
        cut = await worker.complete(max_tokens=3)
    assert [c["choices"][0]["text"] for c in chunks] == ["a", "€", "b"]
    assert cut.json()["choices"][0]["text"] == "a\ufffd"


async def test_a_text_with_a_token_that_the_model_does_not_have_is_refused() -> None:
    """Tokenizers may have more tokens than their model; one of those would end the engine."""
    plan = make_plan()
    shape = plan.model.shape.model_copy(update={"vocab_size": EOS})
    plan = plan.model_copy(update={"model": plan.model.model_copy(update={"shape": shape})})
    async with in_process(plan) as worker:
        answers = [
            await worker.complete(prompt="a<|im_end|>"),
            await worker.complete(prompt=["a", "a<|im_end|>" * 2000]),
            await worker.client.post("/tokenize", json={"prompt": "a<|im_end|>"}),
            await worker.chat(),
        ]
        fine = await worker.complete(prompt="a", max_tokens=1)
    assert [(a.status_code, a.json()["error"]["param"]) for a in answers] == [(400, "prompt")] * 3 + [(400, "messages")]
    assert "token id 256 is outside the vocabulary, 0 … 255" in answers[0].text
    assert fine.status_code == 200


async def test_the_end_token_is_no_text_but_counts() -> None:
    async with in_process(script=[*b"bye", EOS]) as worker:
        answer = (await worker.complete(max_tokens=20)).json()
        forced = (await worker.complete(max_tokens=6, ignore_eos=True)).json()
        longer = (await worker.complete(max_tokens=20, min_tokens=5)).json()
        streamed = await stream(worker, max_tokens=20)
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("bye", "stop")
    assert answer["usage"]["completion_tokens"] == 4
    assert (forced["choices"][0]["text"], forced["choices"][0]["finish_reason"]) == ("byeby", "length")
    assert longer["choices"][0]["text"] == "bye~bye"
    assert streamed[-1]["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}


async def test_stop_token_ids_end_a_choice() -> None:
    async with in_process() as worker:
        answer = (await worker.complete(max_tokens=20, stop_token_ids=[ord("d")])).json()
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("abc", "stop")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"stop": "def"}, "abc"),
        ({"stop": ["xyz", "c"]}, "ab"),
        ({"stop": "def", "include_stop_str_in_output": True}, "abcdef"),
        ({"stop": "ab", "min_tokens": 3, "max_tokens": 29}, "abcdefghijklmnopqrstuvwxyz"),
        ({"stop": "yzz", "max_tokens": 26}, "abcdefghijklmnopqrstuvwxyz"),
    ],
)
async def test_stop_strings(fields: dict[str, Any], text: str) -> None:
    async with in_process() as worker:
        whole = (await worker.complete(**{"max_tokens": 26, **fields})).json()["choices"][0]
        chunks = await stream(worker, **{"max_tokens": 26, **fields})
        await worker.until_idle()
    assert whole["text"] == text
    assert "".join(c["choices"][0]["text"] for c in chunks) == text
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"]


async def test_bytes_that_are_no_text_have_names_of_their_own_in_logprobs() -> None:
    async with in_process(script=EURO) as worker:
        completion = (await worker.complete(max_tokens=5, logprobs=0)).json()["choices"][0]
        chat = (await worker.chat(max_tokens=5, logprobs=True)).json()["choices"][0]
    assert completion["logprobs"]["tokens"] == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "b"]
    assert [t["bytes"] for t in chat["logprobs"]["content"]] == [[97], [0xE2], [0x82], [0xAC], [98]]
    assert bytes(b for t in chat["logprobs"]["content"] for b in t["bytes"]).decode() == chat["message"]["content"]


@pytest.mark.parametrize("kind", ["completion", "chat"])
@pytest.mark.parametrize("text", ["plain", 'quo"te\\', "line\nbreak", "€ 😀 \u2028", "\x00"])
def test_spliced_chunks_are_the_json_they_stand_for(kind: Any, text: str) -> None:
    usage = Usage(3, 4, 1)
    for mode in ("none", "last", "each"):
        writer = ChunkWriter(kind, "id-1", 17, 'mod"el', usage=mode)
        raw = writer.text(2, text, "stop", {"x": [1]}, usage if mode == "each" else None)
        assert raw.startswith(b"data: ")
        assert raw.endswith(b"\n\n")
        assert raw.count(b"\n") == 2
        content = {"delta": {"content": text}} if kind == "chat" else {"text": text}
        expected: dict[str, Any] = {
            "id": "id-1",
            "object": "chat.completion.chunk" if kind == "chat" else "text_completion",
            "created": 17,
            "model": 'mod"el',
            "choices": [{"index": 2, **content, "logprobs": {"x": [1]}, "finish_reason": "stop"}],
        }
        if mode == "last":
            expected["usage"] = None
        if mode == "each":
            expected["usage"] = usage.as_dict()
        assert json.loads(raw.removeprefix(b"data: ")) == expected
        last = json.loads(writer.usage(usage).removeprefix(b"data: "))
        assert (last["choices"], last["usage"]["total_tokens"]) == ([], 7)


def test_an_error_ends_a_stream_as_an_event_of_its_own() -> None:
    assert error_event({"error": {"message": "x"}}) == b'event: error\ndata: {"error":{"message":"x"}}\n\n'
