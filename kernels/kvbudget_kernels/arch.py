"""Which GPU a launch is for: the one that is here, or one that kernels are compiled for without it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
import triton
from triton.backends.compiler import GPUTarget

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
"""What the kernels are compiled for ahead of time."""
INTERPRETER = "cpu"
META = torch.device("meta")
"""A launch over tensors of this device compiles and starts nothing."""
_chosen: ContextVar[str | None] = ContextVar("chosen", default=None)


def arch_here() -> str:
    """``sm_90`` and the like, ``gfx942`` and the like; ``cpu`` without a GPU, where kernels are interpreted."""
    return _chosen.get() or _present()


@cache
def _present() -> str:
    if not torch.cuda.is_available():
        return INTERPRETER
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(0).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def is_nvidia(arch: str) -> bool:
    return arch.startswith("sm_")


def converts_e4m3(arch: str) -> bool:
    """Whether there is an instruction for e4m3 (NVIDIA from 8.9 on; AMD's gfx942 has one for another format)."""
    return is_nvidia(arch) and int(arch.removeprefix("sm_")) >= 89


class _Absent:
    """Triton's driver of a GPU that is not here: it knows the target, and starts nothing."""

    def __init__(self, target: GPUTarget, index: int) -> None:
        self._target = target
        self._index = index  # Triton keeps compiled kernels by device: each target is one of its own

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._index

    def get_current_stream(self, device: int) -> int:
        return device


@contextmanager
def compiling_for(arch: str) -> Iterator[None]:
    """Launches over tensors of ``META`` compile for ``arch``, a name in TARGETS."""
    token = _chosen.set(arch)
    triton.runtime.driver.set_active(_Absent(TARGETS[arch], list(TARGETS).index(arch)))
    try:
        yield
    finally:
        _chosen.reset(token)
