"""Where the characters of a JSON string stand in its bytes, so that it can be cut without being rewritten."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u[0-9a-fA-F]{4}|.)")
"""One character in the form of an escape; a surrogate pair is one character."""


def byte_offsets(raw: bytes, characters: Sequence[int]) -> list[int]:
    """
    Return where characters begin in a JSON string's bytes, quotes included, that has been checked.

    `characters` are offsets into the decoded string, in rising order; the string's length stands for its end.
    """
    inner = raw[1:-1].decode()
    escapes = _ESCAPE.finditer(inner)
    escape = next(escapes, None)
    # How much longer the written form is than the decoded one, so far.
    surplus = 0
    offsets: list[int] = []
    position = offset = 0
    for character in characters:
        while escape is not None and escape.start() < character + surplus:
            surplus += len(escape.group()) - 1
            escape = next(escapes, None)
        offset += len(inner[position : character + surplus].encode())
        position = character + surplus
        offsets.append(1 + offset)
    return offsets
