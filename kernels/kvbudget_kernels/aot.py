"""Compiles the serving set without a GPU and reads what the compiler did: registers, spills, shared memory, and whether
copies are wide and asynchronous.

    python -m kvbudget_kernels.aot [--write | --check] [WORD…]

prints one row per kernel and target; ``--write`` stores them in ``aot.csv`` beside this file, ``--check`` compares with
it and fails on a difference or a broken gate. A WORD selects rows that contain it. Compiled kernels stay in Triton's
cache (TRITON_CACHE_DIR), which an image can ship. Not run under TRITON_INTERPRET.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvbudget_kernels.device.decode import paged_decode_kernel
from kvbudget_kernels.tune import Tiles, pick

TABLE = Path(__file__).with_name("aot.csv")
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_LIMIT = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "sm_120": 99, "gfx942": 64}
"""KiB of shared memory that one program may take."""
SERVED = (("BF16", 64), ("BF16", 128), ("FP8E4M3", 128), ("INT8", 128), ("INT4", 128), ("BF16", 256))
_CODES = {"BF16": "*bf16", "FP16": "*fp16", "FP8E4M3": "*u8", "INT8": "*i8", "INT4": "*u8"}
_POINTERS = {
    "scales_ptr": "*i32", "k_scale_ptr": "*fp32", "v_scale_ptr": "*fp32", "table_ptr": "*i32", "lens_ptr": "*i32",
    "work_ptr": "*i32", "unit_ptr": "*i32", "sinks_ptr": "*fp32", "slopes_ptr": "*fp32", "lse_ptr": "*fp32",
    "part_o_ptr": "*fp32", "part_lse_ptr": "*fp32",
}  # fmt: skip
_SMALL = ("kv_heads", "q_len", "row_tiles", "key_row", "value_row", "scales_row")
_ALIGNED_STRIDES = ("key_page", "key_head", "key_row", "value_page", "value_head", "value_row", "scales_page",
                    "scales_head", "q_seq", "q_token", "q_head")  # fmt: skip
_PAGE, _GROUP = 64, 4


@dataclass(frozen=True, slots=True)
class Row:
    """What was compiled, and what came out. From ``loop`` on: instructions of the loop over pages; ``copies_other`` are
    asynchronous copies narrower than 16 bytes (scales). AMD has ``registers`` (vector),
    ``stack`` (spilled ones) and ``shared_bytes`` only."""

    kernel: str
    target: str
    precision: str
    head_dim: int
    tile_tokens: int
    warps: int
    stages: int
    registers: int
    stack: int
    shared_bytes: int
    loop: int = 0
    copies_wide: int = 0
    copies_other: int = 0
    matrix: int = 0
    f2f: int = 0
    i2f: int = 0

    def problems(self) -> Iterator[str]:
        """Gates that are broken."""
        if self.stack and (self.precision, self.target) not in _MAY_SPILL:
            yield f"{self.stack} bytes of stack"
        if self.shared_bytes > SHARED_LIMIT[self.target] * 1024:
            yield f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT[self.target]} KiB are there"
        if self.target == "gfx942":
            return
        if not self.copies_wide:
            yield "no asynchronous 16-byte copy"
        if not self.matrix:
            yield "no matrix instruction"
        element = 2 if self.precision == "BF16" else 1
        row = self.head_dim // 2 if self.precision == "INT4" else self.head_dim * element
        if self.shared_bytes < 2 * 2 * self.tile_tokens * row:
            yield "K and V have less than two buffers"
        if self.f2f and self.precision == "FP8E4M3":
            yield f"{self.f2f} slow float conversions"
        if self.i2f > 2 and self.precision in ("INT4", "INT8"):
            yield f"{self.i2f} integer conversions"


_MAY_SPILL = frozenset({("FP8E4M3", "sm_80"), ("INT8", "sm_80")})
"""Decoding by bits keeps more values alive there than there are registers: a few bytes, measured."""


def decode_source(
    precision: str, head_dim: int, target: str, tiles: Tiles, *, page: int = _PAGE, stride: str = "i64"
) -> ASTSource:
    """One decode kernel for groups of 4 heads, strides of multiples of 16. ``stride``: their type, i64, or the i32 that
    Triton itself takes for a number that fits."""
    width = head_dim // 2 if precision == "INT4" else head_dim
    constants: dict[str, Any] = {
        "G": _GROUP, "R": tiles.rows, "D": head_dim, "D_PAD": triton.next_power_of_2(width), "PAGE": page,
        "TILE": tiles.tile_tokens, "MODE": precision, "V_T": precision in ("FP8E4M3", "INT8", "INT4"),
        "FP8_NATIVE": precision == "FP8E4M3" and target in ("sm_90", "sm_100", "sm_120"),
        "MATH": tl.bfloat16 if precision == "BF16" else tl.float16, "WINDOW": 0, "SOFTCAP": 0.0, "ALIBI": False,
        "SINKS": False, "STAGES": tiles.stages,
    }  # fmt: skip
    kernel: Any = paged_decode_kernel
    types = dict.fromkeys(kernel.arg_names, stride) | dict.fromkeys(_SMALL, "i32") | _POINTERS
    types |= {"sm_scale": "fp32", "q_ptr": "*bf16", "out_ptr": "*bf16"}
    types |= dict.fromkeys(("key_ptr", "value_ptr"), _CODES[precision]) | dict.fromkeys(constants, "constexpr")
    aligned = [n for n in kernel.arg_names if n.endswith("_ptr") or n in _ALIGNED_STRIDES]
    attrs = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    return ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=attrs)


def compile_decode(precision: str, head_dim: int, target: str) -> Row:
    """One row of the table, for 64-token pages."""
    tiles = pick(precision, head_dim, _PAGE, _GROUP)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    built = triton.compile(decode_source(precision, head_dim, target, tiles), target=TARGETS[target], options=options)
    counts: dict[str, Any] = _amd(built) if target == "gfx942" else _nvidia(built)
    return Row(
        kernel="paged_decode",
        target=target,
        precision=precision,
        head_dim=head_dim,
        tile_tokens=tiles.tile_tokens,
        warps=tiles.warps,
        stages=tiles.stages,
        shared_bytes=built.metadata.shared,
        **counts,
    )


def _nvidia(built: Any) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "--dump-resource-usage", file.name)
        text = _run("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump names no registers: {usage}")
    loop = _loop(text)
    copies = re.findall(r"LDGSTS\S*", "\n".join(loop))
    wide = sum("128" in copy for copy in copies)
    return {
        "registers": int(found[1]), "stack": int(found[2]), "copies_wide": wide, "copies_other": len(copies) - wide,
        "loop": len(loop), "matrix": sum("HMMA" in each or "WGMMA" in each for each in loop),
        "f2f": sum(re.search(r"F2F[. ]", each) is not None for each in loop),
        "i2f": sum("I2F" in each for each in loop),
    }  # fmt: skip


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
                if any("HMMA" in each or "WGMMA" in each for each in body):
                    loops.append(body)
    return min(loops, key=len, default=[])


def _amd(built: Any) -> dict[str, int]:
    text = built.asm["amdgcn"]
    registers, spilled = (re.search(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count"))
    if registers is None or spilled is None:
        raise RuntimeError("the assembly names no registers")
    return {"registers": int(registers[1]), "stack": int(spilled[1])}


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([_TOOLS / tool, *arguments], check=True, capture_output=True, text=True).stdout


def stored() -> list[Row]:
    """The table as committed."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        kinds = Row.__annotations__
        typed: list[dict[str, Any]] = [
            {k: v if kinds[k] is str else int(v) for k, v in each.items()} for each in csv.DictReader(file)
        ]
    return [Row(**each) for each in typed]


def write(rows: Sequence[Row]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(Row.__annotations__), lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvbudget_kernels.aot", description="See the module.")
    parser.add_argument("--write", action="store_true", help="store the table")
    parser.add_argument("--check", action="store_true", help="compare with the table")
    parser.add_argument("words", nargs="*", help="only rows that contain one of these")
    options = parser.parse_args(arguments)
    names = [(p, d, t) for p, d in SERVED for t in TARGETS]
    if options.words:
        names = [n for n in names if any(word in f"{n[0]}-{n[1]}-{n[2]}" for word in options.words)]
    known, rows, wrong = (stored() if options.check else []), [], 0
    for precision, head_dim, target in names:
        row = compile_decode(precision, head_dim, target)
        rows.append(row)
        found = list(row.problems()) + (["differs from aot.csv"] if options.check and row not in known else [])
        wrong += bool(found)
        sys.stdout.write(f"{'; '.join(found) or 'ok'}  {row}\n")
        sys.stdout.flush()
    if options.write:
        write(rows)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
