"""Of requests that begin alike, one computes what they share."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from sternpost_gateway.fleet import Engine
from sternpost_gateway.single_flight import (
    RELEASE_JITTER,
    RELEASE_SECONDS,
    WAIT_SECONDS_MAX,
    SingleFlight,
)

ENGINE, OTHER = Engine("http://engine"), Engine("http://other")
BLOCKS = [b"a", b"b", b"c"]


def test_leader_is_found_by_any_of_its_blocks_on_its_engine() -> None:
    """A prompt that shares only a part follows as well; another engine computes for itself."""
    flights = SingleFlight(random.Random(1))
    leader = flights.lead(ENGINE, BLOCKS, 1.0)

    assert [leader] * 3 == [flights.leader_of(ENGINE, block) for block in BLOCKS]
    assert (None, None) == (flights.leader_of(ENGINE, b"d"), flights.leader_of(OTHER, b"a"))


def test_ended_leader_is_followed_by_nobody() -> None:
    """What another leads meanwhile stays led, and nothing is kept."""
    flights = SingleFlight(random.Random(1))
    first = flights.lead(ENGINE, BLOCKS[:2], 1.0)
    second = flights.lead(ENGINE, BLOCKS, 1.0)
    flights.end(first)
    left = [flights.leader_of(ENGINE, block) for block in BLOCKS]
    flights.end(second)
    flights.end(second)

    assert ([None, None, second], 0) == (left, len(flights))


@pytest.mark.parametrize(
    ("prefill_seconds", "expected"),
    [
        pytest.param(1.0, 1.5, id="half-again-the-prefill"),
        pytest.param(60.0, WAIT_SECONDS_MAX, id="at-most-the-maximum"),
    ],
)
def test_wait_is_bounded(prefill_seconds: float, expected: float) -> None:
    """Nobody waits much longer than the leader ought to take."""
    flights = SingleFlight(random.Random(1))

    assert expected == flights.wait_seconds(flights.lead(ENGINE, BLOCKS, prefill_seconds))


def test_followers_that_waited_in_vain_go_one_after_the_other() -> None:
    """A quarter of a second lies between two, more or less, so that they do not come as a herd."""
    flights = SingleFlight(random.Random(1))
    leader = flights.lead(ENGINE, BLOCKS, 1.0)
    released = [flights.release_at(leader, 10.0) for _ in range(20)]
    gaps = [later - earlier for earlier, later in pairwise(released)]

    assert 10.0 == released[0]
    assert RELEASE_SECONDS * (1 - RELEASE_JITTER) <= min(gaps) < max(gaps)
    assert max(gaps) <= RELEASE_SECONDS * (1 + RELEASE_JITTER)
