"""Which headers pass in each direction, and which never do."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final

from sternpost_gateway.settings import Credentials

Headers = tuple[tuple[bytes, bytes], ...]

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that speak about one connection only (RFC 9110, section 7.6.1)."""

CLIENT_OWNED: Final = frozenset({b"host", b"content-length", b"expect", b"x-request-id"})
"""Request headers that the gateway writes itself, or that end here."""

CREDENTIAL_HEADERS: Final = frozenset({b"authorization", b"x-api-key", b"api-key", b"cookie"})
"""Request headers that carry a secret; only `authorization` may ever pass, and only when told to."""

RESERVED_PREFIX: Final = b"x-sternpost-"
"""Headers of this product: a client's never reach an engine."""

PICKER_HEADER: Final = b"x-gateway-destination-endpoint"
"""Names the engine that a picker chose; a client must not choose engines."""

BATCH_HEADER: Final = "x-sternpost-batch"
"""Says that others like this request come at the same time, so that one of them goes first."""

CACHE_HEADER: Final = "x-sternpost-cache"
"""`off` turns reuse off for one request."""

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
"""A client's request id is taken over when it is of this form, and replaced otherwise."""

ZERO_WEIGHT: Final = re.compile(r"0(\.0{0,3})?")
"""The weight that rules a coding out (RFC 9110, section 12.4.2)."""


def text_of(value: bytes) -> str:
    """Return a header's value as text: as UTF-8, else as Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def as_mapping(headers: Headers) -> dict[str, str]:
    """Return headers by lower-case name; of a repeated header the first counts."""
    mapping: dict[str, str] = {}
    for name, value in headers:
        mapping.setdefault(name.decode("latin-1").lower(), text_of(value))
    return mapping


def request_id_of(headers: Headers) -> str:
    """Return the client's request id if it is valid, else a new one."""
    for name, value in headers:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if REQUEST_ID.fullmatch(text):
                return text
    return uuid.uuid4().hex


def upstream_headers(
    headers: Headers,
    request_id: str,
    credentials: Credentials,
    engine_key: str | None,
    *,
    identity: bool = False,
) -> list[tuple[bytes, bytes]]:
    """
    Return what an engine receives of a client's headers.

    With `identity`, an uncompressed answer is asked for, unless the client rules it out.
    """
    dropped = HOP_BY_HOP | CLIENT_OWNED | CREDENTIAL_HEADERS | connection_names(headers)
    kept = [
        item
        for item in headers
        if item[0] not in dropped and item[0] != PICKER_HEADER and not item[0].startswith(RESERVED_PREFIX)
    ]
    if identity and all(_allows_identity(value) for name, value in kept if name == b"accept-encoding"):
        kept = [item for item in kept if item[0] != b"accept-encoding"]
        kept.append((b"accept-encoding", b"identity"))
    kept.extend((b"authorization", value) for value in _authorization(headers, credentials, engine_key))
    kept.append((b"x-request-id", request_id.encode()))
    return kept


def downstream_headers(
    headers: Iterable[tuple[bytes, bytes]], request_id: str, engine: str
) -> list[tuple[bytes, bytes]]:
    """
    Return what a client receives of an engine's headers; names become lower-case, as ASGI demands.

    `engine` is its base URL: a client that is sent elsewhere on it is sent there on this gateway.
    """
    lowered = tuple((name.lower(), value) for name, value in headers)
    dropped = HOP_BY_HOP | connection_names(lowered)
    kept = [
        (name, _here(value, engine) if name == b"location" else value)
        for name, value in lowered
        if name not in dropped and name != b"x-request-id"
    ]
    kept.append((b"x-request-id", request_id.encode()))
    return kept


def _here(location: bytes, engine: str) -> bytes:
    """Return a place on an engine as a path; a place elsewhere stays as it is."""
    path = location.removeprefix(engine.encode())
    is_path = path.startswith(b"/") and not path.startswith(b"//")
    return path if is_path else location


def value_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """Return the first value of a header in lower case, empty if there is none; `name` is lower-case."""
    return next((value.strip().lower() for found, value in headers if found.lower() == name), b"")


def connection_names(headers: Headers) -> frozenset[bytes]:
    """Return the headers that a `connection` header declares to be about this connection only."""
    return frozenset(
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    )


def _authorization(headers: Headers, credentials: Credentials, engine_key: str | None) -> list[bytes]:
    if credentials is Credentials.REPLACE:
        return [f"Bearer {engine_key}".encode()]
    if credentials is Credentials.FORWARD:
        return [value for name, value in headers if name == b"authorization"]
    return []


def accepts_coding(headers: Headers, coding: str) -> bool:
    """Say whether a client takes answers in a coding; one that does not say takes any."""
    values = [value.decode("latin-1") for name, value in headers if name == b"accept-encoding"]
    if not values:
        return True
    weights = _weights(",".join(values))
    aliases = {coding, "gzip"} if coding == "x-gzip" else {coding}
    named = [weights[name] for name in aliases if name in weights]
    weight = named[0] if named else weights.get("*", "0")
    return ZERO_WEIGHT.fullmatch(weight) is None


def _allows_identity(accept_encoding: bytes) -> bool:
    """
    Say whether an Accept-Encoding header allows an uncompressed answer.

    It always does, unless `identity` or, without `identity` being named, `*` has the weight 0.
    """
    weights = _weights(accept_encoding.decode("latin-1"))
    weight = weights.get("identity", weights.get("*", "1"))
    return ZERO_WEIGHT.fullmatch(weight) is None


def _weights(accept_encoding: str) -> dict[str, str]:
    """Return the weight of each coding that an Accept-Encoding header names."""
    weights: dict[str, str] = {}
    for item in accept_encoding.lower().split(","):
        coding, _, parameters = item.partition(";")
        weights[coding.strip()] = parameters.strip().removeprefix("q=").strip() or "1"
    return weights
