"""The tiles that a launch takes fit every page, their reasons are told, and measured ones replace them."""

import csv
import doctest
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kvbudget_kernels import tune
from kvbudget_kernels.arch import TARGETS
from kvbudget_kernels.errors import KernelInputError
from kvbudget_kernels.launch import check_tiles
from kvbudget_kernels.storage import HEAD_DIMS, PAGE_TOKENS, PRECISIONS, Layout
from kvbudget_kernels.tune import Launch, Line, Tiles
from support.kernel_cases import empty_cache

ARCHS = (*TARGETS, "cpu", "sm_86", "sm_103", "gfx950")


def test_the_examples_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "arch_here", lambda: "sm_90")
    assert doctest.testmod(tune).failed == 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_choice_fits_its_pages(precision: str) -> None:
    for head_dim in HEAD_DIMS:
        for page in PAGE_TOKENS:
            cache = empty_cache(Layout.of(precision, 1, head_dim, page), 1)
            for rows in (1, 16, 17, 192):
                for arch in ARCHS:
                    check_tiles(cache, tune.pick(precision, head_dim, page, rows, arch=arch))


def test_every_line_of_the_table_is_taken_by_some_launch() -> None:
    taken = {
        tune._line(Launch(arch, precision, head_dim, page, rows))
        for arch in ARCHS for precision in (*PRECISIONS, "MLA") for head_dim in (*HEAD_DIMS, 512)
        for page in PAGE_TOKENS for rows in (16, 32, 64)
    }  # fmt: skip
    assert [line for line in tune.lines() if line not in taken] == []


def test_wider_heads_take_fewer_keys() -> None:
    """Registers hold a tile: 64 keys of up to 128 channels, 32 of more."""
    assert [tune.pick("BF16", d, 64, 4).tile_tokens for d in (64, 128, 136, 256)] == [64, 64, 32, 32]


def test_the_reasons_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tune.main(["--explain", "INT8", "128", "16", "4", "--arch", "sm_90"])
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "tile_tokens 16, because a page has 16"
    assert told[1] == "rows 16: 4 query rows, to a power of two from 16 to 64"
    assert told[3].startswith("by line ")
    assert "tiles.csv" in told[3]


TABLE = (
    Line("sm_*", "*", "<=128", "*", "*", 64, 4, 3, 128, "compiled"),
    Line("*", "*", "*", "*", "*", 32, 4, 3, 0, "any"),
)


def _row(tiles: Tiles, median_us: float | str, **changes: str) -> dict[str, str]:
    """A made-up row of a GPU run."""
    row = {
        "part": "tiles", "status": "ok", "arch": "sm_90", "precision": "BF16", "head_dim": "128", "page_tokens": "64",
        "rows": "16", "tile_tokens": str(tiles.tile_tokens), "warps": str(tiles.warps), "stages": str(tiles.stages),
        "registers": str(tiles.registers or 0), "median_us": str(median_us), "device": "made up",
    }  # fmt: skip
    return row | changes


PRESENT, OTHER, THIRD = Tiles(64, 16, 4, 3, 128), Tiles(128, 16, 8, 2, None), Tiles(32, 16, 4, 4, 168)


@pytest.mark.parametrize(
    ("rows", "top"),
    [
        ([_row(PRESENT, 100), _row(OTHER, 90), _row(THIRD, 95)], [OTHER]),
        ([_row(PRESENT, 100), _row(OTHER, 98)], []),
        ([_row(OTHER, 98)], [OTHER]),
        ([_row(PRESENT, 100), _row(OTHER, 90, status="failed"), _row(THIRD, 90, part="grid")], []),
        ([_row(PRESENT, 100), _row(OTHER, 50), _row(THIRD, 60, precision="INT8", page_tokens="32")], [OTHER, THIRD]),
    ],
    ids=["faster", "within the noise", "the present one was not timed", "not a result", "two launches"],
)
def test_what_is_faster_by_more_than_noise_comes_first(rows: Sequence[Mapping[str, str]], top: list[Tiles]) -> None:
    after = tune.refreshed(TABLE, rows)
    assert after[-2:] == list(TABLE)
    assert [Tiles(line.tile_tokens, 16, line.warps, line.stages, line.registers or None) for line in after[:-2]] == top


def test_a_second_measurement_replaces_the_first_and_the_choice_follows(tmp_path: Path) -> None:
    table, rows = tmp_path / "tiles.csv", tmp_path / "rows.csv"
    tune.store(TABLE, table)
    for tiles in (OTHER, THIRD):
        given = [_row(PRESENT, 100), _row(OTHER, 99), _row(THIRD, 99), _row(tiles, 50)]
        with rows.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(given[0]))
            writer.writeheader()
            writer.writerows(given)
        tune.lines.cache_clear()
        tune.main(["--refresh", str(rows), "--table", str(table)])
    tune.lines.cache_clear()
    found = tune.lines(table)
    assert len(found) == 3
    assert found[0].fits(Launch("sm_90", "BF16", 128, 64, 16))
    assert not found[0].fits(Launch("sm_80", "BF16", 128, 64, 16))
    assert (found[0].tile_tokens, found[0].warps, found[0].why) == (32, 4, "fastest of 4 on made up")


def test_a_row_without_its_tiles_is_refused_with_the_fix() -> None:
    broken = {k: v for k, v in _row(PRESENT, 1).items() if k != "warps"}
    with pytest.raises(KernelInputError, match=r"row 2: KeyError: 'warps'; give rows.csv of bench/gpu/run.sh tiles"):
        tune.refreshed(TABLE, [broken])
