"""An API server in memory: versions, conflicts, and rights that can be taken away."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sternpost_operator.kube import ApiUnavailable, Conflict, Forbidden, NotFound, Refused
from sternpost_operator.resources import Object, Resource

Address = tuple[str, str, str]
"""Plural, namespace and name."""


@dataclass(slots=True)
class FakeApi:
    """
    Holds objects; `forbidden` are rights such as "create events", `refused` what the server does not take.

    `calls` is every call with its right.
    """

    objects: dict[Address, dict[str, Any]] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    is_down: bool = False
    calls: list[str] = field(default_factory=list)
    _version: int = 0

    def add(self, resource: Resource, value: Object) -> dict[str, Any]:
        """Put an object there as if somebody else had made it."""
        self._version += 1
        added = copy.deepcopy(dict(value))
        metadata = added.setdefault("metadata", {})
        metadata.setdefault("uid", f"uid-{self._version}")
        metadata.setdefault("name", f"{metadata.get('generateName', '')}{self._version}")
        metadata.setdefault("creationTimestamp", f"2026-01-01T00:00:{self._version % 60:02d}Z")
        metadata.setdefault("generation", 1)
        metadata["resourceVersion"] = str(self._version)
        self.objects[_address(resource, added)] = added
        return copy.deepcopy(added)

    def of(self, resource: Resource) -> list[dict[str, Any]]:
        """Return all objects of a kind."""
        return [value for (plural, _, _), value in self.objects.items() if plural == resource.plural]

    async def list_all(self, resource: Resource, *, labels: str = "", namespace: str = "") -> list[Object]:
        """Return copies of the objects that are asked for."""
        self._call("list", resource)
        wanted = dict(pair.split("=", 1) for pair in labels.split(",")) if labels else {}
        return [
            copy.deepcopy(value)
            for value in self.of(resource)
            if wanted.items() <= value["metadata"].get("labels", {}).items()
            and namespace in ("", value["metadata"].get("namespace", ""))
        ]

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Return a copy of an object."""
        self._call("get", resource)
        value = self.objects.get((resource.plural, namespace, name))
        if value is None:
            raise NotFound(f"get {resource.full_plural}: {name}")
        return copy.deepcopy(value)

    async def create(self, resource: Resource, value: Object) -> Object:
        """Make an object."""
        self._call("create", resource)
        return self.add(resource, value)

    async def apply(self, resource: Resource, value: Object) -> Object:
        """Make an object, or replace it."""
        self._call("patch", resource)
        known = self.objects.get(_address(resource, value))
        kept = {key: known["metadata"][key] for key in ("uid",)} if known else {}
        status = {"status": known["status"]} if known and "status" in known else {}
        return self.add(resource, {**value, **status, "metadata": {**value["metadata"], **kept}})

    async def replace_status(self, resource: Resource, read: Object, status: Mapping[str, Any]) -> Object:
        """Replace a status, unless the object has changed since it was read."""
        self._call("update", resource, "/status")
        known = self.objects.get(_address(resource, read))
        if known is None:
            raise NotFound(f"update {resource.full_plural}/status")
        if known["metadata"]["resourceVersion"] != read["metadata"]["resourceVersion"]:
            raise Conflict(f"update {resource.full_plural}/status: the object has been modified")
        self._version += 1
        known["status"] = copy.deepcopy(dict(status))
        known["metadata"]["resourceVersion"] = str(self._version)
        return copy.deepcopy(known)

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object."""
        self._call("delete", resource)
        self.objects.pop((resource.plural, namespace, name), None)

    def _call(self, verb: str, resource: Resource, below: str = "") -> None:
        right = f"{verb} {resource.full_plural}{below}"
        self.calls.append(right)
        if self.is_down:
            raise ApiUnavailable(f"the API server did not answer to {right}")
        if right in self.forbidden:
            raise Forbidden(right, f'user "x" cannot {right}')
        if right in self.refused:
            raise Refused(right, "status 422: a field is immutable")


def _address(resource: Resource, value: Object) -> Address:
    metadata = value["metadata"]
    return resource.plural, metadata.get("namespace", ""), metadata["name"]
