"""Reads single facts from a parsed configuration, and refuses what cannot be one.

A fact that is missing, of another type, not finite or beyond its bound is a :class:`ShapeError` that names the key;
nothing is rounded, clipped or guessed here.
"""

import json
import math
from collections.abc import Mapping
from typing import Final, NoReturn

from kvbudget.errors import ShapeError

MAX_LAYERS: Final = 1024
MAX_HEADS: Final = 4096
MAX_WIDTH: Final = 2**21
MAX_VOCAB: Final = 2**24
MAX_LENGTH: Final = 2**31 - 1
MAX_EXPERTS: Final = 2**16

_BOUNDS: Final[dict[str, int]] = {
    "num_hidden_layers": MAX_LAYERS,
    "num_layers": MAX_LAYERS,
    "n_layers": MAX_LAYERS,
    "n_layer": MAX_LAYERS,
    "vocab_size": MAX_VOCAB,
    "vocab_size_per_layer_input": MAX_VOCAB,
    "max_position_embeddings": MAX_LENGTH,
    "sliding_window": MAX_LENGTH,
    "attention_chunk_size": MAX_LENGTH,
}


class Keys:
    """One mapping of a configuration file; ``path`` is the file and, for nested ones, the key."""

    def __init__(self, config: Mapping[str, object], path: str) -> None:
        self.config = config
        self.path = path

    def fail(self, reason: str) -> NoReturn:
        raise ShapeError(self.path, reason)

    def has(self, *keys: str) -> bool:
        """Whether one of the keys is there and says something (not null, false, 0 or empty)."""
        return any(not _says_nothing(self.config.get(key)) for key in keys)

    def count(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of these keys that is there, a whole number from ``least`` to the key's bound."""
        found = self.optional(*keys, least=least)
        if found is not None:
            return found
        if default is None:
            self.fail(f"key {keys[0]} is missing; use the model's own configuration file")
        return default

    def optional(self, *keys: str, least: int = 1) -> int | None:
        """As :meth:`count`; None where none of the keys is there, or where they are null."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            return self.whole(value, key, least=least, most=_bound(key))
        return None

    def whole(self, value: object, key: str, *, least: int, most: int) -> int:
        """``value`` as a whole number within its bounds."""
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(f"{key} is {short(value)}; it must be a whole number from {least} to {most}")
        return value

    def parameters(self, key: str) -> int | None:
        """A count of parameters; None where the key is not there."""
        value = self.config.get(key)
        return None if value is None else self.whole(value, key, least=0, most=2**53)

    def number(self, key: str) -> float | None:
        """A finite number above 0, or None where the key is not there."""
        value = self.config.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self.fail(f"{key} is {short(value)}; it must be a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(f"{key} is {short(value)}; it must be true or false")
        return value

    def text(self, key: str) -> str | None:
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.fail(f"{key} is {short(value)}; it must be text")
        return value

    def words(self, key: str, length: int) -> tuple[str, ...] | None:
        """A list of ``length`` words, one a layer."""
        values = self._list(key, length)
        if values is None:
            return None
        for value in values:
            if not isinstance(value, str):
                self.fail(f"{key} holds {short(value)}; it must be a list of words")
        return tuple(str(value) for value in values)

    def counts(self, key: str, length: int | None, *, least: int = 0, most: int = MAX_LENGTH) -> tuple[int, ...] | None:
        """A list of whole numbers; ``length`` of them where it is given. Longer lists are cut where the surplus can
        only be draft layers (at most 8 more)."""
        values = self._list(key, length)
        return None if values is None else tuple(self.whole(v, key, least=least, most=most) for v in values)

    def _list(self, key: str, length: int | None) -> list[object] | None:
        values = self.config.get(key)
        if values is None:
            return None
        if not isinstance(values, list | tuple):
            self.fail(f"{key} is {short(values)}; it must be a list")
        if length is not None and not length <= len(values) <= length + 8:
            self.fail(f"{key} has {len(values)} entries for {length} layers; it must have one for each")
        return list(values if length is None else values[:length])

    def child(self, key: str) -> "Keys | None":
        """The mapping under ``key``; None where it is not there."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(f"{key} is {short(value)}; it must be an object")
        return Keys(value, f"{self.path}: {key}")


def _bound(key: str) -> int:
    if key in _BOUNDS:
        return _BOUNDS[key]
    if "expert" in key:
        return MAX_WIDTH if "size" in key or "dim" in key else MAX_EXPERTS
    return MAX_HEADS if "head" in key and "dim" not in key else MAX_WIDTH


def _says_nothing(value: object) -> bool:
    return value is None or value is False or value == 0 or value in ("", [], {}, ())


def short(value: object) -> str:
    """A value as it stands in the file, cut to 60 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"
