"""Request bodies, checked field by field. Unknown keys are ignored with a warning, as vLLM does."""

import logging
import re
from abc import ABC, abstractmethod
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from kvbudget_worker.batch import SamplingParams
from kvbudget_worker.http.unsupported import refuse_unsupported
from kvbudget_worker.refusals import Refusal, Refused, invalid

log = logging.getLogger(__name__)

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_TOKENS = 128
MAX_BIASES = 1024
MAX_MESSAGES = 4096
"""These three are checked before the items: each one costs the event loop some microseconds, and every step its own."""

Prompt = str | tuple[int, ...]


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """A string, a list of strings, a list of token ids, or a list of lists of token ids. Checked by hand: pydantic
    would try each member of the union on each element."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of strings, a list of token ids or a list of such lists")
    if not value:
        raise ValueError("must not be empty")
    if _is_ids(value):
        return (tuple(value),)
    prompts: list[Prompt] = []
    for index, item in enumerate(value):
        if isinstance(item, str):
            prompts.append(item)
        elif isinstance(item, list) and item and _is_ids(item):
            prompts.append(tuple(item))
        else:
            raise ValueError(f"element {index} must be a string or a list of token ids")
    return tuple(prompts)


def _is_ids(value: list[Any]) -> bool:
    return all(type(item) is int for item in value)


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
        raise ValueError("must be a string or a list of strings, none of them empty")
    if len(stops) > 16:
        raise ValueError("must not have more than 16 strings")
    return tuple(stops)


def _no_bool(value: Any) -> Any:
    """``true`` is no number, although it is an int in Python: it is refused instead of being taken for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


Int = Annotated[int, BeforeValidator(_no_bool)]
Float = Annotated[float, BeforeValidator(_no_bool)]


def _biases(value: Any) -> Any:
    """Each token id once: ``"1"`` and ``"01"`` would be the same one."""
    if isinstance(value, dict):
        if len(value) > MAX_BIASES:
            raise ValueError(f"must not have more than {MAX_BIASES} token ids")
        wrong = next((key for key in value if not _TOKEN_ID.fullmatch(key)), None)
        if wrong is not None:
            raise ValueError(f"{wrong[:64]!r} is no token id")
    return value


_TOKEN_ID = re.compile("0|[1-9][0-9]{0,8}")


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(BaseModel, ABC):
    """What both endpoints share."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Int, Field(ge=1)] | None = None
    n: Annotated[Int, Field(ge=1, le=MAX_CHOICES)] | None = 1
    temperature: Annotated[Float, Field(ge=0, le=2, allow_inf_nan=False)] | None = 1.0
    top_p: Annotated[Float, Field(gt=0, le=1)] | None = 1.0
    top_k: Annotated[Int, Field(ge=-1)] | None = 0
    seed: Annotated[Int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops)] = ()
    stop_token_ids: Annotated[tuple[Int, ...], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] | None = ()
    include_stop_str_in_output: bool = False
    presence_penalty: Annotated[Float, Field(ge=-2, le=2)] | None = 0.0
    frequency_penalty: Annotated[Float, Field(ge=-2, le=2)] | None = 0.0
    logit_bias: Annotated[dict[int, Annotated[Float, Field(ge=-100, le=100)]] | None, BeforeValidator(_biases)] = None
    ignore_eos: bool | None = False
    min_tokens: Annotated[Int, Field(ge=0)] | None = 0

    @model_validator(mode="after")
    def _options_need_stream(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is allowed only with stream: true")
        return self

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def asked_tokens(self) -> tuple[str, int | None]:
        """The field that names the maximum, and its value."""
        return "max_tokens", self.max_tokens

    @abstractmethod
    def alternatives(self) -> int | None:
        """Alternatives to report beside each token; None: no log probabilities."""

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            seed=self.seed,
            logprobs=self.alternatives(),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=tuple((self.logit_bias or {}).items()),
        )


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    prompt: Annotated[tuple[Prompt, ...], BeforeValidator(_prompts)]
    logprobs: Annotated[Int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_special_tokens: bool = True

    def alternatives(self) -> int | None:
        return self.logprobs


class ContentPart(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    text: str | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    role: str
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = None


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``. ``max_completion_tokens`` wins over ``max_tokens``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[Int, Field(ge=1)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[Int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> "ChatBody":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is allowed only with logprobs: true")
        return self

    def asked_tokens(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return super().asked_tokens()

    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def conversation(self) -> list[dict[str, str]]:
        """Messages for the chat template. Text parts are joined by a line break; raises Refused for anything else."""
        return conversation(self.messages)


class TokenizeBody(BaseModel):
    """``POST /tokenize``: ``prompt`` or ``messages``."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = False

    @model_validator(mode="after")
    def _one_source(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.messages is not None and "add_special_tokens" in self.model_fields_set and self.add_special_tokens:
            raise ValueError("add_special_tokens is allowed only with prompt: a chat template adds its own")
        return self


class DetokenizeBody(BaseModel):
    """``POST /detokenize``."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    tokens: Annotated[list[Int], Field(fail_fast=True)]


ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role in the request -> role in the template. ``developer`` is OpenAI's newer name of ``system``."""


def conversation(messages: list[Message]) -> list[dict[str, str]]:
    """See :meth:`ChatBody.conversation`."""
    result = []
    for i, message in enumerate(messages):
        role = ROLES.get(message.role)
        if role is None:
            raise Refused(
                invalid(f"messages[{i}].role", f"role {message.role[:64]!r} is not supported: use {', '.join(ROLES)}")
            )
        for name in ("tool_calls", "function_call", "audio"):
            if (message.model_extra or {}).get(name):
                raise Refused(invalid(f"messages[{i}].{name}", f"{name} is not supported by this worker: leave it out"))
        content = message.content
        if content is None and role != "assistant":
            raise Refused(invalid(f"messages[{i}].content", f"content is missing: a {message.role} message needs it"))
        if isinstance(content, list):
            for j, part in enumerate(content):
                if part.type != "text" or part.text is None:
                    path = f"messages[{i}].content[{j}].type"
                    raise Refused(invalid(path, f"{part.type[:64]!r} is not supported: only parts of type 'text'"))
            content = "\n".join(part.text or "" for part in content)
        result.append({"role": role, "content": content or ""})
    return result


B = TypeVar("B", bound=BaseModel)


def parse(raw: bytes, kind: type[B], *, surface: str | None = None) -> B:
    """Bytes → body. Raises Refused (400): no JSON, not an object, a field of the wrong type or out of its range, or a
    field that ``surface`` (``completion`` or ``chat``) knows and does not serve."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(invalid(None, f"the body is not valid JSON: {error}")) from None
    if not isinstance(value, dict):
        raise Refused(invalid(None, "the body must be a JSON object"))
    try:
        body = kind.model_validate(value)
    except ValidationError as error:
        raise Refused(_problem(error)) from None
    unknown = list(refuse_unsupported(surface, body.model_extra or {}) if surface else body.model_extra or ())
    unknown += _unknown_inside(body)
    if unknown:
        # Quoted: a name from outside must not look like a line of the log.
        log.warning("ignored unknown fields of a request: %s", ", ".join(repr(name[:64]) for name in unknown[:20]))
    return body


def _unknown_inside(body: BaseModel) -> list[str]:
    """Fields of nested objects that nobody knows and that ask for something, as paths."""
    inside: list[tuple[str, BaseModel | None]] = [("stream_options", getattr(body, "stream_options", None))]
    for i, message in enumerate(getattr(body, "messages", None) or ()):
        inside.append((f"messages[{i}]", message))
        if isinstance(message.content, list):
            inside += [(f"messages[{i}].content[{j}]", part) for j, part in enumerate(message.content)]
    return [
        f"{path}.{name}"
        for path, value in inside
        for name, given in ((value and value.model_extra) or {}).items()
        if given not in (None, [], {})
    ]


def _problem(error: ValidationError) -> Refusal:
    problems = []
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        message = item["msg"].removeprefix("Value error, ")
        problems.append((_path(item["loc"]), message[:1].lower() + message[1:]))
    # Each member of a union reports for itself: the deepest tells most, and the first one of a field says enough.
    problems = [(path, text) for path, text in problems if not any(_lies_within(other, path) for other, _ in problems)]
    unique = dict(reversed(problems))
    first = problems[0][0]
    told = [f"{path}: {text}" if path else text for path, text in reversed(unique.items())]
    return invalid(first or _field_in(problems[0][1]), "; ".join(told[:8]))


def _lies_within(path: str | None, field: str | None) -> bool:
    return bool(path and field) and str(path).startswith((f"{field}[", f"{field}."))


def _path(loc: tuple[int | str, ...]) -> str | None:
    """``("messages", 0, "content", "str")`` → ``messages[0].content``: names of union members are left out."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in _UNION_MEMBERS or "[" in part:
            continue
        else:
            path += f".{part[:64]}" if path else part[:64]
    return path or None


_UNION_MEMBERS = frozenset({"str", "int", "float", "bool", "key"})


def _field_in(message: str) -> str | None:
    """The field that a rule over several fields is about: its message begins with the field's name."""
    word = message.split(" ", 1)[0]
    return word if any(word in body.model_fields for body in (ChatBody, CompletionBody, TokenizeBody)) else None
