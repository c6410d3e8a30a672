"""The head of a request to an engine, as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sternpost_gateway.upstream import UpstreamRequest

WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose requests say that they have no body, if they have none (RFC 9110, section 8.6)."""


def request_head(request: UpstreamRequest, host: str) -> bytes:
    """Return the request line, the headers and what frames the body."""
    own = (b"host", host.encode("latin-1")), *_framing(request)
    return head_bytes(request.method, request.target, (*own, *request.headers))


def head_bytes(method: str, target: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a request line and headers, and the empty line that ends them."""
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1")]
    lines += [b": ".join(header) for header in headers]
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def is_chunked(request: UpstreamRequest) -> bool:
    """Say whether the body goes out in chunks: it comes in pieces, and nobody has said how long it is."""
    if request.body is None or isinstance(request.body, bytes):
        return False
    return not any(name == b"content-length" for name, _ in request.headers)


def _framing(request: UpstreamRequest) -> tuple[tuple[bytes, bytes], ...]:
    if isinstance(request.body, bytes):
        return ((b"content-length", b"%d" % len(request.body)),)
    if request.body is None:
        return ((b"content-length", b"0"),) if request.method in WITH_BODY else ()
    return ((b"transfer-encoding", b"chunked"),) if is_chunked(request) else ()
