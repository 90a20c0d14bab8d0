"""Numbers of canonical JSON: doubles as ECMAScript writes them, integers of any size as their exact digits."""

from __future__ import annotations

from decimal import Decimal
from math import inf

from .refused import Refused

MAX_DIGITS = 100_000
"""Decimal digits of one integer. Conversion between binary and decimal is quadratic: this many take some 10 ms."""

# Python refuses to convert long integers (4300 digits, a process may lower it to 640); below these it never does.
_SAFE_DIGITS = 600
_SAFE_BITS = 1990
_MAX_BITS = 332_193  # 10**100_000 has this many; more bits are always more digits

TOO_LONG = f"an integer of more than {MAX_DIGITS} digits"


def integer_text(value: int) -> str:
    """Exact decimal digits; raises `Refused` beyond `MAX_DIGITS`."""
    bits = value.bit_length()
    if bits < _SAFE_BITS:
        return repr(value)
    digits = str(Decimal(value)) if bits <= _MAX_BITS else ""
    if not digits or len(digits.lstrip("-")) > MAX_DIGITS:
        raise Refused("$", TOO_LONG)
    return digits


def integer(token: str) -> int:
    """The integer that a JSON token of digits stands for; raises `Refused` beyond `MAX_DIGITS`."""
    if len(token) < _SAFE_DIGITS:
        return int(token)
    if len(token.lstrip("-")) > MAX_DIGITS:
        raise Refused("$", TOO_LONG)
    return int(Decimal(token))


def double(token: str) -> float:
    """The double nearest to a JSON token with a fraction or an exponent; raises `Refused` when it overflows."""
    value = float(token)
    if value in (inf, -inf):
        raise Refused("$", "a number beyond the range of a double")
    return value


def double_text(value: float) -> str:
    """The shortest text that reads back as ``value``: Number::toString of ECMA-262, as RFC 8785 §3.2.2.3 asks."""
    text = repr(value)
    if text[-2:] == ".0":
        return "0" if value == 0 else text[:-2]
    if "e" not in text:
        return _finite(text)
    mantissa, _, exponent = text.partition("e")
    sign = "-" if mantissa[0] == "-" else ""
    return sign + _scaled(mantissa.lstrip("-"), int(exponent))


def _finite(text: str) -> str:
    if text == "nan":
        raise Refused("$", "NaN is not JSON")
    if text[-3:] == "inf":
        raise Refused("$", "Infinity is not JSON")
    return text


def _scaled(mantissa: str, exponent: int) -> str:
    # Python writes an exponent below 1e-4 and from 1e16 on, ECMAScript below 1e-6 and from 1e21 on.
    digits = mantissa.replace(".", "")
    if 0 <= exponent < 21:
        return digits.ljust(exponent + 1, "0")
    if -7 < exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    return f"{mantissa}e{exponent:+d}"
