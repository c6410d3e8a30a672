"""The numbers that flags take, each within its bounds, and the words of which they take one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from math import inf
from typing import Final, TypeVar

from sternpost_core.text import one_of, shorten

PORT_MAX: Final = 65535

Number = TypeVar("Number", int, float)
Member = TypeVar("Member", bound=StrEnum)


def integer(least: int, most: int) -> Callable[[str], int]:
    """Return what reads an integer within bounds."""
    return partial(_integer, lambda value: least <= value <= most, f"an integer from {least} to {most}")


def positive(text: str) -> int:
    """Read an integer of at least 1."""
    return _integer(lambda value: value >= 1, "an integer, 1 or more", text)


def port_number(text: str) -> int:
    """Read the port of something that others are told of."""
    return integer(1, PORT_MAX)(text)


def port_or_zero(text: str) -> int:
    """Read a port to listen on; what 0 means is the flag's to say."""
    return integer(0, PORT_MAX)(text)


def seconds(text: str) -> float:
    """Read a duration in seconds."""
    return _read(text, float, lambda value: 0 <= value < inf, "0 or more seconds")


def zero_or_more(text: str) -> float:
    """Read a number of 0 or more."""
    return _read(text, float, lambda value: 0 <= value < inf, "0 or more")


def price(text: str) -> float:
    """Read a price, 0 or more."""
    return zero_or_more(text)


def above_zero(text: str) -> float:
    """Read a number above 0."""
    return _read(text, float, lambda value: 0 < value < inf, "above 0")


def share(text: str) -> float:
    """Read a share."""
    return _read(text, float, lambda value: 0 <= value <= 1, "0 to 1")


def scale(text: str) -> float:
    """Read a factor above 0, at most 1."""
    return _read(text, float, lambda value: 0 < value <= 1, "above 0, at most 1")


def percent(text: str) -> float:
    """Read a percentage, 0 to 100."""
    return _read(text, float, lambda value: 0 <= value <= 100, "0 to 100")


def busy_percent(text: str) -> float:
    """Read a share of time, above 0 and under 100 percent: engines that are always busy never catch up."""
    return _read(text, float, lambda value: 0 < value < 100, "above 0, under 100")


def member_of(kind: type[Member]) -> Callable[[str], Member]:
    """Return what reads a value of an enumeration."""

    def read(text: str) -> Member:
        if text not in list(kind):
            raise _refused(text, one_of(kind))
        return kind(text)

    return read


def _integer(holds: Callable[[int], bool], allowed: str, text: str) -> int:
    # Python takes more for an integer than whoever reads a manifest: digits of any script, and `1_000`.
    if not (text.isascii() and text.removeprefix("-").isdecimal()):
        raise _refused(text, allowed)
    return _read(text, int, holds, allowed)


def _read(text: str, kind: Callable[[str], Number], holds: Callable[[Number], bool], allowed: str) -> Number:
    try:
        value = kind(text)
    except ValueError:
        raise _refused(text, allowed) from None
    if not holds(value):
        raise _refused(text, allowed)
    return value


def _refused(text: str, allowed: str) -> argparse.ArgumentTypeError:
    found = shorten(text) or "nothing"
    return argparse.ArgumentTypeError(f"{found} is not allowed; allowed: {allowed}")
