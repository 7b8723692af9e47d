"""Memory of a card as CUDA reports it, by what a log calls the card."""

import re
from typing import Final

from kvbudget.engines import Card
from kvbudget.engines.result import GIB, gib
from kvbudget.engines.sglang import FREE_MEMORY
from kvbudget.gpu import CATALOGUE
from scoring.points import Point

_NAMES: Final[tuple[tuple[str, str], ...]] = (
    (r"h100.*nvl|h100.*94", "h100-nvl-94gb"),
    (r"gh200.*(96|94|480)", "gh200-96gb"),  # 480 GB are the processor's
    (r"gh200.*14[14]", "gh200-144gb"),
    (r"gb300", "gb300-288gb"),
    (r"b300", "b300-288gb"),
    (r"gb200", "gb200-186gb"),
    (r"b200", "b200-180gb"),
    (r"(?<!g)h200", "h200-141gb"),
    (r"h20\b", "h20-96gb"),
    (r"h[18]00", "h100-80gb"),
    (r"a[18]00.*40 ?g", "a100-40gb"),
    (r"a[18]00.*80 ?g", "a100-80gb"),
    (r"l40s|l40\b", "l40s-48gb"),
    (r"a40\b", "a40-48gb"),
    (r"a6000", "rtx-a6000-48gb"),
    (r"l20\b", "l20-48gb"),
    (r"\bl4\b", "l4-24gb"),
    (r"\ba10g?\b", "a10-24gb"),
    (r"a5000", "rtx-a5000-24gb"),
    (r"pro 6000", "rtx-pro-6000-96gb"),
    (r"5090", "rtx-5090-32gb"),
    (r"4090", "rtx-4090-24gb"),
    (r"3090", "rtx-3090-24gb"),
    (r"5080", "rtx-5080-16gb"),
    (r"5070 ti", "rtx-5070-ti-16gb"),
    (r"gb10|spark", "gb10-128gb"),
    (r"\bt4\b", "t4-16gb"),
    (r"mi355", "mi355x-288gb"),
    (r"mi350", "mi350x-288gb"),
    (r"mi325", "mi325x-256gb"),
    (r"mi308x", "mi308x-192gb"),
    (r"mi300x", "mi300x-192gb"),
    (r"mi300a", "mi300a-128gb"),
    (r"mi250x", "mi250x-64gb"),
    (r"mi210", "mi210-64gb"),
    (r"v100.*32 ?g", "v100-32gb"),
    (r"v100.*16 ?g", "v100-16gb"),
)
"""What logs call a card, and its name in the catalogue; the first that matches."""
_OTHER: Final = re.compile(r" \+ |\bmig\b|\d+g\.\d+ ?gb|laptop|shared|\bmod(ded)?\b")
"""Several kinds, a slice, a namesake with other memory, or one that something else uses too."""
_SAME: Final = 0.12
"""The size on the box and the driver's may differ by this share; more is another card of the same name."""


def likely_gib(point: Point) -> float | None:
    """:func:`memory_gib`, else by the size in the card's name, less what drivers keep: 1.5% of small cards, 1% of
    large. Good enough to ask what lies outside an engine's share, not to score a budget."""
    size, boxed = memory_gib(point), re.search(r"(\d+) ?gi?b", point.text("gpu").lower())
    if size is None and boxed:
        return int(boxed[1]) * (0.985 if int(boxed[1]) <= 32 else 0.99)
    return size


def memory_gib(point: Point) -> float | None:
    """What the log states, also in brackets behind the card's name; else by that name, where it names one kind."""
    stated = point.free_before_gib
    if stated is not None and stated > 0:
        return stated
    label = point.text("gpu").lower()
    if _OTHER.search(label):
        return None
    if measured := re.search(r"\((\d+\.\d+) ?gib\)", label):
        return float(measured[1])
    if "class" in label and not re.search(r"h100|h200|gb?[123]00|rtx|gb10", label):
        return None
    name = next((name for pattern, name in _NAMES if re.search(pattern, label)), None)
    if name is None:
        return None
    size = CATALOGUE[name].memory_bytes / GIB
    boxed = [int(found) for found in re.findall(r"(\d+) ?gi?b", label) if found != "480"]
    return None if any(abs(size - box) > _SAME * box for box in boxed) else size


def card_of(point: Point, *, likely: bool = False) -> Card | None:
    """The card, or None where its memory is not known. In SGLang's logs the figure is what is free before the weights
    come."""
    size = likely_gib(point) if likely else memory_gib(point)
    if size is None:
        return None
    name = point.text("gpu") or "unnamed"
    free = point.engine == "sglang" and point.free_before_gib is not None
    return Card(name=f"{name} {FREE_MEMORY}" if free else name, memory_bytes=gib(size))
