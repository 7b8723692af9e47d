"""GPU types as data: memory as the driver reports it, bandwidth, compute capability, precisions, MIG profiles.

Memory is what ``torch.cuda.mem_get_info`` (or HIP) calls the total, as ``low_bytes`` … ``high_bytes`` over drivers
and ECC settings. ``low_bytes`` is what a plan uses. A row that is not ``measured`` is derived from the figures that the
same maker's tools print, with a band that says how sure that is.

Sources, by the letter in each row: L public logs and out-of-memory messages ("total capacity of … GiB"); S nvidia-smi's
total, less the 0.4 to 0.9% that the driver keeps; R ROCm devices report all but 16 MiB of their VRAM (MI300X: 191.98
GiB). Bandwidth: the makers' data sheets, except B200 (7680 bit × 3.996 GHz × 2, as the driver reports it).
"""

from dataclasses import dataclass
from typing import Final, Literal

_GIB: Final = 2**30
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One GPU type. ``aliases`` are other names by which people and node labels call it."""

    low_bytes: int
    high_bytes: int
    architecture: str
    """CUDA compute capability (``9.0``), or AMD's (``gfx942``)."""
    bandwidth_gb: int
    """GB per second."""
    source: Literal["L", "S", "R"]
    aliases: tuple[str, ...] = ()
    mig: tuple[tuple[str, int], ...] = ()
    """Profiles and their memory in bytes, as ``nvidia-smi mig -lgip`` lists them."""
    shared_memory: bool = False
    """The memory is the host's too: what is free depends on everything that runs there."""

    @property
    def measured(self) -> bool:
        return self.source == "L"


def _bytes(gib: float) -> int:
    """Down to a whole MiB; the figures that are known to the byte are written as fractions."""
    exact = int(gib * _GIB)
    return exact if gib == _H100_GIB else exact // _MIB * _MIB


_H100_GIB: Final = 85028077568 / _GIB


def _mig(**profiles: float) -> tuple[tuple[str, int], ...]:
    """``_1g_10gb=9.5`` is profile 1g.10gb of 9.5 GiB."""
    return tuple((name[1:].replace("_", "."), _bytes(gib)) for name, gib in profiles.items())


def _row(
    low: float, high: float, architecture: str, bandwidth_gb: int, source: Literal["L", "S", "R"], *aliases: str,
    mig: tuple[tuple[str, int], ...] = (), shared_memory: bool = False,
) -> Row:  # fmt: skip
    return Row(
        low_bytes=_bytes(low),
        high_bytes=_bytes(high),
        architecture=architecture,
        bandwidth_gb=bandwidth_gb,
        source=source,
        aliases=aliases,
        mig=mig,
        shared_memory=shared_memory,
    )


_MIG_A100_40: Final = _mig(_1g_5gb=4.75, _1g_10gb=9.75, _2g_10gb=9.75, _3g_20gb=19.62, _4g_20gb=19.62, _7g_40gb=39.25)
_MIG_A100_80: Final = _mig(_1g_10gb=9.5, _1g_20gb=19.5, _2g_20gb=19.5, _3g_40gb=39.25, _4g_40gb=39.25, _7g_80gb=78.75)
_MIG_H100_80: Final = _mig(_1g_10gb=9.62, _1g_20gb=19.5, _2g_20gb=19.5, _3g_40gb=39.38, _4g_40gb=39.38, _7g_80gb=79.1)
_MIG_H200: Final = _mig(_1g_18gb=16.0, _1g_35gb=32.5, _2g_35gb=32.5, _3g_71gb=69.5, _4g_71gb=69.5, _7g_141gb=139.5)
_MIG_B200: Final = _mig(_1g_23gb=20.5, _1g_45gb=44.25, _2g_45gb=44.25, _3g_90gb=88.5, _4g_90gb=88.5, _7g_180gb=178.0)
_MIG_GB200: Final = _mig(_1g_24gb=20.0, _1g_47gb=45.5, _2g_47gb=45.5, _3g_95gb=91.0, _4g_95gb=91.0, _7g_189gb=184.0)

ROWS: Final[dict[str, Row]] = {
    "v100-16gb": _row(15.77, 15.78, "7.0", 900, "L", "Tesla-V100-SXM2-16GB", "v100"),
    "v100-32gb": _row(31.73, 31.75, "7.0", 900, "L", "Tesla-V100-SXM2-32GB"),
    "t4-16gb": _row(14.56, 14.75, "7.5", 320, "L", "Tesla-T4", "t4"),
    "a100-40gb": _row(
        40338 / 1024, 39.59, "8.0", 1555, "L", "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB", mig=_MIG_A100_40
    ),
    "a100-80gb": _row(81038 / 1024, 79.35, "8.0", 2039, "L", "NVIDIA-A100-SXM4-80GB", "a100", "a800", mig=_MIG_A100_80),
    "a10-24gb": _row(22515 / 1024, 22.2, "8.6", 600, "L", "NVIDIA-A10", "NVIDIA-A10G", "a10", "a10g"),
    "a40-48gb": _row(44.34, 44.56, "8.6", 696, "L", "NVIDIA-A40", "a40"),
    "rtx-a5000-24gb": _row(23.57, 23.69, "8.6", 768, "L", "NVIDIA-RTX-A5000", "a5000"),
    "rtx-a6000-48gb": _row(47.38, 47.54, "8.6", 768, "L", "NVIDIA-RTX-A6000", "a6000"),
    "rtx-3090-24gb": _row(23.56, 23.7, "8.6", 936, "L", "NVIDIA-GeForce-RTX-3090", "3090", "rtx-3090"),
    "rtx-4090-24gb": _row(23.51, 23.65, "8.9", 1008, "L", "NVIDIA-GeForce-RTX-4090", "4090", "rtx-4090"),
    "l4-24gb": _row(22478 / 1024, 22.17, "8.9", 300, "L", "NVIDIA-L4", "l4"),
    "l20-48gb": _row(44.39, 44.53, "8.9", 864, "S", "NVIDIA-L20", "l20"),
    "l40s-48gb": _row(45457 / 1024, 44.53, "8.9", 864, "L", "NVIDIA-L40S", "l40s"),
    "h20-96gb": _row(95.0, 95.22, "9.0", 4000, "L", "NVIDIA-H20", "h20"),
    "h100-80gb": _row(
        _H100_GIB, _H100_GIB, "9.0", 3350, "L", "NVIDIA-H100-80GB-HBM3", "h100", "h100-sxm", mig=_MIG_H100_80
    ),
    "h100-nvl-94gb": _row(93.1, 93.6, "9.0", 3900, "S", "NVIDIA-H100-NVL", "h100-nvl"),
    "h200-141gb": _row(143165 / 1024, 143165 / 1024, "9.0", 4800, "L", "NVIDIA-H200", "h200", mig=_MIG_H200),
    "gh200-96gb": _row(94.5, 95.0, "9.0", 4000, "L", "NVIDIA-GH200-480GB", "gh200"),
    "gh200-144gb": _row(139.5, 141.0, "9.0", 4900, "S", "NVIDIA-GH200-144GB-HBM3e"),
    "b200-180gb": _row(178.35, 178.36, "10.0", 7672, "L", "NVIDIA-B200", "b200", mig=_MIG_B200),
    "gb200-186gb": _row(184.31, 184.31, "10.0", 8000, "L", "NVIDIA-GB200", "gb200", mig=_MIG_GB200),
    "b300-288gb": _row(267.69, 267.69, "10.3", 8000, "L", "NVIDIA-B300-SXM6-AC", "b300"),
    "gb300-288gb": _row(276.5, 276.5, "10.3", 8000, "L", "NVIDIA-GB300", "gb300"),
    "gb10-128gb": _row(119.6, 121.7, "12.1", 273, "L", "NVIDIA-GB10", "gb10", "dgx-spark", shared_memory=True),
    "rtx-5070-ti-16gb": _row(15.44, 15.48, "12.0", 896, "S", "NVIDIA-GeForce-RTX-5070-Ti", "5070-ti"),
    "rtx-5080-16gb": _row(15.46, 15.48, "12.0", 960, "S", "NVIDIA-GeForce-RTX-5080", "5080", "rtx-5080"),
    "rtx-5090-32gb": _row(31.33, 31.4, "12.0", 1792, "L", "NVIDIA-GeForce-RTX-5090", "5090", "rtx-5090"),
    "rtx-pro-6000-96gb": _row(
        94.96, 94.98, "12.0", 1792, "L", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "rtx-pro-6000", "pro-6000"
    ),
    "mi210-64gb": _row(63.98, 64.0, "gfx90a", 1638, "R", "AMD-Instinct-MI210", "mi210"),
    "mi250x-64gb": _row(63.98, 64.0, "gfx90a", 1638, "R", "AMD-Instinct-MI250X", "mi250", "mi250x"),
    "mi300a-128gb": _row(127.0, 128.0, "gfx942", 5300, "R", "AMD-Instinct-MI300A", "mi300a", shared_memory=True),
    "mi300x-192gb": _row(191.45, 191.98, "gfx942", 5300, "L", "AMD-Instinct-MI300X", "mi300x"),
    "mi308x-192gb": _row(191.45, 191.98, "gfx942", 5300, "R", "AMD-Instinct-MI308X", "mi308x"),
    "mi325x-256gb": _row(255.4, 255.98, "gfx942", 6000, "R", "AMD-Instinct-MI325X", "mi325x"),
    "mi350x-288gb": _row(287.4, 287.98, "gfx950", 8000, "R", "AMD-Instinct-MI350X", "mi350x"),
    "mi355x-288gb": _row(287.4, 287.98, "gfx950", 8000, "R", "AMD-Instinct-MI355X", "mi355x"),
}
"""By the name that a GPUClass would have. MI250X is one of its two dies, which is what a pod gets. Of the MIG profiles
those of B200 and GB200 above 2g, and those of H200, are shares of the whole and not listings."""
