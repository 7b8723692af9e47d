"""The device that a worker computes on, and the memory and processors that its container really has."""

import os
from pathlib import Path

import torch

from kvbudget import contract
from kvbudget.errors import InputError

_CGROUP = Path("/sys/fs/cgroup")


def pick_device(resource_name: str, wanted: str | None) -> torch.device:
    """``wanted`` is the value of KVBUDGET_DEVICE, None where unset; ``resource_name`` what the pod holds.

    Raises InputError when a device was promised or asked for and is not there."""
    if wanted not in (None, "", "cpu", "cuda"):
        raise InputError(contract.ENV_DEVICE, f"{wanted!r} is no device: use cuda or cpu, or leave it unset")
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if wanted == "cuda":
        raise InputError(contract.ENV_DEVICE, "is cuda, but torch finds no CUDA device: check the driver, or set cpu")
    if resource_name != "cpu":
        raise InputError(
            contract.ENV_DEVICE,
            f"the pod holds {resource_name} but no device is found: check the driver and the container runtime of this "
            f"node, or set {contract.ENV_DEVICE}=cpu to serve on the CPU",
        )
    return torch.device("cpu")


def free_bytes(device: torch.device, cgroup: Path = _CGROUP) -> int:
    """Memory that is still free: of the device, or of the container (of the host, where nothing limits it)."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = _meminfo_available()
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return available
    # The page cache of mapped weights counts as used, but the kernel gives it back on demand.
    return max(0, min(available, limit - used + _inactive_file_bytes(cgroup)))


def limit_threads(cgroup: Path = _CGROUP) -> None:
    """Let torch use no more threads than the container has processors: it counts the host's, and threads that wait for
    each other on too few processors are several times slower."""
    quota = _cpu_quota(cgroup)
    if quota is not None and quota < torch.get_num_threads():
        torch.set_num_threads(quota)


def _cpu_quota(cgroup: Path) -> int | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _inactive_file_bytes(cgroup: Path) -> int:
    try:
        lines = (cgroup / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def _meminfo_available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
