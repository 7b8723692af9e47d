"""What the budget must know of a device: which kind it is, what the runtime itself takes, and a small catalogue.

The catalogue is for the command line alone, so that a file with one LLMService can be planned without a cluster. In a
cluster only GPUClass objects count, and one in the file wins over the catalogue.
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, Literal

from kvbudget.errors import Problem
from kvbudget.gpucatalogue import ROWS, Row

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One GPU type, or one MIG profile of it, as a GPUClass would describe it. ``memory_bytes`` is what the driver
    reports, not the box; over drivers and ECC settings it goes up to ``memory_high_bytes``."""

    memory_bytes: int
    memory_high_bytes: int
    measured: bool
    """Whether the memory is from logs of real devices; else it is derived."""
    architecture: str
    """CUDA compute capability (``9.0``), or AMD's architecture (``gfx942``)."""
    bandwidth_bytes: int
    """Per second."""
    resource_name: str
    shared_memory: bool

    @property
    def memory(self) -> str:
        """As a Kubernetes quantity."""
        whole, rest = divmod(self.memory_bytes, _MIB)
        return str(self.memory_bytes) if rest else f"{whole}Mi"

    @property
    def compute_capability(self) -> str | None:
        """None for other makers' devices."""
        return None if self.architecture.startswith("gfx") else self.architecture

    @property
    def weight_precisions(self) -> tuple[str, ...]:
        """Best first. BF16 needs compute capability 8.0, FP8 8.9 (or gfx942); INT8 and INT4 weights are widened."""
        plain = ("BF16", "FP16", "FP32") if self._has_bf16 else ("FP16", "FP32")
        return (*plain, *(("FP8",) if self._has_fp8 else ()), "INT8", "INT4")

    @property
    def kv_precisions(self) -> tuple[str, ...]:
        """Best first. NVFP4 needs the FP4 instructions of compute capability 10."""
        plain = ("BF16", "FP16") if self._has_bf16 else ("FP16",)
        fp4 = ("NVFP4",) if self._generation >= _BLACKWELL else ()
        return (*plain, *(("FP8E4M3",) if self._has_fp8 else ()), "INT8", "INT4", *fp4)

    @property
    def _generation(self) -> float:
        return 0.0 if self.architecture.startswith("gfx") else float(self.architecture)

    @property
    def _has_bf16(self) -> bool:
        return self.architecture.startswith("gfx") or self._generation >= _AMPERE

    @property
    def _has_fp8(self) -> bool:
        return self.architecture in _AMD_FP8 or self._generation >= _ADA

    def manifest(self, name: str) -> dict[str, object]:
        """The GPUClass object."""
        capability = self.compute_capability
        return {
            "apiVersion": "kvbudget.dev/v1alpha1",
            "kind": "GPUClass",
            "metadata": {"name": name},
            "spec": {
                "memory": self.memory,
                "resourceName": self.resource_name,
                **({} if capability is None else {"computeCapability": capability}),
                "memoryBandwidth": f"{self.bandwidth_bytes // 10**9}G",
                "weightPrecisions": list(self.weight_precisions),
                "kvPrecisions": list(self.kv_precisions),
            },
        }


_AMPERE: Final = 8.0
_ADA: Final = 8.9
_BLACKWELL: Final = 10.0
_AMD_FP8: Final = ("gfx942", "gfx950")


def _entry(row: Row) -> CatalogueEntry:
    return CatalogueEntry(
        memory_bytes=row.low_bytes,
        memory_high_bytes=row.high_bytes,
        measured=row.measured,
        architecture=row.architecture,
        bandwidth_bytes=row.bandwidth_gb * 10**9,
        resource_name="amd.com/gpu" if row.architecture.startswith("gfx") else "nvidia.com/gpu",
        shared_memory=row.shared_memory,
    )


CATALOGUE: Final[dict[str, CatalogueEntry]] = {name: _entry(row) for name, row in ROWS.items()}
"""Classes that the command line knows. Memory is the lowest figure seen for the type; driver and ECC move it by up to
0.2 GiB, so a GPUClass with the figure of your own devices is better."""


def lookup(name: str) -> CatalogueEntry | Problem:
    """The type of this name: a name of the catalogue, another name of the device (``H100``, or the node label
    ``NVIDIA-H100-80GB-HBM3``), or one with a MIG profile (``h100-80gb-mig-3g.40gb``). Else a Problem that names the
    nearest ones.

    >>> found = lookup("NVIDIA-H100-80GB-HBM3")
    >>> found == CATALOGUE["h100-80gb"]
    True
    >>> print(lookup("h100-80g"))
    spec.gpu.class: there is no GPU type h100-80g; did you mean h100-80gb, a100-80gb or a100-40gb?
    """
    plain, _, profile = _plain(name).partition("-mig-")
    found = _NAMES.get(plain)
    if found is None:
        return Problem(
            "spec.gpu.class", f"there is no GPU type {name}; {did_you_mean(name) or _LISTED}", "ClassUnknown"
        )
    if not profile:
        return CATALOGUE[found]
    profiles = dict(ROWS[found].mig)
    if profile not in profiles:
        known = f"; it has {', '.join(profiles)}" if profiles else "; it has none"
        return Problem("spec.gpu.class", f"{found} has no MIG profile {profile}{known}", "ClassUnknown")
    whole = CATALOGUE[found]
    size = profiles[profile]
    share = size / whole.memory_bytes
    return replace(
        whole,
        memory_bytes=size,
        memory_high_bytes=size,
        measured=False,
        bandwidth_bytes=int(whole.bandwidth_bytes * min(1.0, share)),
        resource_name=f"nvidia.com/mig-{profile}",
    )


_LISTED: Final = "`kvbudget gpus` lists them"


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "-").replace("_", "-")


_NAMES: Final[dict[str, str]] = {_plain(alias): name for name, row in ROWS.items() for alias in (name, *row.aliases)}


def nearest(name: str) -> tuple[str, ...]:
    """Names of the catalogue that may be meant: the one of which ``name`` is another name, else up to three alike.

    >>> nearest("L4"), nearest("h100-80g")[0], nearest("zzzzzz")
    (('l4-24gb',), 'h100-80gb', ())
    """
    plain = _plain(name).partition("-mig-")[0]
    if plain in _NAMES:
        return (_NAMES[plain],)
    return tuple(dict.fromkeys(_NAMES[n] for n in get_close_matches(plain, list(_NAMES), n=5, cutoff=0.5)))[:3]


def did_you_mean(name: str) -> str:
    """The question, or an empty text where nothing is near or ``name`` is right itself.

    >>> did_you_mean("l4"), did_you_mean("l4-24gb")
    ('did you mean l4-24gb?', '')
    """
    near = nearest(name)
    if not near or name in near:
        return ""
    return f"did you mean {', '.join(near[:-1])} or {near[-1]}?" if near[1:] else f"did you mean {near[0]}?"
