"""What the schema has and this release does not do yet: refused by name, never ignored.

An empty value asks for nothing and is accepted.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvbudget.api.service import LLMService
from kvbudget.errors import Problem

CHECK = "NotSupportedYet"
"""Check id of every problem found here."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """``path`` in the manifest, whether a service uses it, and what to do instead."""

    path: str
    used_by: Callable[[LLMService], bool]
    instead: str


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        "spec.model.source.huggingFace",
        lambda s: s.spec.model.source.hugging_face is not None,
        "download the weights into a volume and use source.pvc",
    ),
    Unsupported(
        "spec.model.source.image",
        lambda s: s.spec.model.source.image is not None,
        "copy the weights into a volume and use source.pvc",
    ),
    Unsupported(
        "spec.gpu.tensorParallel",
        lambda s: s.spec.gpu.tensor_parallel > 1,
        "above 1 can be planned (kvbudget plan) but not served; set 1",
    ),
    Unsupported(
        "spec.gpu.pipelineParallel",
        lambda s: s.spec.gpu.pipeline_parallel > 1,
        "above 1 can be planned (kvbudget plan) but not served; set 1",
    ),
    Unsupported(
        "spec.kvCache.prefixCache.mode",
        lambda s: s.spec.kv_cache.prefix_cache.mode == "PerTenant",
        "PerTenant needs tenants; use Shared, or Off where clients must not learn of each other's prompts",
    ),
    Unsupported(
        "spec.kvCache.overcommitPercent",
        lambda s: s.spec.kv_cache.overcommit_percent is not None,
        "requests are always reserved in full; remove it",
    ),
    Unsupported(
        "spec.scaling.driver",
        lambda s: s.spec.scaling is not None and s.spec.scaling.driver != "Operator",
        "use Operator",
    ),
    Unsupported(
        "spec.scaling.minReplicas",
        lambda s: s.spec.scaling is not None and s.spec.scaling.min_replicas == 0,
        "scaling from zero needs the router; set 1",
    ),
    Unsupported(
        "spec.admission.mode",
        lambda s: s.spec.admission.mode is not None,
        "requests above the budget are always refused; remove it",
    ),
    Unsupported(
        "spec.admission.longPrompt",
        lambda s: s.spec.admission.long_prompt is not None,
        "remove it; admission.maxInputTokens bounds every prompt",
    ),
    Unsupported(
        "spec.admission.degradation",
        lambda s: bool(s.spec.admission.degradation),
        "remove it; admission.maxOutputTokens bounds every output",
    ),
    Unsupported("spec.engine.type", lambda s: s.spec.engine.type != "Bundled", "use Bundled"),
    Unsupported(
        "spec.engine.version",
        lambda s: bool(s.spec.engine.version),
        "the bundled engine has one version; remove it",
    ),
    Unsupported(
        "spec.engine.extraArgs",
        lambda s: bool(s.spec.engine.extra_args),
        "the bundled engine has none; remove it",
    ),
    Unsupported(
        "spec.router",
        lambda s: s.spec.router is not None,
        "remove it; clients reach the workers through the Service of the same name",
    ),
)


def unsupported(service: LLMService) -> tuple[Problem, ...]:
    """One problem for each field that ``service`` uses and this release does not support, in the order of the spec."""
    return tuple(
        Problem(entry.path, f"not supported yet: {entry.instead}", CHECK)
        for entry in UNSUPPORTED
        if entry.used_by(service)
    )
