"""
Content ids: names for prompt segments that are equal in every process, on every CPU and for every seed.

An id is a SHA-256 over length-prefixed, field-tagged bytes, so that no two different lists of fields ever
feed the hash the same bytes: ("ab", "c") and ("a", "bc") differ, and so do a missing and an empty field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final, NewType

ContentId = NewType("ContentId", str)
"""64 lower-case hexadecimal digits."""

CONTENT_DOMAIN: Final = "sternpost.dev/content"
"""Sets content ids apart from every other hash that is made of the same fields."""

CONTENT_VERSION: Final = 1
"""Grows when the encoding changes; ids of different versions are never equal."""

SHORT_LENGTH: Final = 12
"""How many digits of an id people see."""

_LENGTH_BYTES: Final = 8


def content_id(kind: str, fields: Iterable[tuple[str, bytes]]) -> ContentId:
    """Return the id of the content that `fields`, (tag, value) pairs in their order, describe."""
    digest = hashlib.sha256()
    for part in tagged(CONTENT_DOMAIN, CONTENT_VERSION, kind, fields):
        digest.update(part)
    return ContentId(digest.hexdigest())


def short(content_id: ContentId) -> str:
    """Return the first 12 digits, for people; two ids may share them."""
    return content_id[:SHORT_LENGTH]


def tagged(domain: str, version: int, kind: str, fields: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    """Yield the bytes to hash: domain, version and kind, then each tag and value, each after its length."""
    for text in (domain, str(version), kind):
        yield from _prefixed(text.encode())
    for tag, value in fields:
        yield from _prefixed(tag.encode())
        yield from _prefixed(value)


def _prefixed(value: bytes) -> tuple[bytes, bytes]:
    return len(value).to_bytes(_LENGTH_BYTES, "big"), value
