"""Log probabilities in the two formats of the OpenAI surface."""

from collections.abc import Sequence
from typing import Any

from kvbudget_worker.generation import TokenLogprob
from kvbudget_worker.tokenizer import Tokenizer


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """Text of one token. Bytes that are no text by themselves are told as OpenAI tells them: ``bytes:\\xe2\\x82``."""
    piece = tokenizer.piece(token_id, skip_special=False)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """``{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}``."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        piece = tokenizer.piece(token_id, skip_special=False)
        return {"token": token_text(tokenizer, token_id), "logprob": logprob, "bytes": list(piece)}

    content = [
        {**entry(t.token_id, t.logprob), "top_logprobs": [entry(token_id, logprob) for token_id, logprob in t.top]}
        for t in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}``; ``offset``: characters of the tokens before."""

    texts = [token_text(tokenizer, t.token_id) for t in tokens]
    offsets = [offset + sum(map(len, texts[:i])) for i in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [t.logprob for t in tokens],
        # As with OpenAI and vLLM, the chosen token is always among its alternatives.
        "top_logprobs": [
            {token_text(tokenizer, i): logprob for i, logprob in (*t.top, (t.token_id, t.logprob))} for t in tokens
        ],
        "text_offset": offsets,
    }
