"""
Undoing a compression that the client has ruled out, when an engine compresses whatever it is asked for.

Everything else passes as it is encoded: what the client takes is the client's to decode.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from sternpost_gateway.errors import UpstreamCut
from sternpost_gateway.headers import Headers, accepts_coding
from sternpost_gateway.upstream import UpstreamResponse

DECODED: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
"""The codings that can be undone; each says in its first bytes which it is."""

ENCODED_HEADERS: Final = frozenset({b"content-encoding", b"content-length"})
"""What is no longer true of an answer that has been decoded."""

PIECE_BYTES_MAX: Final = 64 * 1024
"""Of decoded bytes held at once: a few compressed bytes may stand for very many."""

EITHER_FORMAT: Final = zlib.MAX_WBITS | 32
"""Lets zlib tell gzip and zlib apart by their headers."""


def acceptable(response: UpstreamResponse, client_headers: Headers) -> UpstreamResponse:
    """Return the answer, decoded if it has a coding that the client did not allow."""
    coding = next((value.strip().lower() for name, value in response.headers if _is_coding(name)), b"")
    if coding not in DECODED or accepts_coding(client_headers, coding.decode()):
        return response
    return DecodedResponse(response)


class DecodedResponse:
    """An answer whose body comes decompressed, piece by piece."""

    def __init__(self, response: UpstreamResponse) -> None:
        self.status = response.status
        self.headers: Sequence[tuple[bytes, bytes]] = [
            item for item in response.headers if item[0].lower() not in ENCODED_HEADERS
        ]
        self._response = response
        self._inflater = zlib.decompressobj(EITHER_FORMAT)
        self._held = b""
        self._is_drained = True
        self._has_begun = False

    async def read(self) -> bytes:
        """
        Return the next piece, empty at the end.

        Raises:
            UpstreamCut: as the answer that is decoded, and when it ends before the compressed data do.
        """
        while True:
            if self._is_drained and not await self._fill():
                return b""
            if piece := self._inflate():
                return piece

    def close(self) -> None:
        """End the exchange."""
        self._response.close()

    async def _fill(self) -> bool:
        """Take the next compressed piece; return False at the end."""
        self._held = await self._response.read()
        if self._held:
            self._has_begun = True
            return True
        if self._has_begun and not self._inflater.eof:
            raise UpstreamCut("the engine's answer ended before it was complete")
        return False

    def _inflate(self) -> bytes:
        if self._inflater.eof:
            # A coding may consist of several members, one behind the other.
            self._inflater = zlib.decompressobj(EITHER_FORMAT)
        try:
            piece = self._inflater.decompress(self._held, PIECE_BYTES_MAX)
        except zlib.error as error:
            raise UpstreamCut("the engine's answer cannot be decoded") from error
        self._held = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
        self._is_drained = not self._held and len(piece) < PIECE_BYTES_MAX
        return piece


def _is_coding(name: bytes) -> bool:
    return name.lower() == b"content-encoding"
