"""The numbers that flags take, each within its bounds."""

from __future__ import annotations

import argparse
from math import inf
from typing import Final, TypeVar

from sternpost_gateway.settings import WORKERS_MAX

PORT_MAX: Final = 65535

Number = TypeVar("Number", int, float)


def positive(text: str) -> int:
    """Read a number of at least 1."""
    value = int(text)
    return _allowed(text, value, value >= 1, "1 or more")


def port_number(text: str) -> int:
    """Read a port; 0 lets the system choose."""
    value = int(text)
    return _allowed(text, value, 0 <= value <= PORT_MAX, f"0 to {PORT_MAX}")


def seconds(text: str) -> float:
    """Read a duration in seconds."""
    value = float(text)
    return _allowed(text, value, 0 <= value < inf, "0 or more seconds")


def zero_or_more(text: str) -> float:
    """Read a number of 0 or more."""
    value = float(text)
    return _allowed(text, value, 0 <= value < inf, "0 or more")


def price(text: str) -> float:
    """Read a price, 0 or more."""
    return zero_or_more(text)


def above_zero(text: str) -> float:
    """Read a number above 0."""
    value = float(text)
    return _allowed(text, value, 0 < value < inf, "above 0")


def share(text: str) -> float:
    """Read a share."""
    value = float(text)
    return _allowed(text, value, 0 <= value <= 1, "0 to 1")


def scale(text: str) -> float:
    """Read a factor above 0, at most 1."""
    value = float(text)
    return _allowed(text, value, 0 < value <= 1, "above 0, at most 1")


def percent(text: str) -> float:
    """Read a percentage, 0 to 100."""
    value = float(text)
    return _allowed(text, value, 0 <= value <= 100, "0 to 100")


def busy_percent(text: str) -> float:
    """Read a share of time, above 0 and under 100 percent: engines that are always busy never catch up."""
    value = float(text)
    return _allowed(text, value, 0 < value < 100, "above 0, under 100")


def worker_count(text: str) -> int:
    """Read a number of workers."""
    value = int(text)
    return _allowed(text, value, 1 <= value <= WORKERS_MAX, f"1 to {WORKERS_MAX}")


def _allowed(text: str, value: Number, holds: bool, allowed: str) -> Number:
    if not holds:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; allowed: {allowed}")
    return value
