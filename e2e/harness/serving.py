"""Talking to a service: does it answer, and one chat."""

import json
from collections.abc import Iterator

import httpx

from harness.waiting import eventually


def wait_answers(url: str) -> None:
    """kube-proxy learns of a new Service within a second or so."""

    def check() -> bool:
        try:
            return httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success
        except httpx.HTTPError as error:
            raise AssertionError(str(error)) from error

    eventually(check, 60, f"{url} to answer")


def stream_chat(url: str, model: str, question: str, *, max_tokens: int = 48) -> Iterator[str]:
    """Texts of a greedy chat answer, as they come. Raises AssertionError where the answer is no stream."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
    }
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False) as response:
        if not response.is_success:
            raise AssertionError(f"HTTP {response.status_code}: {response.read().decode()}")
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    if text := choice["delta"].get("content"):
                        yield text
