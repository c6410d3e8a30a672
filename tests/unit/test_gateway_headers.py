"""Which headers pass in each direction."""

from __future__ import annotations

import pytest

from sternpost_gateway.headers import (
    Headers,
    as_mapping,
    connection_names,
    downstream_headers,
    request_id_of,
    upstream_headers,
)
from sternpost_gateway.settings import Credentials

SECRETS: Headers = (
    (b"authorization", b"Bearer client"),
    (b"x-api-key", b"k1"),
    (b"api-key", b"k2"),
    (b"cookie", b"c=1"),
    (b"proxy-authorization", b"p"),
)


def forwarded(*headers: tuple[bytes, bytes], identity: bool = False) -> dict[bytes, bytes]:
    """Return what an engine gets of headers, but for the request id."""
    found = dict(upstream_headers(headers, "id-1", Credentials.NONE, None, identity=identity))
    assert b"id-1" == found.pop(b"x-request-id")
    return found


@pytest.mark.parametrize(
    "name",
    [
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "proxy-connection",
        "host",
        "content-length",
        "expect",
        "x-sternpost-cache",
        "x-sternpost-anything",
        "x-gateway-destination-endpoint",
    ],
)
def test_header_stays_here(name: str) -> None:
    """Hop-by-hop and reserved headers never reach an engine."""
    assert {b"x-app": b"support"} == forwarded((name.encode(), b"x"), (b"x-app", b"support"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(b"support", "support", id="ascii"),
        pytest.param("Zoë ✓".encode(), "Zoë ✓", id="utf-8"),
        pytest.param("Zoë".encode("latin-1"), "Zoë", id="latin-1"),
    ],
)
def test_values_are_read_as_they_were_meant(value: bytes, expected: str) -> None:
    """Whatever its coding, a value arrives as it came, and tenants have one name."""
    headers = ((b"x-app", value),)

    assert ({b"x-app": value}, {"x-app": expected}) == (forwarded(*headers), as_mapping(headers))


def test_header_named_by_connection_stays_here() -> None:
    """A header that `connection` names is about this hop only."""
    assert {} == forwarded((b"connection", b"close, X-Hop"), (b"x-hop", b"1"))


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        pytest.param(Credentials.FORWARD, {b"authorization": b"Bearer client"}, id="forward"),
        pytest.param(Credentials.REPLACE, {b"authorization": b"Bearer engine"}, id="replace"),
        pytest.param(Credentials.NONE, {}, id="none"),
    ],
)
def test_credentials_pass_by_mode(credentials: Credentials, expected: dict[bytes, bytes]) -> None:
    """Of a client's secrets nothing but `authorization` ever passes, and only when it is forwarded."""
    found = dict(upstream_headers(SECRETS, "id-1", credentials, "engine"))
    del found[b"x-request-id"]

    assert expected == found


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(None, b"identity", id="none-sent"),
        pytest.param(b"gzip, br", b"identity", id="codings"),
        pytest.param(b"gzip, identity;q=0", b"gzip, identity;q=0", id="identity-ruled-out"),
        pytest.param(b"gzip, *;q=0.0", b"gzip, *;q=0.0", id="all-others-ruled-out"),
        pytest.param(b"*;q=0, identity;q=0.1", b"identity", id="identity-allowed-by-name"),
        pytest.param(b"identity;q=1.0", b"identity", id="identity-asked"),
    ],
)
def test_identity_is_asked_for_when_the_client_allows_it(sent: bytes | None, expected: bytes) -> None:
    """A metered answer comes uncompressed, unless the client says that it must not."""
    headers = ((b"accept-encoding", sent),) if sent is not None else ()

    assert expected == forwarded(*headers, identity=True)[b"accept-encoding"]


def test_accept_encoding_passes_as_sent() -> None:
    """An answer that is not metered is compressed as the client likes."""
    assert {b"accept-encoding": b"gzip;q=0.5, br"} == forwarded((b"accept-encoding", b"gzip;q=0.5, br"))


def test_answer_headers_pass_but_for_the_hop() -> None:
    """An engine's headers reach the client with the client's request id."""
    answered = [
        (b"Content-Type", b"application/json"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"X-Hop"),
        (b"X-Hop", b"1"),
        (b"X-Request-Id", b"other"),
        (b"Set-Cookie", b"a"),
        (b"Set-Cookie", b"b"),
    ]

    assert [
        (b"content-type", b"application/json"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"x-request-id", b"id-1"),
    ] == downstream_headers(answered, "id-1", "http://engine:8000")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        pytest.param(b"http://engine:8000/v1/x?a=1", b"/v1/x?a=1", id="of-the-engine"),
        pytest.param(b"/v1/x", b"/v1/x", id="a-path"),
        pytest.param(b"http://engine:80001/v1/x", b"http://engine:80001/v1/x", id="of-another-port"),
        pytest.param(b"https://elsewhere/v1/x", b"https://elsewhere/v1/x", id="elsewhere"),
        pytest.param(b"http://engine:8000//evil/x", b"http://engine:8000//evil/x", id="no-path"),
    ],
)
def test_client_is_sent_to_no_engine(location: bytes, expected: bytes) -> None:
    """Where an engine sends a client to another place on itself, that place is here, too."""
    passed = downstream_headers([(b"Location", location)], "id-1", "http://engine:8000")

    assert (b"location", expected) == passed[0]


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        pytest.param(b"req-1", True, id="plain"),
        pytest.param(b"a" * 128, True, id="longest"),
        pytest.param(b"a" * 129, False, id="too-long"),
        pytest.param(b"", False, id="empty"),
        pytest.param(b"a b", False, id="space"),
        pytest.param(b"a\xff", False, id="not-ascii"),
        pytest.param(b"-a", False, id="begins-with-a-dash"),
    ],
)
def test_request_id_is_taken_when_valid(sent: bytes, taken: bool) -> None:
    """A client's id is echoed when it is short and plain, and replaced otherwise."""
    assert taken is (request_id_of(((b"x-request-id", sent),)) == sent.decode("latin-1"))


def test_request_ids_differ() -> None:
    """Without an id from the client each request gets its own."""
    assert request_id_of(()) != request_id_of(())


def test_mapping_takes_the_first_of_a_name() -> None:
    """Of a repeated header the first counts, in any case of letters."""
    assert {"x-a": "1"} == as_mapping(((b"X-A", b"1"), (b"x-a", b"2")))


def test_connection_names_are_lower_case() -> None:
    """The names in a `connection` header are compared without case."""
    assert frozenset({b"close", b"x-hop"}) == connection_names(((b"connection", b" Close , X-Hop"),))
