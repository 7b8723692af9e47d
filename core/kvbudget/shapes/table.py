"""Models that are known by name, as the facts of their configuration files.

``models.jsonl`` has one model a line: ``model`` is its name, ``like`` names another line whose facts it shares, the
rest are keys of config.json. ``layer_types`` may be a word of letters, one a layer: F full, S sliding, L linear, C
convolution, M Mamba, H hybrid; ``block_configs`` pairs of heads in a group and ffn_mult. The file is read at the first
question, not at import.

Facts are from the models' published configurations, as public repositories keep them; a ``remark`` says where they are
not, and becomes an assumption of the shape.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

_LETTERS: Final[dict[str, str]] = {
    "F": "full_attention",
    "S": "sliding_attention",
    "L": "linear_attention",
    "C": "conv",
    "M": "mamba",
    "H": "hybrid",
}


def known_names() -> tuple[str, ...]:
    """All names of the table, sorted."""
    return tuple(sorted(_table()))


def matching(wanted: str) -> tuple[str, ...]:
    """The names that a user may mean: the very name, else those that differ in case or in their organisation alone.

    >>> matching("qwen3-8b"), matching("nobody/nothing")
    (('Qwen/Qwen3-8B',), ())
    """
    if wanted in _table():
        return (wanted,)
    low = wanted.lower()
    return tuple(name for name in known_names() if low in (name.lower(), name.rpartition("/")[2].lower()))


def facts(name: str) -> dict[str, object] | None:
    """The keys of a known model's configuration; None for a name that is not known.

    >>> (facts("Qwen/Qwen3-8B") or {})["head_dim"]
    128
    """
    entry = _table().get(name)
    if entry is None:
        return None
    base = entry.get("like")
    found = {**((facts(base) or {}) if isinstance(base, str) else {}), **entry}
    for key in ("model", "like", "remark"):
        found.pop(key, None)
    letters = found.get("layer_types")
    if isinstance(letters, str):
        found["layer_types"] = [_LETTERS[letter] for letter in letters]
    blocks = found.get("block_configs")
    if isinstance(blocks, list):
        found["block_configs"] = [_block(*block) for block in blocks]
    return {key: value for key, value in found.items() if value is not None}


def _block(heads_in_group: int, ffn_mult: float) -> dict[str, object]:
    """A block of Nemotron-NAS; 0 stands for a part that the block does not have."""
    attention: dict[str, object] = {"n_heads_in_group": heads_in_group} if heads_in_group else {"no_op": True}
    return {"attention": attention, "ffn": {"ffn_mult": ffn_mult} if ffn_mult else {"no_op": True}}


def remark(name: str) -> str | None:
    """What a user should know of where the facts of this name come from; None where they are its configuration's.

    >>> remark("ai21labs/Jamba-v0.1")
    "its facts are the library's defaults, not its own configuration"
    """
    said = _table().get(name, {}).get("remark")
    return said if isinstance(said, str) else None


def completed(config: Mapping[str, object], name: str | None) -> tuple[dict[str, object], tuple[str, ...]]:
    """``config`` with what is known of ``name`` where it says nothing, and the keys that came from there with more than
    a false or a zero. A key that holds text where the table holds a list counts as saying nothing."""
    known = facts(name) if name is not None else None
    if known is None:
        return dict(config), ()
    taken = {k: v for k, v in known.items() if config.get(k) is None or _is_remark(config[k], v)}
    return {**config, **taken}, tuple(sorted(k for k, v in taken.items() if v not in (False, 0)))


def _is_remark(given: object, known: object) -> bool:
    return isinstance(given, str) and isinstance(known, list)


@cache
def _table() -> dict[str, dict[str, object]]:
    text = files("kvbudget.shapes").joinpath("models.jsonl").read_text(encoding="utf-8")
    entries = [json.loads(line) for line in text.splitlines() if line.strip()]
    return {str(entry["model"]): entry for entry in entries}
