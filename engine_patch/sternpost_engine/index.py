"""
The index of the suffix store: which tails are held, in which state, and which must go.

The index decides and counts; it holds no tensor and imports no torch, so that every transition can be
tested. The worker that holds the tensors does what the index says, in the order in which it says it.

    building ──complete──> live ──retire──> retired ──last release──> freed
        └──────────────abort / retire──────────────────────────────────┘

Only a live tail can be read. A reader holds a reference from the step that copies the tail until that
step's output has been processed; a retired tail is freed when its last reader lets go.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from sternpost_core.clock import Clock
from sternpost_engine.buckets import EQUAL_BUCKETS, Bucket, Held, bucket_for, choose_victims
from sternpost_engine.keys import TailKey

WAITS_MAX: Final = 1000
"""So many waits are kept at most: nobody takes them where the engine's statistics are off."""


class State(StrEnum):
    """Where a stored tail is in its life."""

    BUILDING = "building"
    LIVE = "live"
    RETIRED = "retired"
    FREED = "freed"


class Eviction(StrEnum):
    """Why a tail was retired; the values are metric labels."""

    BUDGET = "budget"
    EPOCH = "epoch"
    FAILED = "failed"
    ABORTED = "aborted"
    RESET = "reset"
    SELF_TEST = "self_test"


class Found(StrEnum):
    """What a lookup found; the values are metric labels."""

    LIVE = "live"
    BUILDING = "building"
    ABSENT = "absent"
    FALSE_HIT = "false_hit"
    FOREIGN = "foreign"


@dataclass(slots=True)
class Record:
    """
    What the index knows about one stored tail.

    Times are seconds of the index's monotonic clock. `bucket` is the length of the bucket that the room is
    taken from. `calibrated` says that there is room for means, and `variants` are those that are ready.
    """

    entry: int
    key: TailKey
    bucket: int
    room_bytes: int
    state: State
    last_write: float
    last_read: float
    retired: float = 0.0
    hits: int = 0
    references: int = 0
    calibrated: bool = False
    variants: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A lookup's result, and the record where one was found live or building."""

    found: Found
    record: Record | None = None


class SuffixIndex:
    """
    Holds at most `budget_bytes` of tails; makes room by retiring those that nobody reads, oldest first.

    `bytes_per_token` is the size of one token's stored keys and values over all layers. Which bucket gives
    way to which is `choose_victims`'s to say.
    """

    def __init__(
        self,
        *,
        budget_bytes: int,
        bytes_per_token: int,
        clock: Clock,
        buckets: Sequence[Bucket] = EQUAL_BUCKETS,
    ) -> None:
        assert bytes_per_token > 0, "a token's KV has a size"
        self.budget_bytes = budget_bytes
        self.bytes_per_token = bytes_per_token
        self.evictions: Counter[Eviction] = Counter()
        self.inserts = 0
        self._clock = clock
        self._buckets = tuple(sorted(buckets, key=lambda bucket: bucket.tokens))
        self._used = {bucket.tokens: 0 for bucket in self._buckets}
        self._records: dict[int, Record] = {}
        self._by_lookup: dict[int, list[int]] = {}
        self._freed: list[int] = []
        self._waits: deque[float] = deque(maxlen=WAITS_MAX)
        self._next_entry = 1

    @property
    def used_bytes(self) -> int:
        """The room of all tails that are not freed, in bytes."""
        return sum(self._used.values())

    @property
    def begun(self) -> int:
        """How many builds have begun since the start."""
        return self._next_entry - 1

    @property
    def used_by_bucket(self) -> dict[int, int]:
        """The same for each bucket, by the bucket's length."""
        return dict(self._used)

    @property
    def share_bytes(self) -> dict[int, int]:
        """What the other buckets cannot take from each, in bytes, by the bucket's length."""
        return {bucket.tokens: int(bucket.share * self.budget_bytes) for bucket in self._buckets}

    @property
    def tokens_max(self) -> int:
        """The longest tail that a bucket takes."""
        return self._buckets[-1].tokens

    def resize(self, budget_bytes: int) -> None:
        """Set the budget; where more is held already, the next build makes it fit."""
        self.budget_bytes = budget_bytes

    def records(self) -> Iterator[Record]:
        """All records that are not freed."""
        return iter(self._records.values())

    def record(self, entry: int) -> Record | None:
        """The record of an entry that is not freed."""
        return self._records.get(entry)

    def room_for(self, tokens: int) -> int | None:
        """The bytes that a tail of so many tokens takes, or None when no bucket takes it."""
        bucket = bucket_for(self._buckets, tokens)
        return None if bucket is None else bucket.tokens * self.bytes_per_token

    def look_up(self, key: TailKey) -> Lookup:
        """Find the tail that `key` names; counts nothing and takes no reference."""
        entries = self._by_lookup.get(key.lookup, [])
        record = next(
            (self._records[entry] for entry in entries if self._records[entry].key.same_tail(key)), None
        )
        if record is not None:
            return Lookup(Found.LIVE if record.state is State.LIVE else Found.BUILDING, record)
        return Lookup(Found.FALSE_HIT if entries else Found.ABSENT)

    def begin(self, key: TailKey, copies: int = 1) -> Record | None:
        """
        Reserve room for a tail that is about to be built; None when there is no room to be had.

        `copies` is how often the tail's KV is held: once, or once more for each mean and for a sample. One
        build per key: the caller looks the key up first. The same tail of an older epoch is retired, where
        it is live: epochs only grow, and nobody will ask for it again.
        """
        assert self.look_up(key).record is None, "one build per key"
        self._retire_older(key)
        bucket = bucket_for(self._buckets, key.length)
        if bucket is None:
            return None
        room = bucket.tokens * self.bytes_per_token * copies
        if not self._make_room(bucket.tokens, room):
            return None
        now = self._clock.monotonic()
        record = Record(
            self._next_entry, key, bucket.tokens, room, State.BUILDING, last_write=now, last_read=now
        )
        self._next_entry += 1
        self._records[record.entry] = record
        self._by_lookup.setdefault(key.lookup, []).append(record.entry)
        self._used[bucket.tokens] += room
        return record

    def complete(self, entry: int) -> None:
        """The tail's KV is whole: readers may have it. Nothing happens when it was retired meanwhile."""
        record = self._records.get(entry)
        if record is not None and record.state is State.BUILDING:
            record.state = State.LIVE
            record.last_write = self._clock.monotonic()
            self.inserts += 1

    def acquire(self, entry: int) -> Record:
        """Take a reference on a live tail, count the hit, and return its record."""
        record = self._records[entry]
        assert record.state is State.LIVE, "only a live tail can be read"
        record.references += 1
        record.hits += 1
        record.last_read = self._clock.monotonic()
        return record

    def release(self, entry: int) -> None:
        """Give a reference back; the last one frees a retired tail."""
        record = self._records[entry]
        assert record.references > 0, "a reference is given back once"
        record.references -= 1
        if record.state is State.RETIRED and record.references == 0:
            self._free(record)

    def withdraw(self, entry: int) -> None:
        """Give back a reference of a read that did not take place: it is no hit."""
        self._records[entry].hits -= 1
        self.release(entry)

    def retire(self, entry: int, reason: Eviction) -> None:
        """Make a tail unreachable now and free it as soon as nobody reads it; unknown entries are ignored."""
        record = self._records.get(entry)
        if record is None or record.state is State.RETIRED:
            return
        self._unlink(record)
        record.state = State.RETIRED
        record.retired = self._clock.monotonic()
        self.evictions[reason] += 1
        if record.references == 0:
            self._free(record)

    def retire_all(self, reason: Eviction) -> None:
        """Make every tail unreachable."""
        for entry in list(self._records):
            self.retire(entry, reason)

    def take_freed(self) -> list[int]:
        """Return the entries freed since the last call: their tensors may go."""
        freed, self._freed = self._freed, []
        return freed

    def take_waits(self) -> list[float]:
        """Return the seconds that each tail freed since the last call waited for its last reader."""
        waits = list(self._waits)
        self._waits.clear()
        return waits

    def _retire_older(self, key: TailKey) -> None:
        for record in list(self._records.values()):
            identity = record.key.identity
            older = (
                replace(key.identity, epoch=identity.epoch) == identity and record.key.tokens == key.tokens
            )
            # One that is being built is left to its build, which would otherwise write to nothing.
            if older and identity.epoch < key.identity.epoch and record.state is State.LIVE:
                self.retire(record.entry, Eviction.EPOCH)

    def _make_room(self, bucket: int, room: int) -> bool:
        idle = sorted(
            (record for record in self._records.values() if _evictable(record)),
            key=lambda record: record.last_read,
        )
        victims = choose_victims(
            [Held(record.entry, record.bucket, record.room_bytes) for record in idle],
            bucket,
            used={**self._used, bucket: self._used[bucket] + room},
            shares=self.share_bytes,
            budget_bytes=self.budget_bytes,
        )
        for entry in victims or ():
            self.retire(entry, Eviction.BUDGET)
        return victims is not None

    def _unlink(self, record: Record) -> None:
        entries = self._by_lookup[record.key.lookup]
        entries.remove(record.entry)
        if not entries:
            del self._by_lookup[record.key.lookup]

    def _free(self, record: Record) -> None:
        record.state = State.FREED
        del self._records[record.entry]
        self._used[record.bucket] -= record.room_bytes
        self._freed.append(record.entry)
        self._waits.append(self._clock.monotonic() - record.retired)


def _evictable(record: Record) -> bool:
    return record.state is State.LIVE and record.references == 0
