"""How the report writes numbers: losses, scales, times, sizes and relative differences."""

from __future__ import annotations

import math
import re

__all__ = [
    "NONE",
    "format_difference",
    "format_loss",
    "format_megabytes",
    "format_milliseconds",
    "format_percent",
    "format_scale",
    "format_times",
    "number",
    "raised",
    "short_power",
]

NONE = "-"
"""What stands where there is nothing to tell."""


def number(value: float | None) -> float:
    """Return a number of a result; nan where it has none.

    Examples:
        >>> number(2), number(None)
        (2.0, nan)
    """
    return math.nan if value is None else float(value)


def format_scale(scale: float) -> str:
    """Return a loss scale as a reader thinks of it: a power of two where it is one.

    Examples:
        >>> format_scale(65536.0), format_scale(1.0), format_scale(1000.0)
        ('2^16', '1', '1000')
    """
    if math.isfinite(scale) and scale > 0:
        mantissa, exponent = math.frexp(scale)
        if mantissa == 0.5 and not 1 <= scale < 1024:
            return f"2^{exponent - 1}"
    return f"{scale:.4g}"


def raised(text: str) -> str:
    """Return the text with its powers set as a page does.

    Examples:
        >>> raised("worked: 2^16")
        'worked: 2¹⁶'
    """
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return re.sub(r"\^(-?\d+)", lambda found: found[1].translate(digits), text)


def format_loss(loss: float) -> str:
    """Return a loss with about five significant digits.

    Examples:
        >>> format_loss(0.41231), format_loss(123.456), format_loss(1.2e-5), format_loss(0.0)
        ('0.4123', '123.46', '1.2e-05', '0')
    """
    size = abs(loss)
    if not math.isfinite(loss) or loss == 0:
        return f"{loss:.0f}"
    for limit, form in ((1e-3, ".1e"), (10, ".4f"), (1e3, ".2f"), (1e5, ".0f")):
        if size < limit:
            return f"{loss:{form}}"
    return f"{loss:.1e}"


def format_milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds, without the unit.

    Examples:
        >>> format_milliseconds(0.0124), format_milliseconds(1.5), format_milliseconds(2.5e-4)
        ('12.4', '1500', '0.25')
    """
    milliseconds = seconds * 1e3
    for limit, form in ((1, ".2f"), (100, ".1f")):
        if milliseconds < limit:
            return f"{milliseconds:{form}}"
    return f"{milliseconds:.0f}"


def format_megabytes(size: float) -> str:
    """Return bytes as megabytes of 1 000 000 bytes, without the unit.

    Examples:
        >>> format_megabytes(4.126e8)
        '413'
    """
    return f"{size / 1e6:.0f}"


def format_difference(size: float) -> str:
    """Return a relative difference as a power of ten.

    Examples:
        >>> format_difference(0.0), format_difference(1.23e-7)
        ('0', '1.2e-07')
    """
    return "0" if size == 0 else f"{size:.1e}"


def short_power(size: float, decimals: int = 0) -> str:
    """Return a relative difference in few letters, such as for the cell of a heat map.

    Examples:
        >>> short_power(0.0), short_power(3.1e-7), short_power(0.96), short_power(350.0)
        ('0', '3e-7', '0.96', '4e2')
        >>> short_power(3.14e-7, 1)
        '3.1e-7'
    """
    if size == 0 or not math.isfinite(size):
        return f"{size:.0f}"
    if 0.095 <= size < 10:
        return f"{size:.2g}"
    digits, _, exponent = f"{size:.{decimals}e}".partition("e")
    return f"{digits}e{int(exponent)}"


def format_times(times: float) -> str:
    """Return how many times one number is another.

    Examples:
        >>> format_times(2.53), format_times(7812.3), format_times(3.2e9), format_times(math.inf)
        ('2.5x', '7800x', '3e9x', 'infx')
    """
    if not math.isfinite(times) or times >= 1e6:
        return f"{short_power(times)}x"
    return f"{times:.1f}x" if times < 10 else f"{float(f'{times:.2g}'):.0f}x"


def format_percent(size: float | None) -> str:
    """Return a relative difference of a result in percent, as short as it can be told.

    Examples:
        >>> format_percent(0.0046), format_percent(4e-6), format_percent(None)
        ('0.46%', '0.0004%', '-')
    """
    if size is None:
        return NONE
    percent = size * 100
    if not math.isfinite(percent) or percent == 0:
        return f"{percent:.0f}"
    if percent < 1e-4:
        return "<0.0001%"
    for limit, form in ((1e-3, ".4f"), (0.01, ".3f"), (0.995, ".2f"), (99.5, ".1f"), (1e5, ".0f")):
        if percent < limit:
            return f"{percent:{form}}%"
    return f"{percent:.0e}%"
