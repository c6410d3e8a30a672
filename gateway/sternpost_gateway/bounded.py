"""Mappings of bounded size, for everything that grows with traffic."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

ENTRY_SIZE: Final = 128
"""What an entry takes beside its key and value, about, in bytes."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Bounded(Generic[Key, Value]):
    """A mapping that forgets the least recently used beyond `entries_max`."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """Return the value and count that as a use."""
        try:
            self._entries.move_to_end(key)
        except KeyError:
            return None
        return self._entries[key]

    def put(self, key: Key, value: Value) -> None:
        """Set the value; the least recently used goes."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def drop(self, key: Key) -> None:
        """Forget a value if it is there."""
        self._entries.pop(key, None)

    def values(self) -> tuple[Value, ...]:
        """Return all values, least recently used first."""
        return tuple(self._entries.values())

    def items(self) -> tuple[tuple[Key, Value], ...]:
        """Return all keys and values, least recently used first."""
        return tuple(self._entries.items())

    def __len__(self) -> int:
        return len(self._entries)


class BoundedSize(Generic[Key, Value]):
    """
    A mapping that forgets the least recently used while all sizes together are over `size_max`.

    Each entry counts `ENTRY_SIZE` on top of its own size, so that there are never too many small ones.
    """

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self._size_max = size_max
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """Return the value and count that as a use."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Set the value; what is larger than all may be is not kept."""
        _, size_before = self._entries.pop(key, (None, 0))
        self._entries[key] = (value, size + ENTRY_SIZE)
        self.size += size + ENTRY_SIZE - size_before
        while self.size > self._size_max:
            _, (_, size_gone) = self._entries.popitem(last=False)
            self.size -= size_gone

    def __len__(self) -> int:
        return len(self._entries)
