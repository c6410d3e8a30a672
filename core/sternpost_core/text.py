"""Small words for error messages about configuration; nothing of a user's request passes through here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

DESCRIPTION_LENGTH_MAX: Final = 80
"""How many characters of a wrong value an error repeats."""

_ELLIPSIS: Final = "..."


def shorten(text: str, length_max: int = DESCRIPTION_LENGTH_MAX) -> str:
    """Return `text`, cut to `length_max` characters with an ellipsis where it is longer."""
    return text if len(text) <= length_max else text[: length_max - len(_ELLIPSIS)] + _ELLIPSIS


def describe(value: object) -> str:
    """Return a configuration value as an error shows it: scalars by their value, the rest by their type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(shorten(value))
    if isinstance(value, int | float):
        return shorten(repr(value)) if isinstance(value, float) or abs(value) < 10**80 else "a longer integer"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    return f"a value of type {type(value).__name__}"


def one_of(choices: Iterable[object]) -> str:
    """Return the choices as an error lists them."""
    return ", ".join(str(choice) for choice in choices)
