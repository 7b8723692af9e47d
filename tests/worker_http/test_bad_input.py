"""Bodies that cannot be served: each gets a 400 that names the field."""

from typing import Any

import pytest

from kvbudget_worker.http.unsupported import FIELDS
from support.inprocess import in_process
from support.scripted import make_plan

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
async def test_no_json_is_refused(path: str, raw: bytes, words: str) -> None:
    async with in_process() as worker:
        response = await worker.client.post(path, content=raw)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [9999]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt[1]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 3]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop_token_ids": [9999]}, "stop_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"9999": 1}}, "logit_bias"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": "maybe"}, "stream"),
        *(({name: True}, name) for name in ("max_tokens", "n", "logprobs", "temperature", "top_p", "top_k", "seed")),
        ({"min_tokens": True}, "min_tokens"),
        ({"presence_penalty": True}, "presence_penalty"),
        ({"frequency_penalty": False}, "frequency_penalty"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
        ({"logit_bias": {"1": True}}, "logit_bias.1"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ],
)
async def test_a_bad_field_of_a_completion_is_named(fields: dict[str, Any], param: str) -> None:
    async with in_process() as worker:
        response = await worker.client.post(COMPLETIONS, json={"prompt": "hi", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["code"] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "contents": "hi"}]}, "messages[0].content"),
        ({"messages": USER * 4097}, "messages"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"messages": [*USER, {"role": "user", "content": 3}]}, "messages[1].content"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
            "messages[0].content[1].type",
        ),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
async def test_a_bad_field_of_a_chat_is_named(fields: dict[str, Any], param: str) -> None:
    async with in_process() as worker:
        response = await worker.client.post(CHAT, json={"messages": USER, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


async def test_all_bad_fields_come_in_one_answer() -> None:
    async with in_process() as worker:
        response = await worker.complete(n=0, temperature=-1)
    assert "n: " in response.json()["error"]["message"]
    assert "temperature: " in response.json()["error"]["message"]


ASKS = {
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "best_of": 2,
    "suffix": "end",
    "echo": True,
    "length_penalty": 2,
    "skip_special_tokens": False,
    "add_generation_prompt": False,
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, fields in FIELDS.items() for name in fields])
async def test_a_known_field_that_is_not_served_is_refused_by_name(kind: str, name: str) -> None:
    async with in_process() as worker:
        send = worker.chat if kind == "chat" else worker.complete
        refused = await send(**{name: ASKS.get(name, ["something"])})
        harmless = await send(max_tokens=1, **{name: None})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name
    assert "not supported" in refused.json()["error"]["message"]
    assert harmless.status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tool_choice": "none"},
        {"modalities": ["text"]},
        {"repetition_penalty": 1.0},
        {"min_p": 0},
        {"stop": None, "temperature": None, "top_p": None, "n": None, "seed": None, "stream": None},
        {"top_k": -1},
    ],
)
async def test_values_that_ask_for_nothing_special_pass(fields: dict[str, Any]) -> None:
    async with in_process() as worker:
        response = await worker.chat(max_tokens=1, **fields)
    assert response.status_code == 200, response.text


async def test_unknown_fields_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with in_process() as worker:
        response = await worker.complete(max_tokens=1, fancy_new_thing=3, user="me")
    assert response.status_code == 200
    assert "fancy_new_thing" in caplog.text
    assert "user" not in caplog.text


async def test_unknown_fields_of_nested_objects_are_told_too(caplog: pytest.LogCaptureFixture) -> None:
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    async with in_process() as worker:
        response = await worker.chat(
            max_tokens=1,
            stream=True,
            stream_options={"include_obfuscation": True},
            messages=[{"role": "user", "name": "me", "content": [part]}, {"role": "assistant", "refusal": None}],
        )
    assert response.status_code == 200
    assert "'messages[0].name', 'messages[0].content[0].cache_control'" in caplog.text
    assert "'stream_options.include_obfuscation'" in caplog.text
    assert "refusal" not in caplog.text


async def test_a_name_from_outside_makes_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with in_process() as worker:
        await worker.complete(**{"max_tokens": 1, "x\nERROR root: forged": 1})
    assert "forged" in caplog.text
    assert "\nERROR root: forged" not in caplog.text


async def test_a_count_of_tokens_is_refused_what_the_chat_is_refused() -> None:
    async with in_process() as worker:
        for field in (
            {"tools": [{"type": "function"}]},
            {"add_special_tokens": True},
            {"add_generation_prompt": False},
        ):
            response = await worker.client.post("/tokenize", json={"messages": USER, **field})
            assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(field)))


async def test_a_small_body_that_asks_for_a_million_choices_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process() as worker:

        def encode(*_: object, **__: object) -> list[int]:
            raise AssertionError("nothing may be made of it")

        monkeypatch.setattr(worker.service.tokenizer, "encode", encode)
        response = await worker.complete(prompt=["a"] * 8000, n=128, max_tokens=1)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "request_exceeds_kv_budget"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": [1] * 4000}, "messages[0]"),
        (CHAT, {"messages": [{"role": "user", "content": [1] * 4000}]}, "messages[0].content[0]"),
        (COMPLETIONS, {"prompt": "x", "stop_token_ids": ["x"] * 128}, "stop_token_ids[0]"),
        ("/detokenize", {"tokens": ["x"] * 4000}, "tokens[0]"),
    ],
)
async def test_the_first_bad_item_of_a_list_is_enough(path: str, fields: dict[str, Any], param: str) -> None:
    async with in_process() as worker:
        response = await worker.client.post(path, json=fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert "[1]" not in error["message"]


async def test_unknown_routes_and_methods_answer_in_json() -> None:
    async with in_process() as worker:
        missing = await worker.client.get("/v1/engines")
        wrong = await worker.client.get(COMPLETIONS)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("declared", [True, False])
async def test_a_huge_body_is_refused_before_it_is_read(declared: bool) -> None:
    async with in_process(make_plan()) as worker:
        limit = worker.service.intake.limit_bytes
        sent = 0

        async def pieces() -> Any:
            nonlocal sent
            while sent < 4 * limit:
                sent += 1 << 20
                yield b" " * (1 << 20)

        headers = {"content-length": str(4 * limit)} if declared else {}
        response = await worker.client.post(COMPLETIONS, content=pieces(), headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    assert sent <= limit + (2 << 20)
