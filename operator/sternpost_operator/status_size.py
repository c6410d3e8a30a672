"""Keeping a status small: an object that does not fit into the store could not be changed at all any more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

STATUS_BYTES_MAX: Final = 16 * 1024


def size_of(status: Mapping[str, Any]) -> int:
    """Return the bytes that a status takes as JSON."""
    return len(json.dumps(status, separators=(",", ":")).encode())


def fit(status: Mapping[str, Any], *lists: str) -> dict[str, Any]:
    """
    Return the status, with the first elements of `lists` taken away until it fits.

    The first list gives first. What is left must fit by itself, which the schema's own bounds see to.
    """
    fitting = dict(status)
    for name in lists:
        while size_of(fitting) > STATUS_BYTES_MAX and fitting.get(name):
            fitting[name] = fitting[name][1:]
    return fitting
