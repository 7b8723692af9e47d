"""What the compiler made of a kernel, and what it must have made: registers, spills, shared memory, and whether copies
are wide, asynchronous and buffered. Read from the machine code by the tools that come with Triton."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import triton

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED_KIB = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "sm_120": 99, "gfx942": 64}
"""Shared memory that the programs of one multiprocessor have together; a program may take all of it."""
PROGRAMS = {"sm_80": 2, "sm_90": 2, "sm_100": 2, "sm_120": 1, "gfx942": 1}
"""Programs of a decode that must fit on a multiprocessor: two keep enough bytes in flight (kernels with few rows).
Where shared memory is small, the buffers of one program do."""
ATTEND = ("paged_decode_kernel", "paged_extend_kernel", "prefix_kernel")
MOST_REGISTERS = 128
_ISSUE = "eight warps would fit 128 registers and issue a fifth to two fifths more instructions for a tile"
_HALVES = "two halves of K and V, and scales and zeros of both, at a time"
_ADDRESSES = "a tile spans pages of 16: an address for each token"
_ONCE = "runs once a step, in a handful of programs"
_SUMS = "the sums of 64 rows alone take a quarter to a half of the registers"
EXCEPTIONS: tuple[tuple[str, str, str, str, str, int, str], ...] = (
    ("*", "paged_decode_kernel", "FP8E4M3", "*", "16", 168, _ISSUE),
    ("*", "paged_decode_kernel", "INT8", "*", "16", 168, _ISSUE),
    ("*", "paged_decode_kernel", "INT4", "*", "16", 168, _HALVES),
    ("*", "paged_decode_kernel", "BF16", "16", "16", 168, _ADDRESSES),
    ("*", "plan_kernel", "*", "*", "256", 256, _ONCE),
    ("*", "*", "*", "*", "64", 168, _SUMS),
)
"""Target, kernel, precision, page and rows (patterns), the most registers, and why. The first that fits counts."""
SPILLS = {
    "mla_decode_kernel": "512 channels a row; fewer rows would read the latents more often: not timed",
    "paged_decode_kernel fp32 out": "a fp32 result needs a few more at the end; the suffix of a cascade only",
}
"""Kernels that may spill, and why."""
_CODE_BYTES = {"BF16": 2, "FP16": 2, "FP32": 4, "FP8E4M3": 1, "INT8": 1, "INT4": 1}
_SHAPE = {"head_dim": ("D", "RANK"), "page": ("PAGE",), "rows": ("R", "ROWS", "WORDS", "B_PAD"), "tile": ("TILE",)}
_IO = ("q_ptr", "k_ptr", "out_ptr")


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel, a target and a Triton, and what came out. ``io``: type of queries, of new keys, or of the output.
    ``limit``: of registers, as asked for; 0: none. From ``loop`` on: instructions of the loop over pages;
    ``copies_other`` are asynchronous copies narrower than 16 bytes (scales). AMD has ``registers`` (vector), ``stack``
    (spilled ones) and ``shared_bytes`` only. ``note``: why there is no kernel."""

    triton: str
    target: str
    kernel: str
    precision: str
    io: str
    head_dim: int
    page: int
    rows: int
    tile: int
    detail: str
    warps: int
    stages: int
    limit: int
    registers: int = 0
    stack: int = 0
    shared_bytes: int = 0
    loop: int = 0
    copies_wide: int = 0
    copies_other: int = 0
    matrix: int = 0
    f2f: int = 0
    i2f: int = 0
    note: str = ""

    @property
    def name(self) -> str:
        """The kernel without target and compiler."""
        shape = f"{self.precision} {self.io} d{self.head_dim} p{self.page} r{self.rows} t{self.tile} {self.detail}"
        return f"{self.kernel} {shape}".rstrip()

    def problems(self) -> Iterator[str]:
        """Gates that are broken."""
        if self.note:
            return
        if self.stack and f"{self.kernel} {self.detail}".rstrip() not in SPILLS:
            yield f"{self.stack} bytes of stack"
        if self.shared_bytes > SHARED_KIB[self.target] * 1024:
            yield f"{self.shared_bytes} bytes of shared memory, {SHARED_KIB[self.target]} KiB are there"
        if self.target == "gfx942":
            return
        if self.registers > (most := registers_allowed(self)[0]):
            yield f"{self.registers} registers, {most} are allowed"
        if self.kernel in ATTEND:
            yield from self._loop_problems()

    def _loop_problems(self) -> Iterator[str]:
        if not self.matrix:
            yield "no matrix instruction"
        if not self.copies_wide:
            yield "no asynchronous 16-byte copy"
        if self.copies_other and self.precision not in ("INT8", "INT4"):
            yield f"{self.copies_other} narrow copies, and there are no scales"
        row = (self.head_dim // 2 if self.precision == "INT4" else self.head_dim) * _CODE_BYTES[self.precision]
        if self.shared_bytes < 2 * 2 * self.tile * row:
            yield "K and V have less than two buffers"
        programs = PROGRAMS[self.target] if self.rows <= 16 else 1
        if self.shared_bytes * programs > SHARED_KIB[self.target] * 1024:
            yield f"{programs} programs need {self.shared_bytes * programs} bytes of shared memory"
        if self.f2f and self.precision == "FP8E4M3" and self.target != "sm_80":
            yield f"{self.f2f} slow float conversions"
        if self.i2f > 2 and self.precision in ("INT4", "INT8"):
            yield f"{self.i2f} integer conversions"

    def agrees(self, other: "Row") -> bool:
        """Whether a new compilation gives this row: the loop may be a tenth longer or shorter, nothing else differs."""
        same = {**_fields(self), "loop": 0} == {**_fields(other), "loop": 0}
        return same and abs(self.loop - other.loop) <= 0.1 * max(self.loop, other.loop)


def _fields(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Row.__annotations__}


def registers_allowed(row: Row) -> tuple[int, str]:
    """Most registers of a thread, and why more than MOST_REGISTERS ("": not more)."""
    given = (row.target, f"{row.kernel} {row.detail}".rstrip(), row.precision, str(row.page), str(row.rows))
    for *patterns, most, why in EXCEPTIONS:
        if all(fnmatchcase(value, str(pattern)) for value, pattern in zip(given, patterns, strict=True)):
            return int(most), str(why)
    return MOST_REGISTERS, ""


def identity(src: Any, metadata: Mapping[str, Any], target: str) -> dict[str, Any]:
    """The fields of a row that say which kernel it is, from what Triton compiled."""
    names = src.fn.arg_names
    constants = {names[path[0]]: value for path, value in src.constants.items()}
    shape = {
        field: next((int(constants[n]) for n in given if n in constants), 0) for field, given in _SHAPE.items()
    }  # fmt: skip
    io = next((src.signature[name].lstrip("*") for name in _IO if name in src.signature), "")
    out = src.signature.get("out_ptr", "").lstrip("*")
    return {
        "triton": triton.__version__,
        "target": target,
        "kernel": src.fn.__name__,
        "precision": str(constants.get("MODE", "")),
        "io": io,
        **shape,
        "detail": "rope" if constants.get("ROPE") is True else "" if out in ("", io) else f"{out} out",
        "warps": int(metadata["num_warps"]),
        "stages": int(metadata["num_stages"]),
        "limit": int(metadata.get("maxnreg") or 0),
    }


def measured(files: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a row that say what came out, from the files of a compiled kernel."""
    by_kind = {Path(path).suffix: Path(path) for path in files.values()}
    return _nvidia(by_kind[".cubin"]) if ".cubin" in by_kind else _amd(by_kind[".amdgcn"].read_text())


def _nvidia(cubin: Path) -> dict[str, int]:
    usage = _run("cuobjdump", "--dump-resource-usage", str(cubin))
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump names no registers: {usage}")
    loop = _loop(_run("nvdisasm", "-c", str(cubin)))
    copies = [each for each in loop if "LDGSTS" in each]
    wide = sum(".128" in copy for copy in copies)
    return {
        "registers": int(found[1]), "stack": int(found[2]), "copies_wide": wide, "copies_other": len(copies) - wide,
        "loop": len(loop), "matrix": sum(_is_matrix(each) for each in loop),
        "f2f": sum(re.search(r"F2F[. ]", each) is not None for each in loop),
        "i2f": sum("I2F" in each for each in loop),
    }  # fmt: skip


def _is_matrix(instruction: str) -> bool:
    return re.search(r"\b(HMMA|HGMMA|WGMMA|UTC\w*MMA)", instruction) is not None


def _loop(text: str) -> list[str]:
    """Instructions of the loop over pages: the shortest backward branch around matrix instructions."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    loops: list[list[str]] = []
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif re.search(r"/\*[0-9a-f]{4,}\*/\s+\S", line):
            branch = re.search(r"BRA.*`\((\.L_x_\d+)\)", line)
            instructions.append(line)
            if branch and branch[1] in labels:
                body = instructions[labels[branch[1]] :]
                if any(_is_matrix(each) for each in body):
                    loops.append(body)
    return min(loops, key=len, default=[])


def _amd(text: str) -> dict[str, int]:
    registers, spilled = (re.search(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count"))
    if registers is None or spilled is None:
        raise RuntimeError("the assembly names no registers")
    return {"registers": int(registers[1]), "stack": int(spilled[1])}


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([TOOLS / tool, *arguments], check=True, capture_output=True, text=True).stdout
