"""Memory of a card as CUDA reports it, by what a log calls the card."""

import re
from typing import Final

from kvbudget.engines import Card
from kvbudget.engines.result import gib
from kvbudget.engines.sglang import FREE_MEMORY
from scoring.points import Point

_GIB: Final[tuple[tuple[str, float], ...]] = (
    (r"h100.*nvl|h100.*94", 93.1),
    (r"gh200.*(96|94)", 94.5),
    (r"gh200", 139.8),
    (r"gb300", 277.5),
    (r"b300", 267.7),
    (r"gb200", 184.0),
    (r"b200", 178.36),
    (r"h200", 139.8),
    (r"h20\b", 95.1),
    (r"h[18]00", 79.19),
    (r"a[18]00.*40", 39.5),
    (r"a[18]00", 79.25),
    (r"l40s|l40\b|a40\b|a6000", 44.4),
    (r"l20\b", 44.5),
    (r"\bl4\b", 21.95),
    (r"\ba10g?\b", 21.99),
    (r"a5000", 23.68),
    (r"pro 6000", 94.97),
    (r"5090 laptop", 23.89),
    (r"5090|pro 4500", 31.36),
    (r"4090|3090", 23.58),
    (r"5080|5070 ti|16gb", 15.6),
    (r"gb10|spark", 121.7),
    (r"\bt4\b|p100", 14.58),
    (r"mi355|mi350", 287.6),
    (r"mi325", 255.7),
    (r"mi300", 191.7),
    (r"v100.*32", 31.73),
)


def likely_gib(point: Point) -> float | None:
    """:func:`memory_gib`, else by the size in the card's name, less what drivers keep: 1.5% of small cards, 1% of
    large. Good enough to ask what lies outside an engine's share, not to score a budget."""
    size, boxed = memory_gib(point), re.search(r"(\d+) ?gi?b", point.text("gpu").lower())
    if size is None and boxed:
        return int(boxed[1]) * (0.985 if int(boxed[1]) <= 32 else 0.99)
    return size


def memory_gib(point: Point) -> float | None:
    """What the log states; else by the name of the card, where it names one kind alone."""
    stated = point.number("gpu_total_gib")
    if stated is not None and stated > 0:
        return stated
    label = point.text("gpu").lower()
    if not label or " + " in label or ("class" in label and not re.search(r"h100|h200|gb?[123]00|rtx|gb10", label)):
        return None
    return next((size for pattern, size in _GIB if re.search(pattern, label)), None)


def card_of(point: Point, *, likely: bool = False) -> Card | None:
    """The card, or None where its memory is not known. In SGLang's logs the figure is what is free before the weights
    come."""
    size = likely_gib(point) if likely else memory_gib(point)
    if size is None:
        return None
    name = point.text("gpu") or "unnamed"
    free = point.engine == "sglang" and point.number("gpu_total_gib") is not None
    return Card(name=f"{name} {FREE_MEMORY}" if free else name, memory_bytes=gib(size))
