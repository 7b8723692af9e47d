"""Server-sent events by byte splice: prefix + JSON text + suffix, instead of an object per token.

The prefix and suffix of a choice are made once per request; per token only the text is encoded (0.13 µs against 5 µs
with a model class).
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> bytes:
        return orjson.dumps(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def error_event(error: dict[str, Any]) -> bytes:
    """The last event of a stream that cannot go on; ``error`` is the whole ``{"error": …}`` object."""
    return b"event: error\ndata: " + orjson.dumps(error) + b"\n\n"


class ChunkWriter:
    """Makes the chunks of one streamed response."""

    def __init__(
        self,
        kind: Literal["completion", "chat"],
        response_id: str,
        created: int,
        model: str,
        *,
        usage: Literal["none", "last", "each"],
    ) -> None:
        self._chat = kind == "chat"
        object_name = "chat.completion.chunk" if self._chat else "text_completion"
        head = orjson.dumps({"id": response_id, "object": object_name, "created": created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._usage = usage
        # OpenAI: with include_usage every chunk but the last has a null usage.
        self._tail = b'],"usage":null}\n\n' if usage == "last" else b"]}\n\n"
        self._prefixes: dict[int, bytes] = {}

    def role(self, index: int) -> bytes:
        """First chunk of a chat choice."""
        body = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}' % index
        return self._head + body + self._tail

    def text(
        self,
        index: int,
        text: str,
        finish_reason: str | None,
        logprobs: dict[str, Any] | None,
        usage: Usage | None = None,
    ) -> bytes:
        """One delta of a choice. ``usage`` is needed where each chunk reports it."""
        prefix = self._prefixes.get(index)
        if prefix is None:
            opening = b'{"index":%d,"delta":{"content":' if self._chat else b'{"index":%d,"text":'
            prefix = self._prefixes[index] = self._head + opening % index
        closing = b"}" if self._chat else b""
        if finish_reason is None and logprobs is None:
            closing += b',"logprobs":null,"finish_reason":null}'
        else:
            closing += b',"logprobs":' + orjson.dumps(logprobs)
            closing += b',"finish_reason":' + orjson.dumps(finish_reason) + b"}"
        tail = self._tail if usage is None else b'],"usage":' + usage.as_json() + b"}\n\n"
        return prefix + orjson.dumps(text) + closing + tail

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that ends a stream for which usage was asked."""
        return self._head + b'],"usage":' + usage.as_json() + b"}\n\n"
