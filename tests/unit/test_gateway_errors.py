"""The one mapping from errors to HTTP answers in OpenAI's shape."""

from __future__ import annotations

import json

import pytest

from sternpost_core.errors import BodyError, Fault
from sternpost_gateway import errors
from sternpost_gateway.errors import Answer, GatewayError, Overloaded, answer_of


def detail(answer: Answer) -> dict[str, object]:
    """Return the error object of an answer."""
    found: dict[str, object] = json.loads(answer.body)["error"]
    return found


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        pytest.param(BodyError("body", [Fault("messages[0]", "x", "y")]), 400, "invalid_json", id="body"),
        pytest.param(errors.BadRequest("x"), 400, "bad_request", id="bad-request"),
        pytest.param(errors.Forbidden("x"), 403, "forbidden", id="forbidden"),
        pytest.param(errors.NotFound("x"), 404, "not_found", id="not-found"),
        pytest.param(errors.TooSlow("x"), 408, "request_too_slow", id="too-slow"),
        pytest.param(errors.TooLarge("x"), 413, "request_too_large", id="too-large"),
        pytest.param(Overloaded("x", 3), 429, "gateway_overloaded", id="overloaded"),
        pytest.param(errors.NoEngine("x"), 503, "no_engine", id="no-engine"),
        pytest.param(errors.PoolMisconfigured("x"), 503, "pool_misconfigured", id="pool-misconfigured"),
        pytest.param(errors.ConnectFailed("x"), 502, "upstream_unreachable", id="connect-failed"),
        pytest.param(errors.Disconnected("x"), 502, "upstream_disconnected", id="disconnected"),
        pytest.param(errors.FirstByteTimeout("x"), 504, "upstream_timeout", id="first-byte-timeout"),
        pytest.param(errors.UpstreamCut("x"), 502, "upstream_cut", id="cut"),
        pytest.param(ValueError("secret"), 500, "internal_error", id="anything-else"),
    ],
)
def test_error_has_one_meaning(error: Exception, status: int, code: str) -> None:
    """Each error has its status and code, and the body says how long it is."""
    answer = answer_of(error)

    assert (status, code) == (answer.status, detail(answer)["code"])
    assert str(len(answer.body)).encode() == dict(answer.headers)[b"content-length"]


def test_every_leaf_has_its_own_meaning() -> None:
    """No error of the gateway falls back on the meaning of anything else."""
    leaves = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)
    ]
    unmapped = [kind for kind in leaves if not kind.__subclasses__() and kind not in errors.MEANINGS]

    assert [] == unmapped


def test_path_is_the_parameter() -> None:
    """A wrong body is answered with the path of its first fault."""
    answer = answer_of(BodyError("body", [Fault("messages[0].content", "a lone surrogate", "text")]))

    assert "messages[0].content" == detail(answer)["param"]


def test_unknown_error_keeps_its_text() -> None:
    """What went wrong inside is not told outside: it might repeat a prompt."""
    assert b"secret" not in answer_of(ValueError("secret")).body


def test_overload_says_when_to_come_back() -> None:
    """A refusal can be told from an engine's own, and has a time to wait."""
    headers = dict(answer_of(Overloaded("x", 3)).headers)

    assert (b"3", b"1") == (headers[b"retry-after"], headers[b"x-gateway-shed"])


@pytest.mark.parametrize(
    ("error", "closes"),
    [
        pytest.param(errors.TooLarge("x"), True, id="unread-body"),
        pytest.param(errors.NoEngine("x"), False, id="read-body"),
    ],
)
def test_connection_closes_with_an_unread_body(error: Exception, closes: bool) -> None:
    """An answer that comes before the end of the request ends the connection."""
    assert closes is ((b"connection", b"close") in answer_of(error).headers)
