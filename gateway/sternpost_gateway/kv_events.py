"""
vLLM's KV events: what an engine says it stores and evicts, as it happens.

The wire is that of vLLM 0.32: each message is a topic, a sequence number of 8 bytes and a MessagePack batch.
Numbers that are missing are asked for again from the engine's replay socket; numbers that go back mean
another start. Blocks are named by hashes of tokens, which the gateway does not know. What it takes from the
events is how much an engine holds, which bounds what is believed of it, and when it holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from sternpost_core.errors import OperatingError

HASHES_MAX: Final = 1_048_576
"""Blocks of one engine that are kept: with 16 tokens each, 16 million tokens."""

MEDIUM_GPU: Final = "GPU"
"""Where blocks must be to be reused at once; copies elsewhere are slower, and are not counted."""

FIRST_GROUP: Final = frozenset({None, 0})
"""Models with several kinds of attention tell of each block once for each kind."""


class KvEventsError(OperatingError):
    """A batch of events cannot be understood."""


class BlockStored(msgspec.Struct, tag=True):
    """Blocks that an engine holds now."""

    block_hashes: list[bytes | int]
    block_size: int
    medium: str | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    """Blocks that an engine holds no more."""

    block_hashes: list[bytes | int]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """The engine holds nothing."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvEventBatch(msgspec.Struct, array_like=True):
    """Events that belong together; `ts` is in Unix seconds."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


@dataclass(frozen=True, slots=True)
class Message:
    """One batch as it came, and its number."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    What a message changes.

    `replay_from` is the first number that is missing, None if none is. With `emptied`, all that was known is
    void. `held_tokens` are what the engine holds, None while that is not known for certain.
    """

    replay_from: int | None = None
    emptied: bool = False
    held_tokens: int | None = None


@dataclass(slots=True)
class Contents:
    """
    One engine's blocks, counted.

    `expected` is the next number, `published` the last one that came by itself rather than by a replay.
    `is_complete` says that nothing from before is unknown.
    """

    expected: int = 0
    published: int = -1
    is_complete: bool = True
    block_size: int = 0
    hashes: set[bytes | int] = field(default_factory=set)

    def take(self, message: Message) -> Change:
        """
        Take a message as it was published; one behind a gap is not taken, and comes again with the replay.

        Raises:
            KvEventsError: the batch cannot be understood.
        """
        restarted = message.sequence <= self.published
        self.published = message.sequence
        if restarted:
            self._reset(is_complete=True)
            self.expected = 0
        if message.sequence > self.expected:
            return Change(replay_from=self.expected, emptied=restarted)
        if message.sequence < self.expected:
            # A replay was faster.
            return Change(held_tokens=self._held_tokens())
        return self._advance(message, emptied=restarted)

    def take_replayed(self, message: Message) -> Change:
        """
        Take a message of a replay; what the engine does not have any more stays unknown until all is cleared.

        Raises:
            KvEventsError: the batch cannot be understood.
        """
        if message.sequence < self.expected:
            return Change(held_tokens=self._held_tokens())
        if message.sequence > self.expected:
            self._reset(is_complete=False)
        return self._advance(message, emptied=False)

    def _advance(self, message: Message, *, emptied: bool) -> Change:
        self.expected = message.sequence + 1
        cleared = sum(self._apply(event) for event in decode(message.payload).events) > 0
        return Change(emptied=emptied or cleared, held_tokens=self._held_tokens())

    def _reset(self, *, is_complete: bool) -> None:
        self.hashes.clear()
        self.is_complete = is_complete

    def _apply(self, event: KvEvent) -> bool:
        """Apply an event; return whether the engine holds nothing after it."""
        if isinstance(event, AllBlocksCleared):
            self._reset(is_complete=True)
            return True
        if event.medium not in (None, MEDIUM_GPU) or event.group_idx not in FIRST_GROUP:
            return False
        if isinstance(event, BlockRemoved):
            self.hashes.difference_update(event.block_hashes)
            return False
        self.block_size = event.block_size
        self.hashes.update(event.block_hashes)
        if len(self.hashes) > HASHES_MAX:
            self._reset(is_complete=False)
        return False

    def _held_tokens(self) -> int | None:
        return len(self.hashes) * self.block_size if self.is_complete else None


def decode(payload: bytes) -> KvEventBatch:
    """
    Read a batch; fields that a newer vLLM adds are passed over.

    Raises:
        KvEventsError: it is not a batch of the events that are known.
    """
    try:
        return msgspec.msgpack.decode(payload, type=KvEventBatch)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise KvEventsError(f"a batch of KV events cannot be understood: {error}") from None
