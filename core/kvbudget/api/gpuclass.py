"""The GPUClass: a GPU type, its memory, and how pods ask for it."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from kvbudget.api.base import Labels, SpecModel, UniqueItems, WholeQuantity
from kvbudget.api.metadata import Metadata
from kvbudget.api.model import KVPrecision, WeightPrecision
from kvbudget.api.pod import Toleration

ResourceName = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=253,
        pattern=r"^(cpu|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$",
    ),
]


class GPUClassSpec(SpecModel):
    """Facts of the GPU, and how a pod gets one."""

    memory: WholeQuantity
    """Bytes of one GPU as CUDA reports them. With resourceName cpu: what the worker may use for weights and pages."""
    resource_name: ResourceName = "nvidia.com/gpu"
    """Extended resource that a pod asks for: nvidia.com/gpu, nvidia.com/mig-…, amd.com/gpu; cpu: no device."""
    compute_capability: Annotated[str, StringConstraints(max_length=8, pattern=r"^[0-9]{1,2}\.[0-9]$")] | None = None
    """CUDA compute capability, like 9.0."""
    memory_bandwidth: WholeQuantity | None = None
    """Bytes per second."""
    weight_precisions: Annotated[list[WeightPrecision], *UniqueItems, Field(min_length=1, max_length=8)] = Field(
        default=["BF16", "FP16", "FP32"]
    )
    """Precisions that weights can have, the best first."""
    kv_precisions: Annotated[list[KVPrecision], *UniqueItems, Field(min_length=1, max_length=8)] = Field(
        default=["BF16", "FP16"]
    )
    """Precisions that the KV cache can have, the best first; a service that asks for another one is refused."""
    node_selector: Labels | None = None
    """Labels of the nodes that have it."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] | None = None
    """Taints of those nodes."""


class GPUClass(SpecModel):
    """A GPU type and how pods ask for it. Cluster-scoped."""

    api_version: Literal["kvbudget.dev/v1alpha1"]
    """kvbudget.dev/v1alpha1"""
    kind: Literal["GPUClass"]
    """GPUClass"""
    metadata: Metadata
    """Name, labels and annotations."""
    spec: GPUClassSpec
    """Facts of the GPU, and how a pod gets one."""
