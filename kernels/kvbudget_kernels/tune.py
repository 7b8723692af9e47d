"""Which tiles a launch takes, and why: the first line of ``tiles.csv`` that fits.

    python -m kvbudget_kernels.tune --explain PRECISION HEAD_DIM PAGE_TOKENS ROWS [--arch sm_90]
    python -m kvbudget_kernels.tune --refresh ROWS.CSV [--table TILES.CSV]

ROWS: query rows of one KV head, q_len · group. A line's cell is ``*``, some values ``a|b`` (with ``*`` in them, as in
``sm_*``), or ``<=n``. The lines come from compiling (``aot.csv``); none was timed on a GPU yet. ``--refresh`` puts the
fastest tiles of a run of ``bench/gpu/run.sh tiles`` on top, where they beat the present ones by more than noise.

>>> pick("BF16", 128, 64, 4)
Tiles(tile_tokens=64, rows=16, warps=4, stages=3, registers=128)
>>> pick("INT8", 256, 16, 40, arch="cpu").tile_tokens
16
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kvbudget_kernels.arch import arch_here
from kvbudget_kernels.errors import KernelInputError

TABLE = Path(__file__).with_name("tiles.csv")
TOKEN_CONTIGUOUS = ("FP8E4M3", "INT8", "INT4")
MOST_ROWS = 64
_NUMBERS = ("tile_tokens", "rows", "warps", "stages", "registers")
NOISE = 1.03
"""Tiles replace the present ones where they are faster by this factor."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """``tile_tokens``: keys per loop step. ``rows``: padded query rows per tile. ``warps`` per program. ``stages`` of
    the loop's pipeline: with the page id in a loop variable, n stages give n − 1 buffers of K and V. ``registers``:
    most that a thread may take (NVIDIA only); None: what the compiler likes."""

    tile_tokens: int
    rows: int
    warps: int
    stages: int
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: patterns of a launch, and its tiles. ``registers`` 0: no limit."""

    arch: str
    precision: str
    head_dim: str
    page_tokens: str
    rows: str
    tile_tokens: int
    warps: int
    stages: int
    registers: int
    why: str

    def fits(self, launch: "Launch") -> bool:
        return all(_matches(getattr(self, name), value) for name, value in asdict(launch).items())


@dataclass(frozen=True, slots=True)
class Launch:
    """What a line is looked up by. ``rows``: as padded."""

    arch: str
    precision: str
    head_dim: int
    page_tokens: int
    rows: int


def _matches(pattern: str, value: str | int) -> bool:
    if pattern.startswith("<="):
        return int(value) <= int(pattern[2:])
    return any(fnmatchcase(str(value), each) for each in pattern.split("|"))


def row_tile(rows: int, most: int = MOST_ROWS) -> int:
    """Rows of one tile for ``rows`` query rows: a power of two from 16 (the matrix unit's smallest) to ``most``."""
    return max(16, min(most, 1 << (rows - 1).bit_length()))


def pick(precision: str, head_dim: int, page_tokens: int, rows: int, *, arch: str | None = None) -> Tiles:
    """Tiles for one launch on ``arch`` (the present one). 8- and 4-bit pages hold V token-contiguous, so a tile never
    spans two of them. ``precision``: of the pages, or MLA for latents."""
    return _pick(Launch(arch or arch_here(), precision, head_dim, page_tokens, row_tile(rows)))


@cache
def _pick(launch: Launch) -> Tiles:
    line = _line(launch)
    tile, page_tokens = line.tile_tokens, launch.page_tokens
    if launch.precision in TOKEN_CONTIGUOUS:
        tile = min(tile, page_tokens)
    return Tiles(tile, launch.rows, line.warps, line.stages, line.registers or None)


def _line(launch: Launch) -> Line:
    return next(line for line in lines() if line.fits(launch))


@cache
def lines(table: Path = TABLE) -> tuple[Line, ...]:
    """The table, in its order."""
    with table.open(encoding="utf-8", newline="") as file:
        return tuple(_typed(row) for row in csv.DictReader(file))


def _typed(row: Mapping[str, str]) -> Line:
    values: dict[str, Any] = dict(row)
    return Line(**values | {name: int(row[name]) for name in ("tile_tokens", "warps", "stages", "registers")})


def interpreted(device: torch.device) -> bool:
    """Whether launches on ``device`` run in Triton's interpreter."""
    return device.type == "cpu"


def explain(precision: str, head_dim: int, page_tokens: int, rows: int, arch: str) -> str:
    """The choice of :func:`pick`, its line, and the line's reason."""
    launch = Launch(arch, precision, head_dim, page_tokens, row_tile(rows))
    tiles, line = _pick(launch), _line(launch)
    shorter = f", because a page has {page_tokens}" if tiles.tile_tokens < line.tile_tokens else ""
    limit = "as the compiler likes" if tiles.registers is None else f"at most {tiles.registers} a thread"
    where = f"{line.arch} {line.precision} head_dim {line.head_dim} page {line.page_tokens} rows {line.rows}"
    return "\n".join(
        (
            f"tile_tokens {tiles.tile_tokens}{shorter}",
            f"rows {tiles.rows}: {rows} query rows, to a power of two from 16 to {MOST_ROWS}",
            f"warps {tiles.warps}, stages {tiles.stages}, registers {limit}",
            f"by line {lines().index(line) + 2} of {TABLE.name}, {where}: {line.why}",
        )
    )


def refreshed(table: Sequence[Line], rows: Iterable[Mapping[str, str]]) -> list[Line]:
    """The table with the fastest measured tiles of each launch on top. ``rows``: of part ``tiles`` of the GPU run, with
    the fields of Launch and Tiles, ``device``, ``status`` and ``median_us``; others are passed over. Raises
    KernelInputError for a row that lacks one."""
    measured: dict[Launch, list[tuple[float, Tiles, str]]] = {}
    for number, row in enumerate(rows, start=2):
        if row.get("part") != "tiles" or row.get("status") != "ok":
            continue
        try:
            numbers = {name: int(row[name] or 0) for name in (*_NUMBERS, "head_dim", "page_tokens")}
            launch = Launch(row["arch"], row["precision"], numbers["head_dim"], numbers["page_tokens"], numbers["rows"])
            tiles = Tiles(
                numbers["tile_tokens"],
                numbers["rows"],
                numbers["warps"],
                numbers["stages"],
                numbers["registers"] or None,
            )
            entry = (float(row["median_us"]), tiles, row["device"])
        except (KeyError, TypeError, ValueError) as wrong:
            reason = f"{type(wrong).__name__}: {wrong}"
            raise KernelInputError(f"row {number}", reason, "give rows.csv of bench/gpu/run.sh tiles") from wrong
        measured.setdefault(launch, []).append(entry)
    top: list[Line] = []
    for launch, entries in measured.items():
        median_us, tiles, device = min(entries, key=lambda entry: entry[0])
        present = next(line for line in table if line.fits(launch))
        now = [us for us, each, _ in entries if _same(each, present)]
        if now and min(now) <= NOISE * median_us:
            continue
        top.append(
            Line(
                launch.arch,
                launch.precision,
                str(launch.head_dim),
                str(launch.page_tokens),
                str(launch.rows),
                tiles.tile_tokens,
                tiles.warps,
                tiles.stages,
                tiles.registers or 0,
                f"fastest of {len(entries)} on {device}",
            )
        )
    keys = {_key(line) for line in top}
    return [*top, *(line for line in table if _key(line) not in keys)]


def _same(tiles: Tiles, line: Line) -> bool:
    return (tiles.tile_tokens, tiles.warps, tiles.stages, tiles.registers or 0) == (
        line.tile_tokens, line.warps, line.stages, line.registers,
    )  # fmt: skip


def _key(line: Line) -> tuple[str, ...]:
    return (line.arch, line.precision, line.head_dim, line.page_tokens, line.rows)


def store(table: Iterable[Line], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Line)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(line) for line in table)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m kvbudget_kernels.tune", description="Say or change which tiles.")
    parser.add_argument("--explain", nargs=4, metavar=("PRECISION", "HEAD_DIM", "PAGE_TOKENS", "ROWS"))
    parser.add_argument("--arch", help="sm_90 and the like (default: the present one)")
    parser.add_argument("--refresh", type=Path, metavar="ROWS.CSV", help="rows of a GPU run")
    parser.add_argument("--table", type=Path, default=TABLE, metavar="TILES.CSV", help="the table to change")
    options = parser.parse_args(arguments)
    if options.explain:
        precision, *numbers = options.explain
        head_dim, page_tokens, rows = map(int, numbers)
        sys.stdout.write(explain(precision, head_dim, page_tokens, rows, options.arch or arch_here()) + "\n")
    elif options.refresh:
        before = lines(options.table)
        with options.refresh.open(encoding="utf-8", newline="") as file:
            after = refreshed(before, csv.DictReader(file))
        store(after, options.table)
        new = [line for line in after if line not in before]
        sys.stdout.write("".join(f"new: {line}\n" for line in new) or "nothing is faster than the present tiles\n")
    else:
        parser.error("give --explain or --refresh")


if __name__ == "__main__":
    main(sys.argv[1:])
