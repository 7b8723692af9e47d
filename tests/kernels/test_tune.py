"""The tiles that a launch takes fit every page, and their reasons are told."""

import doctest

import pytest

from kvbudget_kernels import tune
from kvbudget_kernels.launch import check_tiles
from kvbudget_kernels.storage import HEAD_DIMS, PAGE_TOKENS, PRECISIONS, Layout
from support.kernel_cases import empty_cache


def test_the_examples_hold() -> None:
    assert doctest.testmod(tune).failed == 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_choice_fits_its_pages(precision: str) -> None:
    for head_dim in HEAD_DIMS:
        for page in PAGE_TOKENS:
            cache = empty_cache(Layout.of(precision, 1, head_dim, page), 1)
            for rows in (1, 16, 17, 192):
                check_tiles(cache, tune.pick(precision, head_dim, page, rows))


def test_wider_heads_take_fewer_keys() -> None:
    """Registers hold a tile: 64 keys of up to 128 channels, 32 of more."""
    assert [tune.pick("BF16", d, 64, 4).tile_tokens for d in (64, 128, 136, 256)] == [64, 64, 32, 32]


def test_the_reasons_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tune.main(["--explain", "BF16", "128", "64", "4"])
    assert capsys.readouterr().out.startswith("tile_tokens 64: 64 for head_dim 128\n")
