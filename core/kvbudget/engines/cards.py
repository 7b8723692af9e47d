"""Cards of the catalogue."""

from kvbudget.engines.settings import Card
from kvbudget.errors import Problem
from kvbudget.gpu import lookup


def named(name: str) -> Card | Problem:
    """The card of this name in the catalogue (see :func:`kvbudget.gpu.lookup`), or a Problem that names the nearest.

    >>> card = named("H100")
    >>> card.name, round(card.memory_bytes / 2**30, 2), card.compute_capability
    ('H100', 79.19, (9, 0))
    """
    entry = lookup(name)
    if isinstance(entry, Problem):
        return entry
    capability = None
    if entry.compute_capability is not None:
        major, _, minor = entry.compute_capability.partition(".")
        capability = (int(major), int(minor or 0))
    return Card(name=name, memory_bytes=entry.memory_bytes, compute_capability=capability)
