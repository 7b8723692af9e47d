"""What the budget must know of a device: which kind it is, what the runtime itself takes, and a small catalogue.

The catalogue is for the command line alone, so that a file with one LLMService can be planned without a cluster. In a
cluster only GPUClass objects count, and one in the file wins over the catalogue.
"""

from dataclasses import dataclass
from typing import Final, Literal

DeviceKind = Literal["cpu", "gpu"]

_MIB = 1024**2

CPU_RESOURCE: Final = "cpu"
"""``resourceName`` of a class without devices."""


def device_kind(resource_name: str) -> DeviceKind:
    """The kind by which the runtime's own memory is known.

    A class whose resource is a GPU stays ``gpu`` where its pods run the CPU backend (a test cluster): the plan is made
    for the class, and the CPU backend needs less of the class's memory, never more.

    >>> device_kind("cpu"), device_kind("nvidia.com/gpu"), device_kind("nvidia.com/mig-1g.10gb")
    ('cpu', 'gpu', 'gpu')
    """
    return "cpu" if resource_name == CPU_RESOURCE else "gpu"


def runtime_bytes(kind: DeviceKind, *, tensor_parallel: int = 1, pipeline_parallel: int = 1) -> int:
    """Bytes per device that the runtime takes whatever the model: context, libraries' workspaces, communicators.

    ``gpu``: CUDA context plus what grows outside the tensor allocator, the upper figures that vLLM 0.19 logged over 61
    runs on H100 — one device 0.51 + 0.27 GiB, pipeline stages 2.07 + 0.07, tensor ranks 2.07 + 2.21 — rounded up to
    16 MiB. Other makers' devices are budgeted alike; they were not measured.

    ``cpu``: 0. There the class's memory is what the model may use; the process itself (interpreter, torch) lives in
    :data:`CPU_PROCESS_BYTES`, which the container's limit adds on top.

    >>> runtime_bytes("gpu") // 2**20, runtime_bytes("gpu", tensor_parallel=2) // 2**20, runtime_bytes("cpu")
    (800, 4384, 0)
    """
    if kind == "cpu":
        return 0
    if tensor_parallel > 1:
        return 4384 * _MIB
    return 2192 * _MIB if pipeline_parallel > 1 else 800 * _MIB


CPU_PROCESS_BYTES: Final = 1024 * _MIB
"""Memory of the worker's process beside weights, activations and pages where the CPU backend runs: the container's
memory limit of a ``cpu`` class is the class's memory plus this. Measured: 551 MiB with torch 2 and the HTTP stack
imported; the rest is for requests in flight and the allocator's slack."""

SPLIT_CTAS: Final = 640
"""Most programs that the decode kernel splits sequences over: 4 per multiprocessor, 160 multiprocessors (a GPUClass
does not say how many a device has; 160 is above every current one, so the workspace is never too small)."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One GPU type as a GPUClass would describe it; ``memory`` (a quantity) is what CUDA reports, not the box."""

    memory: str
    compute_capability: str
    memory_bandwidth: str
    has_fp8: bool

    def manifest(self, name: str) -> dict[str, object]:
        """The GPUClass object."""
        fp8_weights = ["FP8"] if self.has_fp8 else []
        fp8_kv = ["FP8E4M3"] if self.has_fp8 else []
        return {
            "apiVersion": "kvbudget.dev/v1alpha1",
            "kind": "GPUClass",
            "metadata": {"name": name},
            "spec": {
                "memory": self.memory,
                "resourceName": "nvidia.com/gpu",
                "computeCapability": self.compute_capability,
                "memoryBandwidth": self.memory_bandwidth,
                "weightPrecisions": ["BF16", "FP16", "FP32", *fp8_weights, "INT8", "INT4"],
                "kvPrecisions": ["BF16", "FP16", *fp8_kv, "INT8", "INT4"],
            },
        }


CATALOGUE: Final[dict[str, CatalogueEntry]] = {
    "h100-80gb": CatalogueEntry("85028077568", "9.0", "3350G", True),
    "h200-141gb": CatalogueEntry("143165Mi", "9.0", "4800G", True),
    "a100-80gb": CatalogueEntry("81038Mi", "8.0", "2039G", False),
    "a100-40gb": CatalogueEntry("40338Mi", "8.0", "1555G", False),
    "l40s-48gb": CatalogueEntry("45457Mi", "8.9", "864G", True),
    "l4-24gb": CatalogueEntry("22478Mi", "8.9", "300G", True),
    "a10-24gb": CatalogueEntry("22515Mi", "8.6", "600G", False),
}
"""Classes that the command line knows. Memory is the lowest figure seen in public logs for the type; driver and ECC
move it by up to 0.2 GiB, so a GPUClass with the figure of your own devices is better."""
