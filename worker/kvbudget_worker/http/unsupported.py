"""Fields of the OpenAI surface that this worker knows and does not serve: refused by name, never ignored."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvbudget_worker.refusals import Refused, invalid

_Harmless = Callable[[Any], bool]


def _is(*values: object) -> _Harmless:
    return lambda value: any(value is v or value == v for v in values)


def _empty(value: Any) -> bool:
    return value in ({}, [], "", False)


def _text_format(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "text"


# Field -> when its value asks for nothing that we do not do. None is always harmless.
_BOTH: Final[Mapping[str, _Harmless]] = {
    "response_format": _text_format,
    "use_beam_search": _is(False),
    "length_penalty": _is(1, 0),
    "repetition_penalty": _is(1),
    "min_p": _is(0),
    "prompt_logprobs": _is(),
    "truncate_prompt_tokens": _is(),
    "allowed_token_ids": _empty,
    "bad_words": _empty,
    "guided_json": _is(),
    "guided_regex": _is(),
    "guided_choice": _is(),
    "guided_grammar": _is(),
    "structured_outputs": _is(),
    "logits_processors": _empty,
    "cache_salt": _is(),
    "return_token_ids": _is(False),
    "return_tokens_as_token_ids": _is(False),
    "skip_special_tokens": _is(True),
    "kv_transfer_params": _is(),
}
_COMPLETION: Final[Mapping[str, _Harmless]] = {
    "best_of": _is(1),
    "suffix": _is(""),
    "echo": _is(False),
    "prompt_embeds": _empty,
}
_CHAT: Final[Mapping[str, _Harmless]] = {
    "tools": _empty,
    "tool_choice": _is("none"),
    "functions": _empty,
    "function_call": _is("none"),
    "audio": _is(),
    "modalities": _is(["text"]),
    "prediction": _is(),
    "web_search_options": _is(),
    "chat_template": _is(),
    "chat_template_kwargs": _empty,
    "documents": _empty,
    "add_special_tokens": _is(False),
    "continue_final_message": _is(False),
    "add_generation_prompt": _is(True),
    "echo": _is(False),
}
FIELDS: Final[Mapping[str, Mapping[str, _Harmless]]] = {
    "completion": {**_BOTH, **_COMPLETION},
    "chat": {**_BOTH, **_CHAT},
}

IGNORED: Final = frozenset({"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"})
"""Known, and without any effect on the text: no warning."""


def refuse_unsupported(kind: str, extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Checks the fields that no model of ours declares; returns the unknown ones (to be ignored with a warning).

    Raises Refused (400, ``param`` named) for a known field whose value asks for what we do not do.
    """
    fields = FIELDS[kind]
    unknown = []
    for name, value in extra.items():
        harmless = fields.get(name)
        if harmless is None:
            if name not in IGNORED:
                unknown.append(name)
        elif value is not None and not harmless(value):
            raise Refused(invalid(name, f"{name} is not supported by this worker: leave it out"))
    return tuple(unknown)
