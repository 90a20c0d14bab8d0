"""Numbers of canonical JSON: doubles as ECMAScript writes them, integers of any size as their exact digits."""

from __future__ import annotations

from decimal import MAX_EMAX, Context, Decimal, Inexact
from math import inf
from typing import Final

from fencepost_schemas.refused import Refused

MAX_DIGITS: Final = 100_000
"""Decimal digits of one integer: a bound on time (some 20 ms to read and 40 ms to write), not on meaning."""

# Python refuses to convert long integers (4300 digits, and a process may lower it to 640); below these it never does.
_SAFE_DIGITS: Final = 600
_SAFE_BITS: Final = 1990
_MAX_BITS: Final = 332_193  # of 10**MAX_DIGITS - 1; more bits are always more digits
_TOO_LONG: Final = f"an integer of more than {MAX_DIGITS} digits"


def integer_text(value: int) -> str:
    """Exact decimal digits. Raises `Refused` beyond `MAX_DIGITS`."""
    bits = value.bit_length()
    if bits < _SAFE_BITS:
        return repr(value)
    if bits > _MAX_BITS:
        raise Refused("$", _TOO_LONG)
    exact = Context(prec=MAX_DIGITS + 1, Emax=MAX_EMAX, traps=[Inexact])
    digits = str(_decimal(abs(value), exact))
    if len(digits) > MAX_DIGITS:
        raise Refused("$", _TOO_LONG)
    return "-" + digits if value < 0 else digits


def integer(token: str) -> int:
    """The integer that a JSON token of digits stands for. Raises `Refused` beyond `MAX_DIGITS`."""
    if len(token) < _SAFE_DIGITS:
        return int(token)
    digits = token.lstrip("-")
    if len(digits) > MAX_DIGITS:
        raise Refused("$", _TOO_LONG)
    return -_binary(digits) if token[0] == "-" else _binary(digits)


def double(token: str) -> float:
    """The double nearest to a JSON token with a fraction or an exponent. Raises `Refused` when it overflows."""
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


def _binary(digits: str) -> int:
    # Halves, because a conversion in one go takes quadratic time (and is what Python's limit forbids).
    if len(digits) <= _SAFE_DIGITS:
        return int(digits)
    low = len(digits) // 2
    scale: int = 10**low
    return _binary(digits[:-low]) * scale + _binary(digits[-low:])


def _decimal(value: int, exact: Context) -> Decimal:
    bits = value.bit_length()
    if bits <= _SAFE_BITS:
        return Decimal(value)
    low = bits // 2
    high, rest = _decimal(value >> low, exact), _decimal(value & ((1 << low) - 1), exact)
    return exact.fma(high, exact.power(Decimal(2), low), rest)
