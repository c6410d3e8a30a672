"""The index of the suffix store against a simple model, over any sequence of what may happen to it."""

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sternpost_engine.buckets import Bucket
from sternpost_engine.index import Eviction, Found, State, SuffixIndex
from sternpost_engine.keys import TailKey, tail_key
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.tail_requests import IDENTITY

BUDGET_BYTES = 24
"""Room for six small tails, or three large ones."""

SHARES = {4: 8, 8: 12}
"""What each bucket keeps from the other, in bytes; the rest is for whoever comes first."""

KEYS = tuple(
    tail_key(replace(IDENTITY, epoch=epoch), [number] * length, lambda identity, tokens: tokens[0] % 2)
    for epoch in (1, 2)
    for number, length in enumerate((1, 2, 3, 4, 5, 6, 7, 8, 8))
)
"""More tails than fit, in two epochs, with rooms of 4 and 8 bytes, and with two hashes between them."""


@dataclass
class Tail:
    """The model's view of one tail."""

    key: TailKey
    bucket: int
    room: int
    last_read: float
    state: State = State.BUILDING
    references: int = 0


class IndexMachine(RuleBasedStateMachine):
    """Does to the index and to the model what a planner may do, and compares them after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.index = SuffixIndex(
            budget_bytes=BUDGET_BYTES,
            bytes_per_token=1,
            clock=self.clock,
            buckets=[Bucket(tokens, share / BUDGET_BYTES) for tokens, share in SHARES.items()],
        )
        self.tails: dict[int, Tail] = {}
        self.freed: list[int] = []
        self.handed_out: list[int] = []
        self.entries = 0

    # -- what may happen ------------------------------------------------------------------------------------

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds: int) -> None:
        """Time goes on, or stands still."""
        self.clock.advance(seconds)

    @rule(key=st.sampled_from(KEYS), copies=st.sampled_from((1, 1, 2, 3)))
    def begin(self, key: TailKey, copies: int) -> None:
        """Begin a tail that is not there, evicting as the model does."""
        if self.reachable(key) is not None:
            return
        bucket = 4 if key.length <= 4 else 8
        for entry in self.older(key):
            self.model_retire(entry)
        victims = self.victims(bucket, copies * bucket)
        record = self.index.begin(key, copies)

        assert (victims is None) == (record is None)
        if record is not None and victims is not None:
            for entry in victims:
                self.model_retire(entry)
            self.entries += 1
            assert self.entries == record.entry
            self.tails[record.entry] = Tail(key, bucket, copies * bucket, self.clock.monotonic())

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """A worker says that a tail is whole; it may be any, even one that has gone."""
        entry = data.draw(st.integers(1, self.entries + 1))
        self.index.complete(entry)
        tail = self.tails.get(entry)
        if tail is not None and tail.state is State.BUILDING:
            tail.state = State.LIVE

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        """A reader takes a live tail."""
        entry = data.draw(st.sampled_from(self.live()))
        self.index.acquire(entry)
        self.tails[entry].references += 1
        self.tails[entry].last_read = self.clock.monotonic()

    @precondition(lambda self: self.read())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """A reader lets go."""
        entry = data.draw(st.sampled_from(self.read()))
        self.index.release(entry)
        tail = self.tails[entry]
        tail.references -= 1
        if tail.state is State.RETIRED and tail.references == 0:
            self.model_free(entry)

    @rule(data=st.data(), reason=st.sampled_from(Eviction))
    def retire(self, data: st.DataObject, reason: Eviction) -> None:
        """A build fails or is given up, or a tail is not trusted any more."""
        entry = data.draw(st.integers(1, self.entries + 1))
        self.index.retire(entry, reason)
        self.model_retire(entry)

    @rule()
    def reset(self) -> None:
        """Everything stored becomes unreachable."""
        self.index.retire_all(Eviction.RESET)
        for entry in list(self.tails):
            self.model_retire(entry)

    @rule()
    def take_freed(self) -> None:
        """The workers are told what they may drop, in the order in which it was freed."""
        freed = self.index.take_freed()
        assert self.freed == freed
        self.handed_out += freed
        self.freed = []

    # -- what always holds ----------------------------------------------------------------------------------

    @invariant()
    def room_adds_up(self) -> None:
        """The room in use is that of all tails, and inside the budget."""
        assert sum(tail.room for tail in self.tails.values()) == self.index.used_bytes
        assert self.index.used_bytes <= BUDGET_BYTES
        assert {bucket: self.used(bucket) for bucket in SHARES} == self.index.used_by_bucket

    @invariant()
    def records_are_the_models(self) -> None:
        """States and references agree; no reference is negative."""
        assert {entry: (tail.state, tail.references) for entry, tail in self.tails.items()} == {
            record.entry: (record.state, record.references) for record in self.index.records()
        }
        assert all(record.references >= 0 for record in self.index.records())

    @invariant()
    def every_key_finds_its_own_tail(self) -> None:
        """At most one reachable tail per key; neither a retired nor a freed one is found."""
        for key in KEYS:
            lookup, entry = self.index.look_up(key), self.reachable(key)
            if entry is not None:
                expected = Found.LIVE if self.tails[entry].state is State.LIVE else Found.BUILDING
                assert (expected, entry) == (lookup.found, lookup.record and lookup.record.entry)
            else:
                assert None is lookup.record
                assert self.collides(key) == (lookup.found is Found.FALSE_HIT)

    @invariant()
    def nothing_in_use_is_freed(self) -> None:
        """A tail with a reader is still held."""
        assert not {*self.freed, *self.handed_out} & {*self.read()}

    def teardown(self) -> None:
        """In the end every tail that was begun has been freed, and handed out once."""
        self.reset()
        for entry in self.read():
            while self.index.record(entry) is not None:
                self.index.release(entry)
                self.tails[entry].references -= 1
            self.model_free(entry)
        self.take_freed()
        assert list(range(1, self.entries + 1)) == sorted(self.handed_out)
        assert 0 == self.index.used_bytes

    # -- the model ------------------------------------------------------------------------------------------

    def live(self) -> list[int]:
        """Entries that can be read."""
        return [entry for entry, tail in self.tails.items() if tail.state is State.LIVE]

    def read(self) -> list[int]:
        """Entries that have readers."""
        return [entry for entry, tail in self.tails.items() if tail.references]

    def reachable(self, key: TailKey) -> int | None:
        """The entry of the tail that `key` finds."""
        found = [
            entry
            for entry, tail in self.tails.items()
            if tail.key.same_tail(key) and tail.state is not State.RETIRED
        ]
        assert len(found) <= 1, "one tail per key"
        return found[0] if found else None

    def collides(self, key: TailKey) -> bool:
        """Whether another reachable tail has the same hash."""
        return any(
            tail.key.lookup == key.lookup and tail.state is not State.RETIRED for tail in self.tails.values()
        )

    def used(self, bucket: int) -> int:
        """A bucket's room in use."""
        return sum(tail.room for tail in self.tails.values() if tail.bucket == bucket)

    def older(self, key: TailKey) -> list[int]:
        """The live entries of the same tail under an older epoch."""
        return [
            entry
            for entry, tail in self.tails.items()
            if tail.key.tokens == key.tokens
            and tail.key.identity.epoch < key.identity.epoch
            and tail.state is State.LIVE
        ]

    def victims(self, bucket: int, room: int) -> list[int] | None:
        """
        The entries that make way for `room` bytes, or None when those that may be asked would not do.

        Each time whoever was read longest ago goes, of the buckets over their shares, else of the newcomer's.
        """
        used = {each: self.used(each) + (room if each == bucket else 0) for each in SHARES}
        idle = [entry for entry in self.live() if not self.tails[entry].references]
        victims: list[int] = []
        while sum(used.values()) > BUDGET_BYTES:
            over = [
                entry for entry in idle if used[self.tails[entry].bucket] > SHARES[self.tails[entry].bucket]
            ]
            own = [entry for entry in idle if self.tails[entry].bucket == bucket]
            if not over and not own:
                return None
            victim = min(over or own, key=lambda entry: (self.tails[entry].last_read, entry))
            idle.remove(victim)
            used[self.tails[victim].bucket] -= self.tails[victim].room
            victims.append(victim)
        return victims

    def model_retire(self, entry: int) -> None:
        """Retire in the model."""
        tail = self.tails.get(entry)
        if tail is not None and tail.state is not State.RETIRED:
            tail.state = State.RETIRED
            if not tail.references:
                self.model_free(entry)

    def model_free(self, entry: int) -> None:
        """Free in the model."""
        del self.tails[entry]
        self.freed.append(entry)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
