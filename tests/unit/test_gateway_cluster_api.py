"""What the API server answers becomes lists, events or one of four errors, and nothing in between."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sternpost_gateway.cluster.api import KubernetesApi
from sternpost_gateway.cluster.errors import ClusterError, Denied, Expired, NotServed
from sternpost_gateway.cluster.resources import POLICIES, EventKind, Key, key_of

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

KEY = Key("agents", "support")
ITEM = {"metadata": {"name": "support", "namespace": "agents", "resourceVersion": "8"}, "spec": {}}
LIST = {"kind": "CachePolicyList", "metadata": {"resourceVersion": "9"}, "items": [ITEM]}


@asynccontextmanager
async def api_for(directory: Path, answer: Answer) -> AsyncIterator[KubernetesApi]:
    """Run a server that gives one answer to everything, and a client that finds it by a kubeconfig file."""
    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    async with TestServer(application) as server:
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(json.dumps(config_for(str(server.make_url("")).rstrip("/"))))
        api = KubernetesApi(kubeconfig)
        try:
            yield api
        finally:
            await api.aclose()


def config_for(server: str, more: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a kubeconfig, with more about its cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": server, **(more or {})}}],
        "users": [{"name": "me", "user": {"token": "a-token"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }


def says(body: object, status: int = 200) -> Answer:
    """Return an answer with a JSON body, or with bytes as they are."""

    async def answer(request: web.Request) -> web.StreamResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(body=data, status=status, content_type="application/json")

    return answer


async def test_a_list_is_asked_for_with_the_token(tmp_path: Path) -> None:
    """Path, selector of the cache, and credentials are right."""
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        return await says(LIST)(request)

    async with api_for(tmp_path, answer) as api:
        listing = await api.list(POLICIES, cached=True, seconds=2)

    assert (9, [KEY]) == (listing.version, [key_of(item) for item in listing.items])
    assert "/apis/sternpost.dev/v1alpha1/cachepolicies?resourceVersion=0" == str(seen[0].rel_url)
    assert "Bearer a-token" == seen[0].headers["authorization"]


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        pytest.param(says({"metadata": {"resourceVersion": "9"}}), ClusterError, "no items", id="no items"),
        pytest.param(
            says({"metadata": {}, "items": []}),
            ClusterError,
            "no resourceVersion",
            id="an empty list without version",
        ),
        pytest.param(says(b""), ClusterError, "no JSON object", id="nothing"),
        pytest.param(says(b"[]"), ClusterError, "no JSON object", id="an array"),
        pytest.param(says(b"{"), ClusterError, "no JSON object", id="half an object"),
        pytest.param(
            says({"message": "cannot list"}, 403),
            Denied,
            "may not list cachepolicies: cannot list",
            id="forbidden",
        ),
        pytest.param(
            says(b"404 page not found", 404), NotServed, "does not serve cachepolicies", id="no CRD"
        ),
        pytest.param(says({"message": "too old"}, 410), Expired, "too old", id="gone"),
        pytest.param(says({"message": "etcd is away"}, 500), ClusterError, "etcd is away", id="server error"),
    ],
)
async def test_a_list_that_is_none_is_an_error(
    tmp_path: Path, answer: Answer, error: type[ClusterError], said: str
) -> None:
    """Nothing of this is ever taken for an empty collection."""
    async with api_for(tmp_path, answer) as api:
        with pytest.raises(error, match=said):
            await api.list(POLICIES, cached=False, seconds=2)


async def test_nobody_at_the_address_is_an_error(tmp_path: Path) -> None:
    """A refused connection is told as one."""
    (tmp_path / "kubeconfig").write_text(json.dumps(config_for("http://127.0.0.1:9")))
    api = KubernetesApi(tmp_path / "kubeconfig")
    with pytest.raises(ClusterError, match="cannot be asked for cachepolicies"):
        await api.list(POLICIES, cached=False, seconds=2)
    await api.aclose()


BAD_AUTHORITY = json.dumps(config_for("https://127.0.0.1:9", {"certificate-authority-data": "AAAA"}))


@pytest.mark.parametrize(
    "text",
    ["", "{", "apiVersion: v1\nkind: Config\n", BAD_AUTHORITY],
    ids=["empty", "broken", "bare", "authority"],
)
async def test_a_kubeconfig_of_no_use_is_an_error(tmp_path: Path, text: str) -> None:
    """What the library raises about the file arrives as our own error."""
    (tmp_path / "kubeconfig").write_text(text)
    api = KubernetesApi(tmp_path / "kubeconfig")
    with pytest.raises(ClusterError, match="no way to the API server"):
        await api.list(POLICIES, cached=False, seconds=2)
    await api.aclose()


async def test_a_watch_yields_events_in_whatever_pieces_they_come(tmp_path: Path) -> None:
    """Two events in three pieces, one of them larger than a line of aiohttp's own reader may be."""
    large = {**ITEM, "spec": {"note": "x" * 200_000}}
    lines = b"".join(
        json.dumps({"type": kind, "object": body}).encode() + b"\n"
        for kind, body in (("ADDED", large), ("BOOKMARK", {"metadata": {"resourceVersion": "11"}}))
    )

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(lines), 70_000):
            await response.write(lines[start : start + 70_000])
        return response

    async with api_for(tmp_path, answer) as api:
        events = [event async for event in api.watch(POLICIES, 9)]

    assert [EventKind.ADDED, EventKind.BOOKMARK] == [event.kind for event in events]
    assert large == events[0].item


@pytest.mark.parametrize(
    ("line", "error"),
    [
        pytest.param(
            b'{"type": "ERROR", "object": {"code": 410, "message": "too old"}}', Expired, id="expired"
        ),
        pytest.param(b'{"type": "ERROR", "object": {"code": 500}}', ClusterError, id="server error"),
        pytest.param(b'{"type": "PRESENT", "object": {}}', ClusterError, id="unknown kind"),
        pytest.param(b'{"type": "ADDED", "object": 3}', ClusterError, id="no object"),
        pytest.param(b'{"kind": "Status"}', ClusterError, id="no event"),
        pytest.param(b"nonsense", ClusterError, id="no JSON"),
    ],
)
async def test_a_line_that_is_no_event_ends_the_watch(
    tmp_path: Path, line: bytes, error: type[ClusterError]
) -> None:
    """The mirror then lists again."""
    async with api_for(tmp_path, says(line + b"\n")) as api:
        with pytest.raises(error):
            _ = [event async for event in api.watch(POLICIES, 9)]


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        pytest.param(ITEM, 200, True, id="there"),
        pytest.param({"reason": "NotFound", "details": {"name": "support"}}, 404, False, id="not there"),
    ],
)
async def test_existence_is_what_the_server_says(
    tmp_path: Path, body: object, status: int, expected: bool
) -> None:
    """The answer is about this very object."""
    async with api_for(tmp_path, says(body, status)) as api:
        assert expected is await api.exists(POLICIES, KEY, seconds=2)


@pytest.mark.parametrize(
    "body",
    [b"404 page not found", b"{}", json.dumps({"reason": "NotFound", "details": {"name": "other"}}).encode()],
    ids=["CRD gone", "blank", "another object"],
)
async def test_a_404_about_something_else_says_nothing(tmp_path: Path, body: bytes) -> None:
    """A CRD that is gone for a moment takes no kill level with it."""
    async with api_for(tmp_path, says(body, 404)) as api:
        with pytest.raises(ClusterError):
            await api.exists(POLICIES, KEY, seconds=2)
