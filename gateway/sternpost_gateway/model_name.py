"""
The model that a request is for, where its body is not read whole: by its first bytes, or by its path.

What is found here chooses an engine and nothing else: the engine reads the body itself, and decides.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Final
from urllib.parse import unquote

HEAD_BYTES_MAX: Final = 65536
"""Of a body that are looked at; clients put the model in front, and what is large behind."""

MODEL: Final = "model"
MODELS_PATH: Final = "/v1/models"
NAME_LENGTH_MAX: Final = 1024

_TOKEN: Final = re.compile(r'"(?P<text>(?:[^"\\]++|\\.)*+)(?:"|\\?\Z)|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)
"""A string whose end is not there is one, too: to try each quote in it as a beginning would take forever."""

_PART: Final = re.compile(
    rb"^content-disposition:[^\r\n]*;[ \t]*name=\"?model\"?[ \t]*(?:;[^\r\n]*)?\r?$",
    re.IGNORECASE | re.MULTILINE,
)
_HEAD_END: Final = b"\r\n\r\n"


def model_in(content_type: bytes, head: bytes) -> str | None:
    """Return the model that a body names within its first bytes, None if it does not, or in no known form."""
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == b"multipart/form-data":
        name = _part(head).decode(errors="replace").strip()
    else:
        name = _top_level_text(head.decode(errors="ignore")) or ""
    return name if 0 < len(name) <= NAME_LENGTH_MAX else None


def _part(head: bytes) -> bytes:
    """Return the first line of the form's part `model`, empty if all of it is not there."""
    heads = head.split(_HEAD_END)
    values = (value for before, value in pairwise(heads) if _PART.search(before))
    line, end, _ = next(values, b"").partition(b"\r\n")
    return line if end else b""


def model_of_path(path: str) -> str | None:
    """Return the model that a path is about, None for other paths."""
    name = path.removeprefix(MODELS_PATH + "/")
    return unquote(name) if name != path and name else None


def _unescaped(word: str) -> str | None:
    try:
        found = json.loads(word)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def _top_level_text(text: str) -> str | None:
    """Return the text of the member `model` of a JSON object of which only the beginning is there."""
    depth, key, expects_value = 0, "", False
    for token in _TOKEN.finditer(text):
        word = token[0]
        if depth == 1 and expects_value and key == MODEL:
            return _unescaped(token[0])
        if word in "{[":
            depth += 1
        elif word in "}]":
            depth -= 1
        if depth == 1:
            expects_value = word == ":"
            if token["text"] is not None:
                key = token["text"]
    return None
