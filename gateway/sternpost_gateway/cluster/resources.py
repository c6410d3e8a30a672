"""What is mirrored from the API server: the resources, and what a list or a watch of them says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from sternpost_core.kill import KILL_SWITCH_KIND
from sternpost_core.policy import POLICY_KIND
from sternpost_core.pool import POOL_KIND
from sternpost_core.reader import API_VERSION

Object = Mapping[str, Any]
"""An object as the API server sends it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One collection of the API, of all namespaces or of one; `labels` is a selector as text."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    namespace: str | None = None
    labels: str = ""

    @property
    def path(self) -> str:
        """The collection's path below the server's address."""
        root = "/api" if "/" not in self.api_version else "/apis"
        place = f"/namespaces/{self.namespace}" if self.namespace and self.namespaced else ""
        return f"{root}/{self.api_version}{place}/{self.plural}"

    def object_path(self, key: Key) -> str:
        """Return the path of one object."""
        namespace = key.namespace if self.namespaced else None
        return f"{replace(self, namespace=namespace).path}/{key.name}"

    def __str__(self) -> str:
        return f"{self.plural} in {self.namespace}" if self.namespace and self.namespaced else self.plural


POLICIES: Final = Resource(API_VERSION, POLICY_KIND, "cachepolicies")
POOLS: Final = Resource(API_VERSION, POOL_KIND, "enginepools")
SWITCHES: Final = Resource(API_VERSION, KILL_SWITCH_KIND, "cachekillswitches", namespaced=False)
PODS: Final = Resource("v1", "Pod", "pods")


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """An object's place in its collection; the namespace of a cluster-scoped one is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Listing:
    """A collection at one version."""

    version: int
    items: tuple[Object, ...]


class EventKind(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a watch; a bookmark's object holds a version and nothing else."""

    kind: EventKind
    item: Object


def key_of(item: Object) -> Key:
    """Return an object's place."""
    metadata = item.get("metadata") or {}
    return Key(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))


def version_of(item: Object) -> int:
    """
    Return an object's resource version, -1 where there is none.

    Resource versions of one server are etcd's revisions: numbers that only grow, so that two of them tell
    which is newer. Newer servers promise this comparison.
    """
    text = str((item.get("metadata") or {}).get("resourceVersion") or "")
    return int(text) if text.isascii() and text.isdigit() else -1
