"""Requests to the API server are what it expects, and its refusals become errors that name the right."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import client

from sternpost_core.errors import OperatingError
from sternpost_fakes.fake_http import Drop, FakeServer, Reply, Seen
from sternpost_operator.kube import (
    ApiFailed,
    ApiUnavailable,
    Conflict,
    Forbidden,
    KubeApi,
    NotFound,
    Refused,
    connect,
)
from sternpost_operator.resources import EVENTS, POLICIES, STATEFUL_SETS, SWITCHES

VALUE = {"metadata": {"name": "a", "namespace": "x", "resourceVersion": "7"}, "status": {"old": 1}}


@asynccontextmanager
async def serving(
    *replies: Reply | type[Drop],
) -> AsyncIterator[tuple[KubeApi, FakeServer, list[tuple[str, str]]]]:
    """Serve these answers one after the other."""
    waiting = list(replies)

    async def handle(seen: Seen) -> Reply:
        reply = waiting.pop(0)
        if isinstance(reply, Reply):
            return reply
        raise reply

    server, calls = FakeServer(handle), []
    await server.start()
    configuration = client.Configuration(host=server.url)
    configuration.api_key["BearerToken"] = "secret"
    configuration.api_key_prefix["BearerToken"] = "Bearer"
    async with client.ApiClient(configuration) as api:
        yield KubeApi(api, 5.0, lambda verb, resource: calls.append((verb, resource))), server, calls
    await server.stop()


def answer(value: Any, status: int = 200) -> Reply:
    """Return a JSON answer."""
    return Reply(status=status, pieces=(json.dumps(value).encode(),))


async def test_list_follows_its_pages() -> None:
    """A long list comes in pieces, all of which are asked for."""
    first = {"items": [{"a": 1}], "metadata": {"continue": "more"}}
    async with serving(answer(first), answer({"items": [{"b": 2}], "metadata": {}})) as (api, server, calls):
        found = await api.list_all(POLICIES, labels="a=b")

    assert [{"a": 1}, {"b": 2}] == found
    assert [
        "/apis/sternpost.dev/v1alpha1/cachepolicies?limit=500&labelSelector=a%3Db",
        "/apis/sternpost.dev/v1alpha1/cachepolicies?limit=500&labelSelector=a%3Db&continue=more",
    ] == [seen.target for seen in server.seen]
    assert "Bearer secret" == server.seen[0].header("authorization")
    assert [("list", "cachepolicies")] * 2 == calls


async def test_status_is_written_for_the_version_that_was_read() -> None:
    """The server refuses it if the object has changed since."""
    async with serving(answer({"ok": 1})) as (api, server, _):
        await api.replace_status(POLICIES, VALUE, {"new": 2})
    (seen,) = server.seen

    assert ("PUT", "/apis/sternpost.dev/v1alpha1/namespaces/x/cachepolicies/a/status") == (
        seen.method,
        seen.target,
    )
    assert {**VALUE, "status": {"new": 2}} == json.loads(seen.body)


async def test_apply_is_server_side() -> None:
    """The operator owns the fields that it names, and takes them over."""
    async with serving(answer({})) as (api, server, _):
        await api.apply(STATEFUL_SETS, VALUE)
    (seen,) = server.seen

    assert "PATCH" == seen.method
    assert (
        "/apis/apps/v1/namespaces/x/statefulsets/a?fieldManager=sternpost-operator&force=true" == seen.target
    )
    assert "application/apply-patch+yaml" == seen.header("content-type")


async def test_paths_without_a_namespace_and_without_a_group() -> None:
    """Cluster-scoped kinds have no namespace; the core's group has another root."""
    async with serving(answer({}), answer({}), answer({})) as (api, server, _):
        await api.get(SWITCHES, "", "all")
        await api.create(EVENTS, {"metadata": {"namespace": "x"}})
        await api.delete(STATEFUL_SETS, "x", "a")

    assert [
        ("GET", "/apis/sternpost.dev/v1alpha1/cachekillswitches/all"),
        ("POST", "/api/v1/namespaces/x/events"),
        ("DELETE", "/apis/apps/v1/namespaces/x/statefulsets/a"),
    ] == [(seen.method, seen.target) for seen in server.seen]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, ApiUnavailable),
        (422, Refused),
        (503, ApiUnavailable),
    ],
)
async def test_refusals_are_told_apart(status: int, kind: type[ApiFailed]) -> None:
    """Each says what was asked for and what the server said."""
    async with serving(answer({"message": "because"}, status)) as (api, _, _):
        with pytest.raises(kind, match=r"get cachepolicies\.sternpost\.dev.*because") as caught:
            await api.get(POLICIES, "x", "a")

    assert kind is type(caught.value)


async def test_refusal_in_another_shape_is_one_all_the_same() -> None:
    """Whoever answers in the server's place may send any JSON."""
    async with serving(answer("because", 502)) as (api, _, _):
        with pytest.raises(ApiUnavailable, match="status 502: because"):
            await api.get(POLICIES, "x", "a")


async def test_missing_right_is_named() -> None:
    """With its subresource, as a rule would name it."""
    async with serving(answer({"message": "no"}, 403)) as (api, _, _):
        with pytest.raises(Forbidden) as caught:
            await api.replace_status(POLICIES, VALUE, {})

    assert "update cachepolicies.sternpost.dev/status" == caught.value.permission


@pytest.mark.parametrize(
    "reply", [Drop, Reply(pieces=(b"{",), cut=True)], ids=["no-answer", "half-an-answer"]
)
async def test_silence_is_an_error_that_passes(reply: Reply | type[Drop]) -> None:
    """A server that is away comes back."""
    async with serving(reply) as (api, _, _):
        with pytest.raises(ApiUnavailable, match="did not answer"):
            await api.get(POLICIES, "x", "a")


NO_LIST = [
    pytest.param(Reply(pieces=(b"<html>sign in</html>",)), id="no-json"),
    pytest.param(answer([]), id="no-object"),
    pytest.param(answer({"metadata": {}}), id="no-items"),
    pytest.param(answer({"items": None, "metadata": {}}), id="null-items"),
    pytest.param(answer({"items": []}), id="no-metadata"),
]


@pytest.mark.parametrize("reply", NO_LIST)
async def test_what_is_no_list_is_an_error_that_passes(reply: Reply) -> None:
    """A proxy's page in the server's place ends nothing, and is no empty list."""
    async with serving(reply) as (api, _, _):
        with pytest.raises(ApiUnavailable, match=r"cachepolicies\.sternpost\.dev"):
            await api.list_all(POLICIES)


def kubeconfig(cluster: dict[str, Any]) -> bytes:
    """Return a kubeconfig for a cluster."""
    named = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": {}}],
    }
    return json.dumps(named).encode()


KUBECONFIGS = {
    "empty": b"",
    "bytes": b"\x00\xff\xfe",
    "half": b"contexts: [",
    "list": b"[]",
    "server": kubeconfig({"server": 5}),
    "authority": kubeconfig({"server": "https://a", "certificate-authority-data": "AAAA"}),
}


@pytest.mark.parametrize("text", KUBECONFIGS.values(), ids=KUBECONFIGS.keys())
async def test_kubeconfig_of_no_use_is_named(text: bytes, tmp_path: Path) -> None:
    """Whatever the library makes of it, one sentence says which file it was."""
    (tmp_path / "kubeconfig").write_bytes(text)

    with pytest.raises(OperatingError, match=f"no access to a cluster by {tmp_path}/kubeconfig: "):
        await connect(str(tmp_path / "kubeconfig"))


async def test_without_a_cluster_the_error_says_what_to_give() -> None:
    """Neither a kubeconfig nor a service account."""
    with pytest.raises(OperatingError, match="KUBECONFIG"):
        await connect(None)
