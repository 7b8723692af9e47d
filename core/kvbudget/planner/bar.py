"""One GPU's memory as a bar of characters.

>>> parts = [Part("weights", "W", 15), Part("KV", "K", 58), Part("outside", ".", 7)]
>>> bar(parts, 40)
'[WWWWWWWKKKKKKKKKKKKKKKKKKKKKKKKKKKK...]'
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvbudget.planner.question import Answer

_GIB: Final = 1024**3
KV_LETTER: Final = "K"
OUTSIDE_LETTER: Final = "."
_LETTERS: Final = {"weights": "W", "activation": "A", "graphs": "G", "runtime": "R", "context": "C", "other": "o"}
_NARROWEST: Final = 20


@dataclass(frozen=True, slots=True)
class Part:
    """``letter`` stands for it in the bar; ``size`` in any unit, 0 or more."""

    name: str
    letter: str
    size: int


def parts(answer: Answer) -> tuple[list[Part], int]:
    """The stage that decides, in bytes, at the expected figures, and by how many bytes it is more than there is."""
    stage = answer.budget.worst
    found = [Part(t.name, _letter(t.name), t.bytes.expected) for t in stage.terms if t.bytes.expected > 0]
    kv = stage.kv.expected
    if kv > 0:
        found.append(Part("KV", KV_LETTER, kv))
    outside = stage.memory_bytes - stage.usable_bytes
    if outside > 0 and kv >= 0:
        found.append(Part("outside the engine's share", OUTSIDE_LETTER, outside))
    return found, max(0, -kv - outside)


def widths(found: Sequence[Part], width: int) -> list[int]:
    """Characters of each part, together ``width``; nothing that is there has none.

    >>> widths([Part("a", "a", 1), Part("b", "b", 998), Part("c", "c", 1)], 10)
    [1, 8, 1]
    """
    total = sum(part.size for part in found) or 1
    shares = [max(1, part.size * width // total) for part in found]
    while (spare := width - sum(shares)) > 0:
        behind = max(range(len(shares)), key=lambda i: found[i].size * width - shares[i] * total)
        shares[behind] += min(1, spare)
    while sum(shares) > width:
        shares[shares.index(max(shares))] -= 1
    return shares


def bar(found: Sequence[Part], width: int) -> str:
    """The bar in brackets, ``width`` characters with them."""
    inner = max(width, _NARROWEST) - 2
    return "[" + "".join(p.letter * n for p, n in zip(found, widths(found, inner), strict=True)) + "]"


def legend(found: Sequence[Part]) -> str:
    """What the letters mean, with GiB."""
    return "  ".join(f"{part.letter} {part.name} {part.size / _GIB:.2f}" for part in found)


def _letter(name: str) -> str:
    return _LETTERS.get(name, name[0].lower())
