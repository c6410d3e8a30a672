"""Durations as Kubernetes writes them: `90s`, `10m`, `1h30m`."""

from __future__ import annotations

import re
from typing import Final

UNITS: Final = {"h": 3600, "m": 60, "s": 1}
"""Seconds of each unit, largest first."""

DURATION_FORM: Final = 'a duration such as "90s", "10m" or "1h30m"'
"""How an error describes what is allowed."""

_DURATION: Final = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?", re.ASCII)


def parse_duration(text: str) -> int:
    """
    Return the seconds that `text` names.

    Raises:
        ValueError: when `text` is not whole hours, minutes and seconds, in that order, at least one of them.
    """
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(DURATION_FORM)
    counts = [int(count or 0) for count in match.groups()]
    return sum(count * seconds for count, seconds in zip(counts, UNITS.values(), strict=True))


def format_duration(seconds: int) -> str:
    """Return the shortest form that `parse_duration` reads as `seconds`, which is not negative."""
    assert seconds >= 0, "a duration is not negative"
    words: list[str] = []
    for unit, size in UNITS.items():
        count, seconds = divmod(seconds, size)
        if count:
            words.append(f"{count}{unit}")
    return "".join(words) or "0s"
