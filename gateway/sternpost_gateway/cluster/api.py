"""
Listing and watching over HTTP; kubernetes' own asyncio client finds the server and authenticates.

Answers are taken as the JSON they are: what the gateway reads, `sternpost_core`'s parsers check.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from kubernetes.aio import client as kube
from kubernetes.aio.config import (
    ConfigException,
    load_incluster_config,
    load_kube_config,
)

from sternpost_gateway.cluster.errors import ClusterError, Denied, Expired, NotServed, Silent
from sternpost_gateway.cluster.resources import Event, EventKind, Key, Listing, Object, Resource, version_of

CONNECT_SECONDS: Final = 2.0
"""To reach the API server; a wait for longer than this is an outage."""

WATCH_SECONDS: Final = 300
"""After which the server ends a watch in an orderly way, and the mirror lists again."""

SILENCE_SECONDS: Final = 70.0
"""The longest silence of a watch: a server that knows bookmarks sends one each minute."""

ITEMS_MAX: Final = 10_000
"""Objects of one listing; more are not what a gateway is for."""

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of a listing, and of one event: an object in etcd is smaller than 2 MiB."""

REASON_LENGTH_MAX: Final = 200

APPLY_TYPE: Final = "application/apply-patch+yaml"
"""The content type of a server-side apply; JSON is YAML."""

FIELD_MANAGER: Final = "sternpost"
"""Whose fields the server says that they are."""

CONFIG_ERRORS: Final = (
    ConfigException,
    yaml.YAMLError,
    OSError,
    ValueError,
    AttributeError,
    KeyError,
    TypeError,
)
"""What the library raises for a kubeconfig that is missing, no YAML, or of another shape."""

CACHED: Final = "0"
"""The resource version that lets the server answer from its watch cache: cheap, and at most seconds old."""


class KubernetesApi:
    """The real API server, found by a kubeconfig file or from within a pod."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig
        self._client: kube.ApiClient | None = None

    async def aclose(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.close()

    async def list(self, resource: Resource, cached: bool, seconds: float, *, fresh: bool = False) -> Listing:
        """Return the collection as one page, so that all of it is of one version."""
        query = _selector(resource) | ({"resourceVersion": CACHED} if cached else {})
        async with AsyncExitStack() as stack:
            client = await self._connected()
            if fresh:
                client = await stack.enter_async_context(kube.ApiClient(client.configuration))
            timeout = aiohttp.ClientTimeout(seconds)
            response = await self._get(resource, "list", resource.path, query, timeout, client=client)
            async with response:
                body = await _json(response, resource)
        items = body.get("items")
        version = version_of(body)
        if not isinstance(items, list) or version < 0:
            # A partial answer must never be taken for an empty collection.
            raise ClusterError(f"the list of {resource} has no items or no resourceVersion")
        if len(items) > ITEMS_MAX:
            raise ClusterError(f"there are {len(items)} {resource}; at most {ITEMS_MAX} are allowed")
        return Listing(version, tuple(item for item in items if isinstance(item, dict)))

    async def watch(self, resource: Resource, version: int) -> AsyncGenerator[Event, None]:
        """Yield events; a silence of `SILENCE_SECONDS` counts as a dead connection."""
        query = _selector(resource) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        response = await self._get(resource, "watch", resource.path, query, timeout)
        async with response, aclosing(_lines(response, resource)) as lines:
            async for line in lines:
                yield _event(line, resource)

    async def exists(self, resource: Resource, key: Key, seconds: float) -> bool:
        """Ask for one object; a 404 that does not name it says nothing about it."""
        path = resource.object_path(key)
        timeout = aiohttp.ClientTimeout(seconds)
        response = await self._get(resource, "get", path, {}, timeout, allowed=404)
        async with response:
            body = await _json(response, resource)
        return not _is_absent(response, body, resource, key)

    async def read(self, resource: Resource, key: Key, seconds: float) -> Object | None:
        """
        Return an object, None if the server says that this very object is not there.

        Raises:
            ClusterError: it is not known whether it is there.
        """
        path = resource.object_path(key)
        response = await self._get(resource, "get", path, {}, aiohttp.ClientTimeout(seconds), allowed=404)
        async with response:
            body = await _json(response, resource)
        return None if _is_absent(response, body, resource, key) else body

    async def apply(self, resource: Resource, key: Key, item: Object, seconds: float) -> Object:
        """
        Create an object, or take over the fields that `item` holds (server-side apply); return all of it.

        Raises:
            ClusterError: it is not as asked for, as far as is known.
        """
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        path = resource.object_path(key)
        timeout = aiohttp.ClientTimeout(seconds)
        response = await self._ask("PATCH", resource, "patch", path, query, timeout, allowed=201, body=item)
        async with response:
            return await _json(response, resource)

    async def delete(self, resource: Resource, key: Key, seconds: float) -> bool:
        """
        Delete an object; False if there was none.

        Raises:
            ClusterError: it is still there, as far as is known.
        """
        timeout = aiohttp.ClientTimeout(seconds)
        path = resource.object_path(key)
        response = await self._ask("DELETE", resource, "delete", path, {}, timeout, allowed=404)
        async with response:
            body = await _json(response, resource)
        return not _is_absent(response, body, resource, key)

    async def _get(
        self,
        resource: Resource,
        verb: str,
        path: str,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        allowed: int = 200,
        client: kube.ApiClient | None = None,
    ) -> aiohttp.ClientResponse:
        return await self._ask("GET", resource, verb, path, query, timeout, allowed, client=client)

    async def _ask(
        self,
        method: str,
        resource: Resource,
        verb: str,
        path: str,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        allowed: int = 200,
        body: Object | None = None,
        client: kube.ApiClient | None = None,
    ) -> aiohttp.ClientResponse:
        client = client or await self._connected()
        headers = {"Accept": "application/json"} | ({"Content-Type": APPLY_TYPE} if body is not None else {})
        try:
            asked = await client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await client.call_api(*asked, _request_timeout=timeout)
        except TimeoutError as error:
            raise Silent(f"the API server does not answer about {resource} in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ClusterError(f"the API server cannot be asked for {resource}: {_said(error)}") from error
        response: aiohttp.ClientResponse = answer.response
        if response.status in (200, allowed):
            return response
        async with response:
            raise await _refusal(response, resource, verb)

    async def _connected(self) -> kube.ApiClient:
        if self._client is None:
            configuration = kube.Configuration()
            try:
                if self._kubeconfig is not None:
                    await load_kube_config(str(self._kubeconfig), client_configuration=configuration)
                else:
                    load_incluster_config(client_configuration=configuration)
                self._client = kube.ApiClient(configuration)
            except CONFIG_ERRORS as error:
                raise ClusterError(f"there is no way to the API server: {_said(error)}") from error
        return self._client


def _selector(resource: Resource) -> dict[str, str]:
    return {"labelSelector": resource.labels} if resource.labels else {}


def _is_absent(
    response: aiohttp.ClientResponse, body: Mapping[str, Any], resource: Resource, key: Key
) -> bool:
    """
    Say whether the server says that this very object is not there.

    Raises:
        ClusterError: it says that something is not there, but not what.
    """
    if response.status != 404:
        return False
    details = body.get("details") or {}
    if body.get("reason") == "NotFound" and details.get("name") == key.name:
        return True
    raise ClusterError(f"the API server does not say whether {resource} {key} exists")


async def _json(response: aiohttp.ClientResponse, resource: Resource) -> dict[str, Any]:
    try:
        data = bytearray()
        async for piece in response.content.iter_any():
            data += piece
            if len(data) > ANSWER_BYTES_MAX:
                raise ClusterError(f"the answer about {resource} is larger than {ANSWER_BYTES_MAX} bytes")
        body = json.loads(data)
    except TimeoutError as error:
        raise Silent(f"the answer about {resource} does not come to its end in time") from error
    except aiohttp.ClientError as error:
        raise ClusterError(f"the answer about {resource} broke off: {_said(error)}") from error
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ClusterError(f"the API server's answer about {resource} is no JSON object")
    return body


async def _lines(response: aiohttp.ClientResponse, resource: Resource) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a watch; aiohttp's own reader ends at 64 KiB, an object may be larger."""
    held = bytearray()
    try:
        async for piece in response.content.iter_any():
            held += piece
            *lines, rest = held.split(b"\n")
            held = bytearray(rest)
            if len(held) > LINE_BYTES_MAX:
                raise ClusterError(f"one event of {resource} is larger than {LINE_BYTES_MAX} bytes")
            for line in lines:
                if line.strip():
                    yield bytes(line)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ClusterError(f"the watch of {resource} broke off: {_said(error)}") from error


def _event(line: bytes, resource: Resource) -> Event:
    """
    Read one line of a watch.

    Raises:
        Expired: the line says that the version is too old.
        ClusterError: it says anything else that is no event.
    """
    try:
        body = json.loads(line)
        kind, item = body["type"], body["object"]
    except (ValueError, KeyError, TypeError):
        raise ClusterError(f"a line of the watch of {resource} is no event") from None
    if not isinstance(item, dict):
        raise ClusterError(f"an event of {resource} holds no object")
    if kind == "ERROR":
        failure = Expired if item.get("code") == 410 else ClusterError
        raise failure(f"the watch of {resource} ended: {_short(item.get('message'))}")
    if kind not in EventKind.__members__:
        raise ClusterError(f"the watch of {resource} sent an unknown kind of event")
    return Event(EventKind(kind), item)


async def _refusal(response: aiohttp.ClientResponse, resource: Resource, verb: str) -> ClusterError:
    try:
        body = await _json(response, resource)
    except ClusterError:
        body = {}
    said = _short(body.get("message")) or f"status {response.status}"
    if response.status in (401, 403):
        return Denied(f"the gateway may not {verb} {resource}: {said}")
    if response.status == 404:
        return NotServed(f"the API server does not serve {resource} ({resource.api_version}): {said}")
    if response.status == 410:
        return Expired(f"the version of {resource} is too old: {said}")
    return ClusterError(f"the API server refused to {verb} {resource}: {said}")


def _short(text: object) -> str:
    return text[:REASON_LENGTH_MAX] if isinstance(text, str) else ""


def _said(error: BaseException) -> str:
    return _short(str(error)) or type(error).__name__
