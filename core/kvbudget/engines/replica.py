"""From the stages of a replica to its budget: what every engine that sizes each stage by itself does alike."""

from collections.abc import Callable
from dataclasses import dataclass

from kvbudget.engines.loading import fallback, refused_format
from kvbudget.engines.pages import layer_token_bytes, resolved_format
from kvbudget.engines.refusals import refusal
from kvbudget.engines.result import EngineBudget, StageBudget
from kvbudget.engines.settings import Card, Settings
from kvbudget.engines.stages import kept_caches, model_len, stage_ranges
from kvbudget.engines.verdict import judged
from kvbudget.layers import Architecture


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage ``number`` of a replica, of the layers ``span``: its first, and the one after its last. ``told`` has the
    engine's defaults filled in."""

    arch: Architecture
    card: Card
    told: Settings
    kv_format: str
    number: int
    span: tuple[int, int]

    @property
    def layers(self) -> int:
        return self.span[1] - self.span[0]

    @property
    def is_last(self) -> bool:
        return self.span[1] == self.arch.layers


def replica_budget(
    arch: Architecture,
    card: Card,
    told: Settings,
    stage_of: Callable[[Stage], StageBudget],
    *,
    engine: str,
    version: str,
) -> EngineBudget:
    """The judged budget of one replica; ``told`` has the engine's defaults filled in."""
    kv_format = resolved_format(arch, told.kv_format)
    spans = stage_ranges(arch.layers, told.pipeline_parallel, told.stage_layers)
    note = fallback(arch, card, engine, version)
    plan = EngineBudget(
        engine=engine,
        version=version,
        max_model_len=model_len(arch, told),
        stages=tuple(stage_of(Stage(arch, card, told, kv_format, n, span)) for n, span in enumerate(spans)),
        verdict="fits",
        reason="",
        kv_precision=kv_format,
        assumptions=(*arch.assumptions, *([note] if note else ())),
        settings=told,
    )
    return judged(plan, refusal(arch, told) or refused_format(arch, card, engine, version))


def require_tokens(arch: Architecture) -> None:
    """Raises ValueError for a model of which no layer keeps tokens: nothing then follows from a share of memory."""
    if not any(layer_token_bytes(cache, "BF16") for cache in kept_caches(arch)):
        raise ValueError("no layer of this model keeps tokens")
