"""What each key of a configuration means for memory: the table ``known.csv``, and what happens to keys outside it.

A line of the table is one or more keys, a class, and a reason. A key with ``*`` is a pattern, one with a dot belongs to
a nested object. A name is looked up as it stands first, then by the patterns in their order. Classes:

    shape       read: it decides what a layer keeps, or which weights there are
    again       says again what other keys say; refused where it says something else
    harmless    changes nothing that is kept
    elsewhere   speaks of another part than the layers of the text model
    refused     changes what is kept, or by its name could, in a way that is not modelled

A key in no line is named in the assumptions. A key that says nothing (null, false, 0, empty) is passed over.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from importlib.resources import files
from typing import Final, Literal, cast, get_args

from kvbudget.shapes.keys import Keys, short
from kvbudget.shapes.sizes import head_size, kv_head_count, query_head_count

KeyClass = Literal["shape", "again", "harmless", "elsewhere", "refused"]
_SECTIONS: Final = ("attn_config", "ffn_config", "linear_attn_config", "sparse_attention_config")
"""Objects whose own keys are looked up too."""
_REMEDY: Final = "set spec.model.shape by hand, or remove the key if it does not change what a layer keeps"


@dataclass(frozen=True, slots=True)
class Row:
    """A key or pattern of the table."""

    key: str
    key_class: KeyClass
    reason: str

    @property
    def is_pattern(self) -> bool:
        return "*" in self.key


@cache
def rows() -> tuple[Row, ...]:
    """The table, one row a key, in its order. Raises ValueError for a line that is none (a fault of the package)."""
    found = []
    lines = files("kvbudget.shapes").joinpath("known.csv").read_text(encoding="utf-8").splitlines()
    for line in lines[1:]:
        names, key_class, reason = line.split(",", 2)
        if key_class not in get_args(KeyClass):
            raise ValueError(f"known.csv: {line!r} has no known class")
        found += [Row(name, cast(KeyClass, key_class), reason) for name in names.split()]
    return tuple(found)


@cache
def _exact() -> Mapping[str, Row]:
    return {row.key: row for row in rows() if not row.is_pattern}


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Row], ...]:
    return tuple((re.compile(translate(row.key)), row) for row in rows() if row.is_pattern)


@cache
def row_of(key: str) -> Row | None:
    """The row that a key falls under; None where the table knows nothing of it.

    >>> row_of("head_dim").key_class, row_of("kv_compression_factor").reason, row_of("frobnicate")
    ('shape', 'it speaks of K and V', None)
    """
    found = _exact().get(key)
    return found or next((row for pattern, row in _patterns() if pattern.match(key.lower())), None)


def refuse_unknown(keys: Keys) -> tuple[str, ...]:
    """Raises ShapeError for the first key that could change what a layer keeps and is not understood. Returns the keys
    of which nothing is known."""
    unknown = _refused_in(keys, "")
    for section in _SECTIONS:
        part = keys.child(section)
        if part is not None:
            unknown += _refused_in(part, f"{section}.")
    return tuple(unknown)


def _refused_in(place: Keys, section: str) -> list[str]:
    unknown = []
    for name in map(str, place.config):
        if not place.has(name):
            continue
        row = _exact().get(f"{section}{name}") or row_of(name)
        if row is None:
            unknown.append(f"{section}{name}")
        elif row.key_class == "refused":
            _refuse(place, row, name)
        elif row.key_class == "again":
            _compare(place, f"{section}{name}", name)
    return unknown


def _refuse(place: Keys, row: Row, name: str) -> None:
    value = short(place.config[name])
    if row.is_pattern:
        why = f"not known, and its name says that it could change what a layer keeps: {row.reason}"
        place.fail(f"{name} is {value}: {why}; {_REMEDY}")
    place.fail(f"{name} is {value}: {row.reason}, which is not modelled; {_REMEDY}")


def _compare(keys: Keys, row: str, name: str) -> None:
    same = AGAIN.get(row)
    if same is None:
        keys.fail(f"{name} is {short(keys.config[name])}: not known in this place; {_REMEDY}")
    expected = same(keys)
    if keys.config[name] != expected:
        keys.fail(f"{name} is {short(keys.config[name])} where the other keys give {short(expected)}; {_REMEDY}")


def _query_key_width(keys: Keys) -> int | None:
    parts = keys.optional("qk_nope_head_dim"), keys.optional("qk_rope_head_dim")
    return parts[0] + parts[1] if parts[0] is not None and parts[1] is not None else head_size(keys)


def _value_width(keys: Keys) -> int | None:
    return keys.optional("v_head_dim") or head_size(keys)


def _hybrid_layers(keys: Keys) -> list[int]:
    listed = keys.config.get("layers_block_type") or keys.config.get("layer_types")
    return [i for i, word in enumerate(listed) if word == "hybrid"] if isinstance(listed, list) else []


def _order(keys: Keys) -> str | None:
    return "local_attn_first" if keys.has("sliding_window_pattern", "layer_types") else None


AGAIN: Final[dict[str, Callable[[Keys], object]]] = {
    "attention_head_dim": head_size,
    "key_dim": head_size,
    "key_head_dim": head_size,
    "value_dim": _value_width,
    "value_head_dim": _value_width,
    "qk_head_dim": _query_key_width,
    "attention_hidden_size": lambda keys: head_size(keys) * query_head_count(keys),
    "num_heads": query_head_count,
    "num_kv_heads": kv_head_count,
    "num_query_groups": kv_head_count,
    "conv_dim_out": lambda keys: keys.optional("conv_dim", "hidden_size"),
    "block_dim": lambda keys: keys.optional("hidden_size"),
    "sliding_window_size": lambda keys: keys.config.get("sliding_window"),
    "_sliding_window_pattern": lambda keys: keys.config.get("sliding_window_pattern"),
    "layer_switch": lambda keys: keys.config.get("sliding_window_pattern"),
    "order_of_interleaved_layers": _order,
    "hybrid_layer_ids": _hybrid_layers,
    "num_memory_blocks": lambda keys: keys.config.get("num_mem_blocks"),
    "sparse_attention_config.sparse_disable_index_value": lambda keys: keys.config.get("sparse_attention_freq"),
}
"""What a key of the class ``again`` must be. ``layer_types`` says it where there is no sliding_window_pattern."""
