"""
Streams that have begun: an engine sends a stream's headers before it computes anything.

vLLM accepts a stream as soon as it has understood the request. What fails from there to the first piece of
the body has told a client nothing, and may be asked of another engine; so that piece is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from sternpost_gateway.errors import Disconnected, FirstByteTimeout, UpstreamCut, UpstreamStalled
from sternpost_gateway.headers import value_of
from sternpost_gateway.relay import EVENT_STREAM, OK
from sternpost_gateway.upstream import UpstreamResponse


class Begun:
    """An answer whose first piece has come, and is handed out first."""

    def __init__(self, response: UpstreamResponse, piece: bytes) -> None:
        self.status = response.status
        self.headers: Sequence[tuple[bytes, bytes]] = response.headers
        self._response = response
        self._piece: bytes | None = piece

    async def read(self) -> bytes:
        """Return the next piece, empty at the end; raises as `UpstreamResponse.read` says."""
        piece, self._piece = self._piece, None
        return await self._response.read() if piece is None else piece

    def close(self) -> None:
        """End the exchange."""
        self._response.close()


def is_stream(response: UpstreamResponse) -> bool:
    """Say whether an answer is a stream that was accepted."""
    return response.status == OK and value_of(response.headers, b"content-type").startswith(EVENT_STREAM)


async def begun(response: UpstreamResponse) -> UpstreamResponse:
    """
    Return a stream when its first piece has come; whatever ends the waiting ends the exchange, too.

    Raises:
        Disconnected: the engine ended the stream before its first piece.
        FirstByteTimeout: nothing came of it for too long.
    """
    with ExitStack() as stack:
        stack.callback(response.close)
        try:
            piece = await response.read()
        except UpstreamStalled:
            raise FirstByteTimeout("the engine did not answer in time") from None
        except UpstreamCut as error:
            raise Disconnected("the engine ended the stream before it answered") from error
        stack.pop_all()
    return Begun(response, piece)
