"""The objects as they were last seen; decisions are made from here, so that looking costs no request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sternpost_operator.resources import POOL_LABEL, Key, Object, key_of

CLUTTER = ("managedFields",)
"""Parts of an object's metadata that nothing here reads, and that are most of its size."""


class Store:
    """Holds objects by kind, namespace and name; an older version never replaces a newer one."""

    def __init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._changes = 0
        # When each key last changed, back to the last full list of its kind.
        self._changed_at: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Object | None:
        """Return an object, or None where there is none."""
        return self._objects.get(key)

    def of_kind(self, kind: str) -> Iterator[Object]:
        """Yield all objects of a kind."""
        return (value for key, value in self._objects.items() if key.kind == kind)

    def of_pool(self, kind: str, namespace: str, pool: str) -> list[Object]:
        """Return the objects of a kind that a pool has rendered, by name."""
        found = [
            value
            for key, value in self._objects.items()
            if key.kind == kind
            and key.namespace == namespace
            and value["metadata"].get("labels", {}).get(POOL_LABEL) == pool
        ]
        return sorted(found, key=lambda value: str(value["metadata"]["name"]))

    def put(self, value: Object, kind: str) -> Key:
        """Take an object over, unless a newer version of it is known; return its key."""
        key = key_of(value, kind)
        known = self._objects.get(key)
        if known is None or _is_successor(known, value):
            self._objects[key] = _slim(value)
        self._note(key)
        return key

    def drop(self, key: Key) -> None:
        """Forget an object."""
        self._objects.pop(key, None)
        self._note(key)

    def mark(self) -> int:
        """Return a mark of now, by which `replace` knows what has changed since."""
        return self._changes

    def replace(self, kind: str, values: Iterable[Object], since: int) -> set[Key]:
        """
        Take a full list of a kind over; return the keys of all objects that came, changed or went.

        The list was asked for at the mark `since`. What a watch or a write has changed since is newer than
        the list, and stays: an object may have been made, or have gone, while the list was on its way.
        """
        before = self._keyed(kind)
        listed = {key_of(value, kind): value for value in values}
        newer = {key for key, at in self._changed_at.items() if key.kind == kind and at > since}
        for key in before.keys() - listed.keys() - newer:
            self.drop(key)
        for key in listed.keys() - newer:
            self.put(listed[key], kind)
        self._changed_at = {key: at for key, at in self._changed_at.items() if key.kind != kind}
        after = self._keyed(kind)
        keys = before.keys() | after.keys()
        return {key for key in keys if version_of(before.get(key)) != version_of(after.get(key))}

    def _keyed(self, kind: str) -> dict[Key, Object]:
        return {key: value for key, value in self._objects.items() if key.kind == kind}

    def _note(self, key: Key) -> None:
        self._changes += 1
        self._changed_at[key] = self._changes


def version_of(value: Object | None) -> str:
    """Return an object's resource version."""
    return str(value["metadata"].get("resourceVersion", "")) if value else ""


def _is_successor(known: Object, value: Object) -> bool:
    if known["metadata"].get("uid") != value["metadata"].get("uid"):
        return True
    older, newer = version_of(known), version_of(value)
    # Versions of one server are numbers that grow. What is no number cannot be compared, so the later counts.
    return not (older.isdigit() and newer.isdigit()) or int(newer) >= int(older)


def _slim(value: Object) -> Object:
    metadata: Mapping[str, Any] = value["metadata"]
    return {**value, "metadata": {key: item for key, item in metadata.items() if key not in CLUTTER}}
