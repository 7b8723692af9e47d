"""From the stages of a replica to its budget, for the engines that size every stage by itself."""

from collections.abc import Callable

from kvbudget.engines.pages import layer_token_bytes, resolved_format
from kvbudget.engines.refusals import refusal
from kvbudget.engines.result import EngineBudget, StageBudget
from kvbudget.engines.settings import Card, Settings
from kvbudget.engines.stages import kept_caches, model_len, stage_ranges
from kvbudget.engines.verdict import judged
from kvbudget.layers import Architecture

StageOf = Callable[[Architecture, Card, Settings, str, int, tuple[int, int]], StageBudget]
"""(model, card, settings with defaults, KV format, number of the stage, its first and last layer) → its budget."""


def replica_budget(
    arch: Architecture, card: Card, told: Settings, stage_of: StageOf, *, engine: str, version: str
) -> EngineBudget:
    """The judged budget of one replica. Raises ValueError for a model of which no layer keeps tokens."""
    if not any(layer_token_bytes(cache, "BF16") for cache in kept_caches(arch)):
        raise ValueError("no layer of this model keeps tokens")
    kv_format = resolved_format(arch, told.kv_format)
    stages = tuple(
        stage_of(arch, card, told, kv_format, stage, span)
        for stage, span in enumerate(stage_ranges(arch.layers, told.pipeline_parallel, told.stage_layers))
    )
    plan = EngineBudget(
        engine=engine,
        version=version,
        max_model_len=model_len(arch, told),
        stages=stages,
        verdict="fits",
        reason="",
        kv_precision=kv_format,
        assumptions=arch.assumptions,
        settings=told,
    )
    return judged(plan, refusal(arch, told))
