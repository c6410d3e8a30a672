"""
The errors that the gateway answers itself, as one tree, and their one mapping to HTTP.

    SternpostError
    ├── BodyError                  (core) the body is not the JSON that we can vouch for
    └── GatewayError
        ├── BadRequest             the request's framing or a header is wrong
        ├── Unauthorized           the client's key or token is missing, wrong or too old
        ├── Forbidden              the admin token is missing or wrong
        ├── NotFound               no such path, or the admin interface is not configured
        ├── ModelNotFound          no engine serves the model
        ├── TooLarge               the body is over the limit
        ├── HeadersTooLarge        the headers are over the limit
        ├── UnknownCoding          the body is compressed in a way that is not read here
        ├── TooSlow                the body arrives too slowly
        ├── Overloaded             in-flight requests are at the limit
        │   └── ColdLimited        an engine has no room for a long prompt that it does not hold
        ├── NoEngine               no engine is ready
        ├── KeysUnavailable        the keys that clients' tokens are checked by are not known
        ├── PoolMisconfigured      the engine's key is missing
        └── UpstreamError
            ├── ConnectFailed      no connection could be opened
            ├── Disconnected       the connection ended before the first byte of an answer
            ├── FirstByteTimeout   no answer began in time
            └── UpstreamCut        the answer ended, or stalled, before it was complete
    ClientGone                     the client left: nobody is there to be answered
    └── ClientStalled              or is there, and does not read

No message carries anything of a prompt: the client's own JSON path is all that is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sternpost_core.errors import BodyError, SternpostError


class GatewayError(SternpostError):
    """A request that the gateway answers itself."""


class BadRequest(GatewayError):
    """The request's framing or a header is wrong."""


class Unauthorized(GatewayError):
    """The client's key or token is missing, wrong or too old."""


class Forbidden(GatewayError):
    """The admin token is missing or wrong."""


class NotFound(GatewayError):
    """No such path, or the admin interface is not configured."""


class MethodNotAllowed(GatewayError):
    """There is something at this path, which does not take this method."""


class ModelNotFound(GatewayError):
    """No engine serves the model."""


class TooLarge(GatewayError):
    """The body is over the limit."""


class HeadersTooLarge(GatewayError):
    """The headers are over the limit."""


class UnknownCoding(GatewayError):
    """The body is compressed in a way that is not read here."""


class TooSlow(GatewayError):
    """The body arrives too slowly."""


class Overloaded(GatewayError):
    """In-flight requests are at the limit; `retry_after_seconds` says when to come back."""

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ColdLimited(Overloaded):
    """An engine has no room for a long prompt that it does not hold."""


class NoEngine(GatewayError):
    """No engine is ready."""


class KeysUnavailable(GatewayError):
    """The keys that clients' tokens are checked by are not known."""


class PoolMisconfigured(GatewayError):
    """The pool's credentials cannot be used as configured."""


class UpstreamError(GatewayError):
    """An engine failed before or during its answer."""


class ConnectFailed(UpstreamError):
    """No connection could be opened; the engine has seen nothing."""


class Disconnected(UpstreamError):
    """The connection ended before the first byte of an answer."""


class FirstByteTimeout(UpstreamError):
    """No answer began in time."""


class UpstreamCut(UpstreamError):
    """The answer ended, or stalled, before it was complete."""


class UpstreamStalled(UpstreamCut):
    """The answer stalled before it was complete: the engine may still be at work on it."""


class ClientGone(Exception):
    """The client left, or stopped reading; there is nobody to answer."""


class ClientStalled(ClientGone):
    """The client has stopped reading, and was given up."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an error means in HTTP and in OpenAI's error object."""

    status: int
    type: str
    code: str


MEANINGS: Final[Mapping[type[Exception], Meaning]] = {
    BodyError: Meaning(400, "invalid_request_error", "invalid_json"),
    BadRequest: Meaning(400, "invalid_request_error", "bad_request"),
    Unauthorized: Meaning(401, "invalid_request_error", "invalid_api_key"),
    Forbidden: Meaning(403, "permission_error", "forbidden"),
    NotFound: Meaning(404, "invalid_request_error", "not_found"),
    MethodNotAllowed: Meaning(405, "invalid_request_error", "method_not_allowed"),
    ModelNotFound: Meaning(404, "invalid_request_error", "model_not_found"),
    TooSlow: Meaning(408, "invalid_request_error", "request_too_slow"),
    HeadersTooLarge: Meaning(431, "invalid_request_error", "headers_too_large"),
    UnknownCoding: Meaning(415, "invalid_request_error", "unknown_coding"),
    TooLarge: Meaning(413, "invalid_request_error", "request_too_large"),
    Overloaded: Meaning(429, "rate_limit_error", "gateway_overloaded"),
    ColdLimited: Meaning(429, "rate_limit_error", "gateway_cold_limit"),
    NoEngine: Meaning(503, "server_error", "no_engine"),
    KeysUnavailable: Meaning(503, "server_error", "keys_unavailable"),
    PoolMisconfigured: Meaning(503, "server_error", "pool_misconfigured"),
    ConnectFailed: Meaning(502, "server_error", "upstream_unreachable"),
    Disconnected: Meaning(502, "server_error", "upstream_disconnected"),
    FirstByteTimeout: Meaning(504, "server_error", "upstream_timeout"),
    UpstreamCut: Meaning(502, "server_error", "upstream_cut"),
    UpstreamStalled: Meaning(502, "server_error", "upstream_cut"),
    Exception: Meaning(500, "server_error", "internal_error"),
}
"""The one table from error to answer; the nearest class in an error's ancestry counts."""

CLOSING_STATUSES: Final = frozenset({400, 408, 413, 415, 431})
"""Answers after which the connection closes, because the rest of the request may still be on its way."""

INTERNAL_MESSAGE: Final = "The gateway failed; the request id names the entry in its log."


@dataclass(frozen=True, slots=True)
class Answer:
    """An error as the client receives it."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    code: str

    @property
    def closes(self) -> bool:
        """Say whether the connection ends with this answer."""
        return self.status in CLOSING_STATUSES


def meaning_of(error: Exception) -> Meaning:
    """Return the meaning of the nearest class in the error's ancestry."""
    return next(MEANINGS[kind] for kind in type(error).__mro__ if kind in MEANINGS)


def error_object(error: Exception) -> bytes:
    """Return the error as OpenAI's JSON object."""
    meaning = meaning_of(error)
    known = isinstance(error, SternpostError)
    detail = {
        "message": str(error) if known else INTERNAL_MESSAGE,
        "type": meaning.type,
        "param": _param(error),
        "code": meaning.code,
    }
    return json.dumps({"error": detail}).encode()


def _param(error: Exception) -> str | None:
    """Return the member of the body that an error is about, if it is about one."""
    if isinstance(error, ModelNotFound):
        return "model"
    return error.faults[0].path if isinstance(error, BodyError) and error.faults else None


def answer_of(error: Exception) -> Answer:
    """Return the whole answer to a request that ended in `error`."""
    meaning = meaning_of(error)
    body = error_object(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if meaning.status in CLOSING_STATUSES:
        headers.append((b"connection", b"close"))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, Overloaded):
        headers.append((b"retry-after", str(error.retry_after_seconds).encode()))
        headers.append((b"x-gateway-shed", b"1"))
    return Answer(meaning.status, tuple(headers), body, meaning.code)
