"""The kinds of ``kvbudget.dev/v1alpha1`` as frozen pydantic models: the one source of the CRDs, of the defaults and of
``docs/api.md``."""

from kvbudget.api.gpuclass import GPUClass, GPUClassSpec
from kvbudget.api.metadata import Metadata
from kvbudget.api.parse import parse_gpu_class, parse_service
from kvbudget.api.pod import PodTemplate, Toleration
from kvbudget.api.service import DEFAULT_OUTPUT_TOKENS, LLMService, LLMServiceSpec
from kvbudget.api.status import Condition, DecisionStatus, LLMServiceStatus
from kvbudget.api.support import unsupported

__all__ = [
    "DEFAULT_OUTPUT_TOKENS",
    "Condition",
    "DecisionStatus",
    "GPUClass",
    "GPUClassSpec",
    "LLMService",
    "LLMServiceSpec",
    "LLMServiceStatus",
    "Metadata",
    "PodTemplate",
    "Toleration",
    "parse_gpu_class",
    "parse_service",
    "unsupported",
]
