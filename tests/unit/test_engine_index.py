"""The index of the suffix store: each transition by itself."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sternpost_engine.buckets import Bucket
from sternpost_engine.index import Eviction, Found, Record, State, SuffixIndex
from sternpost_engine.keys import TailKey, tail_key
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.tail_requests import IDENTITY

BEYOND = 99
"""An entry that was never begun."""


def key_of(*tokens: int, lookup: int | None = None) -> TailKey:
    """Return the key of a tail; `lookup` forces its hash."""
    return tail_key(IDENTITY, tokens) if lookup is None else tail_key(IDENTITY, tokens, lambda *_: lookup)


def make_index(budget_bytes: int = 16, clock: FakeClock | None = None) -> SuffixIndex:
    """Return an index whose tokens are one byte each and whose rooms are 4 or 8 tokens."""
    return SuffixIndex(
        budget_bytes=budget_bytes,
        bytes_per_token=1,
        clock=clock or FakeClock(),
        buckets=(Bucket(8, 0.5), Bucket(4, 0.5)),
    )


def begun(index: SuffixIndex, *tokens: int, lookup: int | None = None) -> Record:
    """Begin a tail that there is room for."""
    record = index.begin(key_of(*tokens, lookup=lookup))
    assert record is not None, "there is room"
    return record


def live(index: SuffixIndex, *tokens: int, lookup: int | None = None) -> Record:
    """Begin and complete a tail that there is room for."""
    record = begun(index, *tokens, lookup=lookup)
    index.complete(record.entry)
    return record


def in_state(index: SuffixIndex, state: State) -> Record:
    """Bring a tail into a state; a retired one has a reader, or it would be freed."""
    record = begun(index, 1, 2, 3)
    if state is not State.BUILDING:
        index.complete(record.entry)
    if state is State.RETIRED:
        index.acquire(record.entry)
    if state in (State.RETIRED, State.FREED):
        index.retire(record.entry, Eviction.RESET)
    assert state is record.state
    return record


TRANSITIONS: dict[str, Callable[[SuffixIndex, int], object]] = {
    "complete": lambda index, entry: index.complete(entry),
    "retire": lambda index, entry: index.retire(entry, Eviction.FAILED),
    "retire_all": lambda index, entry: index.retire_all(Eviction.RESET),
    "acquire": lambda index, entry: index.acquire(entry),
    "release": lambda index, entry: index.release(entry),
}


@pytest.mark.parametrize(
    ("before", "transition", "after"),
    [
        pytest.param(State.BUILDING, "complete", State.LIVE, id="built"),
        pytest.param(State.BUILDING, "retire", State.FREED, id="build-given-up"),
        pytest.param(State.BUILDING, "retire_all", State.FREED, id="build-reset"),
        pytest.param(State.LIVE, "complete", State.LIVE, id="completed-twice"),
        pytest.param(State.LIVE, "acquire", State.LIVE, id="read"),
        pytest.param(State.LIVE, "retire", State.FREED, id="unread-retired"),
        pytest.param(State.LIVE, "retire_all", State.FREED, id="unread-reset"),
        pytest.param(State.RETIRED, "complete", State.RETIRED, id="completed-too-late"),
        pytest.param(State.RETIRED, "retire", State.RETIRED, id="retired-twice"),
        pytest.param(State.RETIRED, "retire_all", State.RETIRED, id="reset-twice"),
        pytest.param(State.RETIRED, "release", State.FREED, id="last-reader-lets-go"),
        pytest.param(State.FREED, "complete", State.FREED, id="completed-after-the-end"),
        pytest.param(State.FREED, "retire", State.FREED, id="retired-after-the-end"),
        pytest.param(State.FREED, "retire_all", State.FREED, id="reset-after-the-end"),
    ],
)
def test_transition(before: State, transition: str, after: State) -> None:
    """Every state answers every message that may reach it."""
    index = make_index()
    record = in_state(index, before)

    TRANSITIONS[transition](index, record.entry)

    assert after is record.state


@pytest.mark.parametrize(
    ("state", "transition", "error"),
    [
        pytest.param(State.BUILDING, "acquire", AssertionError, id="read-while-built"),
        pytest.param(State.RETIRED, "acquire", AssertionError, id="read-when-retired"),
        pytest.param(State.FREED, "acquire", KeyError, id="read-after-the-end"),
        pytest.param(State.BUILDING, "release", AssertionError, id="released-unread-build"),
        pytest.param(State.LIVE, "release", AssertionError, id="released-unread"),
        pytest.param(State.FREED, "release", KeyError, id="released-after-the-end"),
    ],
)
def test_transition_that_no_caller_may_ask_for(state: State, transition: str, error: type[Exception]) -> None:
    """A caller's mistake is loud: it would end in another request's answer."""
    index = make_index()
    record = in_state(index, state)

    with pytest.raises(error):
        TRANSITIONS[transition](index, record.entry)


@pytest.mark.parametrize("transition", ["complete", "retire"])
def test_answers_for_unknown_entries_are_ignored(transition: str) -> None:
    """A worker's answer may come after the tail has gone."""
    index = make_index()

    TRANSITIONS[transition](index, BEYOND)

    assert [] == index.take_freed()


@pytest.mark.parametrize(
    ("state", "found"),
    [
        pytest.param(State.BUILDING, Found.BUILDING, id="building"),
        pytest.param(State.LIVE, Found.LIVE, id="live"),
        pytest.param(State.RETIRED, Found.ABSENT, id="retired"),
        pytest.param(State.FREED, Found.ABSENT, id="freed"),
    ],
)
def test_lookup_finds_what_can_be_waited_for_or_read(state: State, found: Found) -> None:
    """A retired tail is never found again, even while a reader still holds it."""
    index = make_index()
    record = in_state(index, state)

    lookup = index.look_up(record.key)

    assert found is lookup.found
    assert (None if found is Found.ABSENT else record) is lookup.record


def test_lookup_tells_a_false_hit_from_a_miss() -> None:
    """An equal hash over other tokens is counted apart: it says that the hash collides."""
    index = make_index()
    live(index, 1, lookup=7)

    assert Found.FALSE_HIT is index.look_up(key_of(2, lookup=7)).found
    assert Found.ABSENT is index.look_up(key_of(2, lookup=8)).found


def test_tails_of_one_hash_live_side_by_side() -> None:
    """A collision costs neither of them its place."""
    index = make_index()
    first, second = live(index, 1, lookup=7), live(index, 2, lookup=7)

    assert first is index.look_up(key_of(1, lookup=7)).record
    assert second is index.look_up(key_of(2, lookup=7)).record

    index.retire(first.entry, Eviction.RESET)

    assert Found.FALSE_HIT is index.look_up(key_of(1, lookup=7)).found
    assert second is index.look_up(key_of(2, lookup=7)).record


def test_one_build_per_key() -> None:
    """Beginning what is already there is a caller's mistake."""
    index = make_index()
    begun(index, 1)

    with pytest.raises(AssertionError, match="one build per key"):
        index.begin(key_of(1))


def test_retired_key_may_be_built_anew_beside_its_last_reader() -> None:
    """The new tail is another entry; the old one goes when its reader is done."""
    index = make_index()
    old = in_state(index, State.RETIRED)

    new = live(index, 1, 2, 3)
    index.release(old.entry)

    assert [old.entry] == index.take_freed()
    assert new is index.look_up(old.key).record


@pytest.mark.parametrize(
    ("tokens", "room"),
    [(1, 4), (4, 4), (5, 8), (8, 8), (9, None)],
    ids=["least", "small-full", "large", "large-full", "too-long"],
)
def test_room_is_a_bucket(tokens: int, room: int | None) -> None:
    """A tail takes the room of the smallest bucket that holds it."""
    assert room == make_index().room_for(tokens)


@pytest.mark.parametrize(
    ("tokens", "copies", "room"),
    [
        pytest.param(3, 1, 4, id="as-it-was-built"),
        pytest.param(3, 5, 20, id="with-means"),
        pytest.param(5, 2, 16, id="a-larger-room-twice"),
        pytest.param(5, 3, None, id="one-copy-too-many"),
    ],
)
def test_every_copy_of_a_tail_takes_its_room(tokens: int, copies: int, room: int | None) -> None:
    """The budget holds for all that is stored, and all of it goes at once."""
    index = make_index(budget_bytes=20)

    record = index.begin(key_of(*range(tokens)), copies)

    assert room == (None if record is None else record.room_bytes)
    assert (room or 0) == index.used_bytes
    index.retire_all(Eviction.RESET)
    assert 0 == index.used_bytes


def test_copies_evict_no_more_than_they_need() -> None:
    """One tail with a copy takes the room of the two that were read longest ago."""
    clock = FakeClock()
    index = make_index(budget_bytes=12, clock=clock)
    records = []
    for number in range(3):
        records.append(live(index, number))
        clock.advance(1)

    assert None is not index.begin(key_of(9), 2)
    assert [records[0].entry, records[1].entry] == index.take_freed()


def test_tail_has_no_means_at_first() -> None:
    """The planner notes them as they become ready."""
    record = begun(make_index(), 1)

    assert (False, set()) == (record.calibrated, record.variants)


def test_tail_that_no_bucket_takes_is_not_begun() -> None:
    """It leaves the others alone, too."""
    index = make_index(budget_bytes=100)
    record = live(index, 1)

    assert None is index.begin(key_of(*range(9)))
    assert State.LIVE is record.state
    assert 8 == index.tokens_max


def test_least_recently_read_tails_make_room() -> None:
    """They go one by one, in the order of their last reading, and no more of them than needed."""
    clock = FakeClock()
    index = make_index(budget_bytes=16, clock=clock)
    records = [live(index, number) for number in range(4)]
    for position in (2, 0, 3, 1):
        clock.advance(1)
        index.acquire(records[position].entry)
        index.release(records[position].entry)

    begun(index, *range(10, 18))

    assert [records[2].entry, records[0].entry] == index.take_freed()
    assert {Eviction.BUDGET: 2} == index.evictions
    assert 16 == index.used_bytes


@pytest.mark.parametrize("state", [State.BUILDING, State.RETIRED], ids=str)
def test_tail_in_use_is_not_evicted(state: State) -> None:
    """A build, or a tail that is being read, keeps its room; the newcomer gets none."""
    index = make_index(budget_bytes=4)
    record = in_state(index, state)

    assert None is index.begin(key_of(9))
    assert state is record.state
    assert 4 == index.used_bytes


def test_nothing_is_evicted_for_a_tail_that_gets_no_room() -> None:
    """Emptying the store for nothing would cost its readers and help nobody."""
    index = make_index(budget_bytes=8)
    read, idle = live(index, 1), live(index, 2)
    index.acquire(read.entry)

    assert None is index.begin(key_of(*range(10, 18)))
    assert State.LIVE is idle.state
    assert {} == index.evictions


def test_freed_entry_is_handed_out_once() -> None:
    """Its tensors go once."""
    index = make_index()
    record = in_state(index, State.FREED)

    assert [record.entry] == index.take_freed()
    assert [] == index.take_freed()


def test_record_knows_its_times_and_hits() -> None:
    """Times are those of the index's own clock."""
    clock = FakeClock(monotonic=5)
    index = make_index(clock=clock)
    record = begun(index, 1, 2)
    clock.advance(1)
    index.complete(record.entry)
    clock.advance(1)
    index.acquire(record.entry)
    index.acquire(record.entry)

    assert (6, 7, 2, 2) == (record.last_write, record.last_read, record.hits, record.references)
    assert [record] == list(index.records())
    assert record is index.record(record.entry)
    assert 1 == index.inserts


def test_evictions_are_counted_once_by_reason() -> None:
    """Retiring what is retired counts nothing."""
    index = make_index()
    record = in_state(index, State.RETIRED)

    index.retire(record.entry, Eviction.FAILED)

    assert {Eviction.RESET: 1} == index.evictions


def test_each_bucket_keeps_its_share() -> None:
    """Many short tails never push out a long one that its bucket has room for."""
    clock = FakeClock()
    index = make_index(budget_bytes=16, clock=clock)
    long = live(index, *range(10, 18))
    for number in range(10):
        clock.advance(1)
        live(index, number)

    assert State.LIVE is long.state
    assert {4: 8, 8: 8} == index.used_by_bucket == index.share_bytes


def test_borrowed_room_is_given_back() -> None:
    """A bucket takes what others leave unused, and loses it, not more, when they want it."""
    clock = FakeClock()
    index = make_index(budget_bytes=16, clock=clock)
    short = []
    for number in range(4):
        short.append(live(index, number))
        clock.advance(1)
    assert {4: 16, 8: 0} == index.used_by_bucket

    live(index, *range(10, 18))

    assert {4: 8, 8: 8} == index.used_by_bucket
    assert [short[0].entry, short[1].entry] == index.take_freed()


def test_smaller_budget_holds_from_the_next_build_on() -> None:
    """What the workers say of their memory comes after the index is made."""
    clock = FakeClock()
    index = make_index(budget_bytes=16, clock=clock)
    for number in range(4):
        live(index, number)
        clock.advance(1)

    index.resize(8)
    newest = live(index, 9)

    assert (8, State.LIVE) == (index.used_bytes, newest.state)


@pytest.mark.parametrize(
    ("built", "wanted", "states"),
    [
        pytest.param(1, 2, (State.FREED, State.LIVE), id="newer"),
        pytest.param(2, 1, (State.LIVE, State.LIVE), id="older"),
    ],
)
def test_new_epoch_retires_the_same_tail_of_older_ones(
    built: int, wanted: int, states: tuple[State, State]
) -> None:
    """Epochs only grow, so nobody asks for the older one again; it would only hold room."""
    index = make_index()
    keys = [tail_key(replace(IDENTITY, epoch=epoch), [1, 2]) for epoch in (built, wanted)]
    records = []
    for key in keys:
        record = index.begin(key)
        assert record is not None
        index.complete(record.entry)
        records.append(record)

    assert states == (records[0].state, records[1].state)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"salt": "other"}, id="another-owner"),
        pytest.param({"scaffold": "other"}, id="another-scaffold"),
        pytest.param({"lora": "other"}, id="another-adapter"),
    ],
)
def test_new_epoch_leaves_other_tails_alone(changes: dict[str, str]) -> None:
    """One owner's epoch says nothing of another's."""
    index = make_index()
    other = index.begin(tail_key(replace(IDENTITY, **changes), [1, 2]))  # type: ignore[arg-type]
    assert other is not None
    index.complete(other.entry)

    index.begin(tail_key(replace(IDENTITY, epoch=IDENTITY.epoch + 1), [1, 2]))

    assert State.LIVE is other.state


def test_new_epoch_leaves_builds_alone() -> None:
    """A build of the older epoch is on its way to the workers; it ends as it would have."""
    index = make_index()
    older = index.begin(tail_key(IDENTITY, [1, 2]))

    index.begin(tail_key(replace(IDENTITY, epoch=IDENTITY.epoch + 1), [1, 2]))

    assert older is not None
    assert State.BUILDING is older.state


def test_wait_for_the_last_reader_is_measured() -> None:
    """From the retirement to the freeing; an unread tail waits for nobody."""
    clock = FakeClock()
    index = make_index(clock=clock)
    read, idle = live(index, 1), live(index, 2)
    index.acquire(read.entry)
    index.retire_all(Eviction.RESET)
    clock.advance(3)

    index.release(read.entry)

    assert [0, 3] == index.take_waits()
    assert [] == index.take_waits()
    assert State.FREED is idle.state
