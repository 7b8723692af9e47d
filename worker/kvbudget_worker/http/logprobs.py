"""Log probabilities in the two formats of the OpenAI surface."""

from collections.abc import Sequence
from typing import Any

from kvbudget_worker.generation import TokenLogprob
from kvbudget_worker.tokenizer import Tokenizer


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """``{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}``."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        piece = tokenizer.piece(token_id, skip_special=False)
        return {"token": piece.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(piece)}

    content = [
        {**entry(t.token_id, t.logprob), "top_logprobs": [entry(token_id, logprob) for token_id, logprob in t.top]}
        for t in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}``; ``offset``: characters of the tokens before."""

    def text(token_id: int) -> str:
        return tokenizer.piece(token_id, skip_special=False).decode("utf-8", errors="replace")

    texts = [text(t.token_id) for t in tokens]
    offsets = [offset + sum(map(len, texts[:i])) for i in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [t.logprob for t in tokens],
        # As OpenAI and vLLM do, the chosen token is always among its alternatives.
        "top_logprobs": [{text(i): logprob for i, logprob in ((t.token_id, t.logprob), *t.top)} for t in tokens],
        "text_offset": offsets,
    }
