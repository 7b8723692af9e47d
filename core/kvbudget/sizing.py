"""How many replicas the declared traffic needs.

    sequences = given, or by Little's law: requests per second × seconds per request
    replicas  = ⌈sequences × pages per sequence ÷ (pages per replica × target)⌉

240 requests a minute of 800 output tokens at 40 tokens a second are 4 × 20 = 80 sequences; at 107 pages each and 7142
pages per replica, 75% full:

>>> _ceil_div(240 * 800, 60 * 40)
80
>>> _ceil_div(80 * 107 * 100, 7142 * 75)
2
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvbudget.api.service import MAX_REPLICAS
from kvbudget.budget import Budget

if TYPE_CHECKING:
    from kvbudget.api import LLMService
    from kvbudget.api.service import Traffic

DEFAULT_TARGET_PERCENT: Final = 75
"""Fill that a size from traffic aims at where ``scaling.targetPercent`` is not there to say it."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """Replicas to begin with where ``spec.replicas`` is left out. ``reason``: MinReplicas, Traffic or Default;
    ``formula``: the arithmetic of the size from traffic, also where the reason is another, None without traffic;
    ``traffic_replicas``: that size; where it is above what one service can have, ``replicas`` is the most it can."""

    replicas: int
    reason: str
    formula: str | None
    traffic_replicas: int | None = None


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def concurrent_sequences(traffic: "Traffic") -> int:
    """Sequences that run at once, rounded up."""
    if traffic.concurrent_requests is not None:
        return traffic.concurrent_requests
    per_minute, speed = traffic.requests_per_minute or 0, traffic.output_tokens_per_second or 1
    return max(1, _ceil_div(per_minute * traffic.output_tokens, 60 * speed))


def size(service: "LLMService", budget: Budget) -> Sizing:
    """See :class:`Sizing`. ``budget`` must hold one page at least."""
    spec = service.spec
    formula, from_traffic = None, None
    if spec.traffic is not None:
        traffic, target = spec.traffic, DEFAULT_TARGET_PERCENT if spec.scaling is None else spec.scaling.target_percent
        sequences = concurrent_sequences(traffic)
        tokens = traffic.input_tokens + traffic.output_tokens
        pages = budget.pages_for(tokens)
        from_traffic = _ceil_div(sequences * pages * 100, budget.pages * target)
        formula = (
            f"{_sequences_text(traffic, sequences)} × {pages} pages ({tokens} tokens) ÷ "
            f"({budget.pages} pages per replica × {target}%) = {from_traffic} replica{'' if from_traffic == 1 else 's'}"
        )
    if spec.scaling is not None:
        return Sizing(spec.scaling.min_replicas, "MinReplicas", formula, from_traffic)
    if from_traffic is not None:
        return Sizing(min(from_traffic, MAX_REPLICAS), "Traffic", formula, from_traffic)
    return Sizing(1, "Default", None)


def _sequences_text(traffic: "Traffic", sequences: int) -> str:
    if traffic.requests_per_minute is None:
        return f"{sequences} sequences"
    return (
        f"{sequences} sequences ({traffic.requests_per_minute} requests per minute × {traffic.output_tokens} output "
        f"tokens ÷ {traffic.output_tokens_per_second} per second)"
    )
