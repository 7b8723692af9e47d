"""Kubernetes quantities as exact integers.

A quantity is a decimal number with an optional suffix: ``n u m`` (10⁻⁹ 10⁻⁶ 10⁻³), ``k M G T P E`` (powers of 1000),
``Ki Mi Gi Ti Pi Ei`` (powers of 1024), or an exponent ``e3`` / ``E3``.

>>> parse_int("16Gi"), parse_int("85028077568"), parse_int("3350G"), parse_int("2000m")
(17179869184, 85028077568, 3350000000000, 2)
>>> format_bytes(17179869184), to_quantity(17179869184)
('16.00 GiB', '16Gi')
"""

import re

from kvbudget.errors import QuantityError

MAX_LENGTH = 32
"""Longest text that is read; also the bound in the schema."""

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MAX_EXPONENT = 30

PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
"""The grammar as a regular expression that the API server (RE2) and Python read alike."""
_QUANTITY = re.compile(r"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?")


def parse_ratio(text: str, path: str = "") -> tuple[int, int]:
    """The exact value of ``text`` as (numerator, denominator), denominator a power of ten.

    Raises :class:`QuantityError` (with ``path``) for anything that Kubernetes does not read as a quantity.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise QuantityError(path, f"{text[:40]!r} is not a quantity; write it like 16Gi, 80G or 85028077568")
    sign, whole, fraction, bare_fraction, suffix = match.groups(default="")
    digits = fraction or bare_fraction
    mantissa = int((whole + digits) or "0") * (-1 if sign == "-" else 1)
    exponent = -len(digits)
    if suffix in _BINARY:
        mantissa <<= 10 * _BINARY[suffix]
    elif suffix in _DECIMAL:
        exponent += _DECIMAL[suffix]
    else:
        exponent += int(suffix[1:])
    if abs(exponent) > _MAX_EXPONENT:
        raise QuantityError(path, f"{text!r} is out of range; write it like 16Gi, 80G or 85028077568")
    return (mantissa * 10**exponent, 1) if exponent >= 0 else (mantissa, 10**-exponent)


def parse_int(text: str, path: str = "") -> int:
    """The exact whole number that ``text`` stands for (``1.5Gi`` is 1610612736).

    Raises :class:`QuantityError` (with ``path``) when it is no quantity, or has a fraction (``500m``, ``0.3Ki``).
    """
    numerator, denominator = parse_ratio(text, path)
    if numerator % denominator:
        reason = f"{text!r} is not a whole number; write it without a fraction, like 16Gi or 85028077568"
        raise QuantityError(path, reason)
    return numerator // denominator


def format_bytes(n: int) -> str:
    """``n`` bytes for people: two decimals, to the nearest, as in every text of a budget.

    >>> format_bytes(512), format_bytes(1536), format_bytes(-1536), format_bytes(85028077568), format_bytes(2**20 - 1)
    ('512 B', '1.50 KiB', '-1.50 KiB', '79.19 GiB', '1.00 MiB')
    """
    size, sign = abs(n), "-" if n < 0 else ""
    if size < 1024:
        return f"{sign}{size} B"
    power = min((size.bit_length() - 1) // 10, 6)
    hundredths = _nearest_hundredths(size, power)
    if hundredths == 102400 and power < 6:
        power, hundredths = power + 1, 100
    return f"{sign}{hundredths // 100}.{hundredths % 100:02d} {'KMGTPE'[power - 1]}iB"


def _nearest_hundredths(size: int, power: int) -> int:
    unit = 1 << 10 * power
    return (size * 100 + unit // 2) // unit


def to_quantity(n: int) -> str:
    """``n`` as the shortest exact quantity: the largest binary suffix that divides it, else plain digits.

    >>> to_quantity(1536 * 1024**2), to_quantity(1000), to_quantity(0)
    ('1536Mi', '1000', '0')
    """
    suffix = ""
    for name in _BINARY:
        if n == 0 or n % 1024:
            break
        n //= 1024
        suffix = name
    return f"{n}{suffix}"
