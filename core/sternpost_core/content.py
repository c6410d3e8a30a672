"""
Content ids: names for prompt segments that are equal in every process, on every CPU and for every seed.

An id is a SHA-256 over length-prefixed, field-tagged bytes, so that no two different lists of fields ever
feed the hash the same bytes: ("ab", "c") and ("a", "bc") differ, and so do a missing and an empty field.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final, NewType

ContentId = NewType("ContentId", str)
"""64 lower-case hexadecimal digits."""

CONTENT_DOMAIN: Final = "sternpost.dev/content"
"""Sets content ids apart from every other hash that is made of the same fields."""

CONTENT_VERSION: Final = 1
"""Grows when the encoding changes; ids of different versions are never equal."""

SHORT_LENGTH: Final = 12
"""How many digits of an id people see."""

_length: Final = struct.Struct(">Q").pack
"""Returns a length as eight bytes, the highest first."""


def content_id(kind: str, fields: Iterable[tuple[str, bytes]]) -> ContentId:
    """Return the id of the content that `fields`, (tag, value) pairs in their order, describe."""
    return ContentId(hashlib.sha256(tagged(CONTENT_DOMAIN, CONTENT_VERSION, kind, fields)).hexdigest())


def short(content_id: ContentId) -> str:
    """Return the first 12 digits, for people; two ids may share them."""
    return content_id[:SHORT_LENGTH]


def tagged(domain: str, version: int, kind: str, fields: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the bytes to hash: domain, version and kind, then each tag and value, each after its length."""
    values = [domain.encode(), str(version).encode(), kind.encode()]
    for tag, value in fields:
        values += (tag.encode(), value)
    # One list and one join: a request has some ten ids, and a step of Python for each piece would show.
    return b"".join([piece for value in values for piece in (_length(len(value)), value)])
