"""The body of a request that its client has compressed: it is read as what it stands for."""

from __future__ import annotations

import asyncio
import zlib
from typing import Final

from sternpost_gateway.errors import BadRequest, TooLarge, UnknownCoding
from sternpost_gateway.headers import Headers

READ_CODINGS: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
PLAIN: Final = frozenset({b"", b"identity"})

EITHER_FORMAT: Final = zlib.MAX_WBITS | 32
"""Lets zlib tell gzip and zlib apart by their headers."""

AT_ONCE_BYTES_MAX: Final = 64 * 1024
"""Of a compressed body that is decoded on the event loop; a larger one would hold up all other streams."""


def coding_of(headers: Headers) -> bytes:
    """Return the coding of a request's body, empty if it has none."""
    values = [value.strip().lower() for name, value in headers if name == b"content-encoding"]
    coding = b", ".join(values)
    return b"" if coding in PLAIN else coding


def without_coding(headers: Headers) -> Headers:
    """Return the headers of a body that has been decoded."""
    return tuple(item for item in headers if item[0] != b"content-encoding")


async def decoded(body: bytes, coding: bytes, bytes_max: int) -> bytes:
    """
    Return what a compressed body stands for.

    Raises:
        UnknownCoding: its coding is none that is read here.
        TooLarge: it stands for more than `bytes_max`.
        BadRequest: it is not what its coding says, or not whole.
    """
    if coding not in READ_CODINGS:
        raise UnknownCoding("the body's Content-Encoding is not read here; gzip, deflate and identity are")
    if len(body) <= AT_ONCE_BYTES_MAX:
        return _inflated(body, bytes_max)
    return await asyncio.to_thread(_inflated, body, bytes_max)


def _inflated(body: bytes, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj(EITHER_FORMAT)
    try:
        plain = inflater.decompress(body, bytes_max + 1)
    except zlib.error:
        raise BadRequest("the body is not compressed as its Content-Encoding says") from None
    if len(plain) > bytes_max:
        raise TooLarge(f"the body stands for more than the limit of {bytes_max} bytes")
    if not inflater.eof or inflater.unused_data:
        raise BadRequest("the body is not compressed as its Content-Encoding says")
    return plain
