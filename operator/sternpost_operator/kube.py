"""
The API server, as the operator needs it: objects as JSON, and errors that name what is not allowed.

This is the only module that knows the client; its exceptions are mapped here, once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

import aiohttp
import yaml
from kubernetes.aio import client, config

from sternpost_core.errors import OperatingError
from sternpost_operator.resources import Object, Resource

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
FIELD_MANAGER: Final = "sternpost-operator"
MESSAGE_LENGTH_MAX: Final = 512
PAGE_SIZE: Final = 500
PAGES_MAX: Final = 200
"""Pages of one list: more objects than a control plane of this kind is for."""

STATUS_FORBIDDEN: Final = 403
STATUS_NOT_FOUND: Final = 404
STATUS_CONFLICT: Final = 409
STATUS_GONE: Final = 410

CONFIG_ERRORS: Final = (
    config.ConfigException,
    yaml.YAMLError,
    OSError,
    ValueError,
    AttributeError,
    KeyError,
    TypeError,
)
"""What the library raises for a kubeconfig that is missing, no YAML, or of another shape."""


class ApiFailed(OperatingError):
    """The API server did not do what it was asked for."""


class ApiUnavailable(ApiFailed):
    """The API server did not answer, or not now."""


class Conflict(ApiFailed):
    """The object has changed since it was read, or there is one already."""


class NotFound(ApiFailed):
    """There is no such object, or no such resource."""


class Forbidden(ApiFailed):
    """A permission is missing; `permission` is verb and resource, such as "create statefulsets.apps"."""

    def __init__(self, permission: str, message: str) -> None:
        self.permission = permission
        super().__init__(f"the operator may not {permission}: {message}")


class Refused(ApiFailed):
    """The server does not take what it was given; `permission` is verb and resource of what was tried."""

    def __init__(self, permission: str, message: str) -> None:
        self.permission = permission
        super().__init__(f"{permission}: {message}")


class Api(Protocol):
    """
    What is asked of an API server.

    Every method raises `ApiFailed` or one of the errors below it.
    """

    async def list_all(self, resource: Resource, *, labels: str = "", namespace: str = "") -> list[Object]:
        """Return all objects of a kind, those with some labels, or those of a namespace."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Return an object."""

    async def create(self, resource: Resource, value: Object) -> Object:
        """Make an object."""

    async def apply(self, resource: Resource, value: Object) -> Object:
        """Make an object, or bring the fields that are named to their values."""

    async def replace_status(self, resource: Resource, read: Object, status: Mapping[str, Any]) -> Object:
        """Replace the status of an object as it was read; a `Conflict` if it has changed since."""

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object."""


class KubeApi:
    """An `Api` over HTTP; `calls` counts requests by verb and resource."""

    def __init__(self, api: client.ApiClient, timeout_seconds: float, on_call: OnCall) -> None:
        self._api = api
        self._timeout_seconds = timeout_seconds
        self._on_call = on_call

    async def list_all(self, resource: Resource, *, labels: str = "", namespace: str = "") -> list[Object]:
        query = [("limit", str(PAGE_SIZE)), *([("labelSelector", labels)] if labels else [])]
        found: list[Object] = []
        token = ""
        for _ in range(PAGES_MAX):
            page = [*query, *([("continue", token)] if token else [])]
            answer = await self._call("list", "GET", resource, resource.path(namespace), query=page)
            items, metadata = answer.get("items"), answer.get("metadata")
            if not isinstance(items, list) or not isinstance(metadata, dict):
                # A part of an answer must not be taken for an empty list.
                raise ApiUnavailable(f"the list of {resource.full_plural} has no items, or no metadata")
            found += items
            token = metadata.get("continue", "")
            if not token:
                return found
        raise ApiFailed(f"there are more than {PAGE_SIZE * PAGES_MAX} {resource.full_plural}")

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return await self._call("get", "GET", resource, resource.path(namespace, name))

    async def create(self, resource: Resource, value: Object) -> Object:
        path = resource.path(value["metadata"].get("namespace"))
        return await self._call("create", "POST", resource, path, body=value)

    async def apply(self, resource: Resource, value: Object) -> Object:
        metadata = value["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"])
        # The operator is the one writer of what it renders, so it takes fields over from whoever had them.
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
        return await self._call("patch", "PATCH", resource, path, APPLY_PATCH, value, query)

    async def replace_status(self, resource: Resource, read: Object, status: Mapping[str, Any]) -> Object:
        metadata = read["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"], "status")
        whole = {**read, "status": dict(status)}
        return await self._call("update", "PUT", resource, path, body=whole, subresource="status")

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        body = {"propagationPolicy": "Background"}
        await self._call("delete", "DELETE", resource, resource.path(namespace, name), body=body)

    async def _call(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        content_type: str = "application/json",
        body: Object | None = None,
        query: list[tuple[str, str]] | None = None,
        subresource: str = "",
    ) -> dict[str, Any]:
        permission = f"{verb} {resource.full_plural}{f'/{subresource}' if subresource else ''}"
        headers = {"Accept": "application/json", "Content-Type": content_type}
        self._on_call(verb, resource.plural)
        try:
            request = await self._api.param_serialize(
                method, path, query_params=query or [], header_params=headers, body=body, auth_settings=AUTH
            )
            response = await self._api.call_api(*request, _request_timeout=self._timeout_seconds)
            data = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(f"the API server did not answer to {permission}: {error!r}") from error
        if response.status >= 400:
            raise _error_of(response.status, permission, data)
        return _object(data, permission)


class OnCall(Protocol):
    """Told about each request."""

    def __call__(self, verb: str, resource: str) -> None:
        """Count it."""


AUTH: Final = ["BearerToken"]
"""The name under which the client keeps whatever credentials it has."""


async def connect(kubeconfig: str | None) -> client.ApiClient:
    """
    Return a client for the cluster of a kubeconfig, or, without one, for the cluster that this runs in.

    Raises:
        OperatingError: there are no credentials, or they cannot be read.
    """
    configuration = client.Configuration()
    # Proxies of the environment are for the internet, not for the cluster's own API server.
    configuration.client_session_kwargs = {"trust_env": False}
    try:
        if kubeconfig:
            await config.load_kube_config(kubeconfig, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
        return client.ApiClient(configuration)
    except CONFIG_ERRORS as error:
        where = f" by {kubeconfig}" if kubeconfig else ""
        raise OperatingError(
            f"no access to a cluster{where}: {error}; give a kubeconfig by KUBECONFIG"
        ) from error


def _object(data: bytes, permission: str) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        # Whatever stands between has answered in its place, and will not for ever.
        raise ApiUnavailable(f"the answer to {permission} is no JSON object")
    return answer


def _error_of(status: int, permission: str, data: bytes) -> ApiFailed:
    message = _message(data)
    if status == STATUS_FORBIDDEN:
        return Forbidden(permission, message)
    if status == STATUS_NOT_FOUND:
        return NotFound(f"{permission}: {message}")
    if status == STATUS_CONFLICT:
        return Conflict(f"{permission}: {message}")
    if status >= 500 or status in (STATUS_GONE, 429):
        return ApiUnavailable(f"{permission}: status {status}: {message}")
    return Refused(permission, f"status {status}: {message}")


def _message(data: bytes) -> str:
    try:
        answer = json.loads(data)
    except ValueError:
        return data[:MESSAGE_LENGTH_MAX].decode(errors="replace")
    said = answer.get("message", answer) if isinstance(answer, dict) else answer
    return str(said)[:MESSAGE_LENGTH_MAX]
