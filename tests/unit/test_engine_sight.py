"""What an engine shows of its suffix store: sizes, states and ages, and nothing of what tails say."""

import json
from dataclasses import replace

from sternpost_engine.buckets import Bucket
from sternpost_engine.index import Eviction, Record, SuffixIndex
from sternpost_engine.keys import tail_key
from sternpost_engine.sight import TAILS_MAX, describe_pool, describe_tails
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.tail_requests import IDENTITY


def make_index(clock: FakeClock, budget_bytes: int = 64) -> SuffixIndex:
    """Return an index whose tokens are one byte each and whose rooms are 4 or 8 tokens."""
    buckets = [Bucket(4, 0.25), Bucket(8, 0.5)]
    return SuffixIndex(budget_bytes=budget_bytes, bytes_per_token=1, clock=clock, buckets=buckets)


def begun(index: SuffixIndex, *tokens: int, epoch: int = 7) -> Record:
    """Begin a tail that there is room for."""
    record = index.begin(tail_key(replace(IDENTITY, epoch=epoch), tokens))
    assert record is not None
    return record


def test_pool_shows_its_sizes_states_and_epochs() -> None:
    """Each bucket with what it holds and what it keeps."""
    clock = FakeClock()
    index = make_index(clock)
    live, retired = begun(index, 1), begun(index, 2, epoch=9)
    begun(index, *range(6))
    for record in (live, retired):
        index.complete(record.entry)
    index.acquire(retired.entry)
    index.retire(retired.entry, Eviction.RESET)

    assert {
        "pool_bytes": 16,
        "pool_budget_bytes": 64,
        "buckets": [
            {"tokens": 4, "pool_bytes": 8, "share_bytes": 16},
            {"tokens": 8, "pool_bytes": 8, "share_bytes": 32},
        ],
        "tails": {"building": 1, "live": 1, "retired": 1},
        "epochs": [7, 9],
    } == describe_pool(index)


def test_tail_shows_its_state_and_ages() -> None:
    """Ages, because the clock that they are measured by means nothing elsewhere."""
    clock = FakeClock(monotonic=100)
    index = make_index(clock)
    record = begun(index, 1, 2, 3)
    index.complete(record.entry)
    clock.advance(5)
    index.acquire(record.entry)
    clock.advance(2)

    assert {
        "tails": [
            {
                "key": f"{record.key.lookup:016x}",
                "tokens": 3,
                "state": "live",
                "hits": 1,
                "readers": 1,
                "read_seconds_ago": 2,
                "written_seconds_ago": 7,
                "epoch": 7,
                "bytes": 4,
                "mode": "rotate",
                "kind": "chat",
                "correction": "none",
                "means": 0,
            }
        ],
        "left_off": 0,
    } == describe_tails(index, clock.monotonic())


def test_nothing_of_a_tails_content_or_owner_is_shown() -> None:
    """Neither token ids nor the salt that tells tenants apart; whoever reads metrics reads this."""
    clock = FakeClock()
    index = make_index(clock)
    tokens = (48_611, 48_612, 48_613)
    record = index.begin(tail_key(replace(IDENTITY, salt="tenant-salt", scaffold="5caff01d"), tokens))
    assert record is not None

    shown = json.dumps([describe_pool(index), describe_tails(index, clock.monotonic())])

    assert [] == [secret for secret in (*map(str, tokens), "tenant-salt", "5caff01d") if secret in shown]


def test_long_list_is_cut_where_tails_were_read_longest_ago() -> None:
    """The answer stays small, and says what it leaves off."""
    clock = FakeClock()
    index = make_index(clock, budget_bytes=4 * (TAILS_MAX + 3))
    for number in range(TAILS_MAX + 3):
        begun(index, number)
        clock.advance(1)

    shown = describe_tails(index, clock.monotonic())

    assert (TAILS_MAX, 3) == (len(shown["tails"]), shown["left_off"])
    assert [1, 2, 3] == [tail["read_seconds_ago"] for tail in shown["tails"][:3]]
