from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils import parse_quantity

from kvbudget import quantity
from kvbudget.errors import QuantityError

SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
numbers = st.builds(
    lambda sign, whole, fraction: f"{sign}{whole}" + (f".{fraction}" if fraction is not None else ""),
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 10**12),
    st.none() | st.from_regex(r"[0-9]{1,9}", fullmatch=True),
)


@given(numbers, st.sampled_from(SUFFIXES))
def test_the_value_is_that_of_the_kubernetes_client(number: str, suffix: str) -> None:
    text = number + suffix
    ours = Fraction(*quantity.parse_ratio(text))
    with localcontext(prec=60):  # the client multiplies Decimals, 28 digits by default
        theirs = Fraction(parse_quantity(text)) if suffix not in ("n", "u", "m") else _scaled(number, suffix)
    assert ours == theirs


def _scaled(number: str, suffix: str) -> Fraction:
    # The client multiplies by an inexact power for suffixes below one.
    return Fraction(Decimal(number)) / {"n": 10**9, "u": 10**6, "m": 10**3}[suffix]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1E", 10**18),
        ("1E3", 1000),
        ("1e3", 1000),
        ("15e-1m", None),
        ("1500e-3Ki", None),
        ("1500e-2", 15),
        (".5Ki", 512),
        ("5.", 5),
        ("-2Gi", -(2 * 2**30)),
        ("2000m", 2),
        ("1e30", 10**30),
    ],
)
def test_every_form_is_read(text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(QuantityError):
            quantity.parse_int(text)
    else:
        assert quantity.parse_int(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Gi",
        ".",
        "1 Gi",
        " 1",
        "1gi",
        "1K",
        "0x10",
        "1,5",
        "१",
        "1e",
        "1e3Gi",
        "1e99",
        "inf",
        "NaN",
        "9" * 33,
        "1\n",
    ],
)
def test_what_is_no_quantity_is_refused_with_its_path_and_a_fix(text: str) -> None:
    with pytest.raises(QuantityError, match=r"^spec\.memory: .*write it like 16Gi"):
        quantity.parse_int(text, "spec.memory")


@pytest.mark.parametrize("text", ["500m", "0.3Ki", "1.5", "1e-1"])
def test_a_fraction_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="not a whole number"):
        quantity.parse_int(text)


@given(st.integers(-(2**63), 2**63))
def test_writing_and_reading_gives_the_same_number(value: int) -> None:
    assert quantity.parse_int(quantity.to_quantity(value)) == value


@given(st.integers(1, 2**60), st.integers(0, 2**60))
def test_shown_bytes_are_the_nearest_and_keep_their_order(low: int, more: int) -> None:
    unit = 1 << 10 * _power(quantity.format_bytes(low))
    assert abs(_shown(low) - low) <= Fraction(unit, 200)
    assert _shown(low) <= _shown(low + more)


def _power(text: str) -> int:
    unit = text.split()[1]
    return 0 if unit == "B" else "KMGTPE".index(unit[0]) + 1


def _shown(value: int) -> Fraction:
    text = quantity.format_bytes(value)
    return Fraction(text.split()[0]) * (1 << 10 * _power(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (2**30 - 2**13, "1023.99 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (2**40, "1.00 TiB"),
        (-5, "-5 B"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_below_them(value: int, text: str) -> None:
    assert quantity.format_bytes(value) == text
