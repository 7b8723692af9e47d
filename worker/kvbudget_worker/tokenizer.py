"""Text to token ids and back: `tokenizers`, the model's chat template in a sandbox, and an incremental decoder.

Every vocabulary we serve is made of byte pieces: each token stands for fixed bytes, and text is their concatenation
read as UTF-8. So a stream is decoded by a table look-up per token and one incremental UTF-8 decoder, which is exact and
costs the same for the first token as for the thousandth.
"""

import codecs
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from kvbudget.errors import InputError, UnsupportedError, WeightsError

_CONFIG_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's map of printable characters to bytes: printable Latin-1 stands for itself, the rest follows from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


class Tokenizer:
    """A model's tokenizer. ``eos_ids`` holds the end token that its config names, if any."""

    def __init__(self, fast: FastTokenizer, config: Mapping[str, Any], chat_template: str | None, path: str) -> None:
        """``fast`` must be byte-level or SentencePiece-like BPE; UnsupportedError otherwise."""
        # Some files carry the cut and the padding of their training; a prompt is counted and served as it is.
        fast.no_truncation()
        fast.no_padding()
        self._fast = fast
        self._path = path
        self._special = frozenset(i for i, t in fast.get_added_tokens_decoder().items() if t.special)
        self._names = {key: _token_text(config.get(key)) for key in _CONFIG_TOKENS}
        self._byte_level = _is_byte_level(fast, path)
        self._pieces: dict[int, bytes] = {}
        self._template = _compile(chat_template, path)
        eos = fast.token_to_id(self._names["eos_token"]) if self._names["eos_token"] else None
        self.eos_ids: tuple[int, ...] = () if eos is None else (eos,)

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """From a folder with tokenizer.json (and tokenizer_config.json, chat_template.jinja), a GGUF file, or a folder
        with one. Raises WeightsError with the path and the fix."""
        # These import torch, which takes seconds; the worker answers HTTP before that.
        from kvbudget_worker.weights import find_gguf
        from kvbudget_worker.weights.gguf import GGUFFile
        from kvbudget_worker.weights.gguf_tokenizer import rebuild

        path = Path(path)
        file = path / "tokenizer.json"
        if path.is_dir() and file.exists():
            try:
                fast = FastTokenizer.from_file(str(file))
            except Exception as e:  # noqa: BLE001 (tokenizers raises bare Exception for any content it cannot read)
                raise WeightsError(str(file), f"cannot be read ({e}): copy the model's tokenizer.json again") from None
            config = _read_json(path / "tokenizer_config.json")
            return cls(fast, config, _template_text(path / "chat_template.jinja", config), str(path))
        gguf = find_gguf(path) if path.exists() else None
        if gguf is None:
            raise WeightsError(str(file), "not found: the weights folder needs the model's tokenizer.json")
        fast, config = rebuild(GGUFFile(gguf))
        return cls(fast, config, config.get("chat_template"), str(gguf))

    @property
    def vocab_size(self) -> int:
        return self._fast.get_vocab_size()

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids. ``add_special``: with the begin token that the model's own post-processor adds, if any."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=add_special).ids
        return ids

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: object
    ) -> list[int]:
        """Token ids of a conversation in the model's own template. Raises InputError naming ``messages``."""
        text = self.render(messages, add_generation_prompt=add_generation_prompt, **variables)
        return self.encode(text, add_special=False)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        """The text that :meth:`chat` encodes. ``variables`` reach the template (for example ``tools``)."""
        if self._template is None:
            raise InputError("messages", f"the model at {self._path} has no chat template: use /v1/completions")
        names = {key: text for key, text in self._names.items() if text}
        try:
            return str(
                self._template.render(
                    messages=messages, add_generation_prompt=add_generation_prompt, **{**names, **variables}
                )
            )
        except TemplateError as e:
            raise InputError("messages", f"the model's chat template refuses them: {e.message or e}") from None
        except Exception as e:  # noqa: BLE001 (a template is a program that came with the weights: it can raise anything)
            raise InputError("messages", f"the model's chat template cannot render them: {e}") from None

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are no UTF-8 become U+FFFD."""
        text = b"".join(self.piece(i, skip_special=skip_special) for i in ids).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if not self._byte_level else text

    def piece(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """The bytes that one token stands for; empty for an id outside the vocabulary, and for a special token that is
        skipped."""
        if skip_special and token_id in self._special:
            return b""
        known = self._pieces.get(token_id)
        if known is None:
            known = self._pieces[token_id] = self._piece(token_id)
        return known

    def _piece(self, token_id: int) -> bytes:
        token = self._fast.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self._byte_level:
            values = [_ALPHABET.get(c) for c in token]
            return token.encode() if None in values else bytes(v for v in values if v is not None)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("▁", " ").encode()


class IncrementalDecoder:
    """Text of a growing sequence, as soon as its characters are complete: no piece ends inside a UTF-8 character."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes; empty while a character is unfinished."""
        return self._utf8.decode(self._tokenizer.piece(token_id, skip_special=self._skip_special))

    def finish(self) -> str:
        """What is left at the end of the sequence: U+FFFD for an unfinished character, else nothing."""
        return self._utf8.decode(b"", final=True)


def _is_byte_level(fast: FastTokenizer, path: str) -> bool:
    decoder = json.loads(fast.to_str()).get("decoder") or {}
    kinds = {decoder.get("type")} | {d.get("type") for d in decoder.get("decoders", ())}
    if "ByteLevel" in kinds:
        return True
    if "ByteFallback" in kinds:
        return False
    raise UnsupportedError(
        path, f"the tokenizer's decoder {decoder.get('type')!r} is not supported; ByteLevel and ByteFallback are"
    )


def _token_text(value: object) -> str | None:
    """tokenizer_config.json holds a token as text, or as an object with its text in ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise WeightsError(str(path), f"cannot be read ({e}): copy the model's {path.name} again") from None
    if not isinstance(value, dict):
        raise WeightsError(str(path), f"must hold a JSON object: copy the model's {path.name} again")
    return value


def _template_text(file: Path, config: Mapping[str, Any]) -> str | None:
    """A file of its own wins over the config; a list of named templates gives the one named ``default``."""
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as e:
            raise WeightsError(str(file), f"cannot be read ({e}): copy the tokenizer's files again") from None
    template = config.get("chat_template")
    if isinstance(template, list):
        named = (t for t in template if isinstance(t, dict) and t.get("name") == "default")
        template = next(named, {}).get("template")
    if template is not None and not isinstance(template, str):
        where = str(file.with_name("tokenizer_config.json"))
        raise WeightsError(where, "its chat_template is no text: copy the tokenizer's files again")
    return template


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _compile(source: str | None, path: str) -> Any:
    """The template with the names that `transformers` gives it. Sandboxed: weights may come from anywhere."""
    if source is None:
        return None
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    env.globals["raise_exception"] = _refuse
    env.globals["strftime_now"] = lambda layout: datetime.now(UTC).strftime(layout)
    try:
        return env.from_string(source)
    except Exception as e:  # noqa: BLE001 (compiling computes the template's constants, and they can raise anything)
        raise WeightsError(
            path, f"its chat template does not compile ({e}): copy the tokenizer's files again"
        ) from None
