"""Which engine a request gets."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_gateway.errors import NoEngine
from sternpost_gateway.fleet import Engine
from sternpost_gateway.route import (
    Affinity,
    Candidate,
    LeastLoaded,
    Rendezvous,
    RoundRobin,
    Strategy,
    TailAffinity,
    is_over_bound,
    require_candidates,
)

ENGINES = [Engine(f"http://engine-{number}") for number in range(4)]


def candidates(*in_flight: int, holders: tuple[int, ...] = ()) -> list[Candidate]:
    """Return candidates with these numbers of requests in flight."""
    return [Candidate(ENGINES[index], count, index in holders) for index, count in enumerate(in_flight)]


def strategies() -> list[Strategy]:
    """Return one of each strategy."""
    chance = random.Random(1)
    return [RoundRobin(), LeastLoaded(chance), Rendezvous(), TailAffinity(chance)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.sampled_from([None, "key"]))
def test_every_strategy_chooses_a_candidate(in_flight: list[int], key: str | None) -> None:
    """Whatever the load, the choice is one of the candidates."""
    offered = candidates(*in_flight)

    for strategy in strategies():
        assert strategy.choose(offered, key).engine in [candidate.engine for candidate in offered]


def test_round_robin_takes_turns() -> None:
    """Each engine gets every n-th request."""
    strategy = RoundRobin()
    chosen = [strategy.choose(candidates(0, 9), None).engine for _ in range(4)]

    assert [ENGINES[0], ENGINES[1], ENGINES[0], ENGINES[1]] == chosen


def test_least_loaded_of_two_never_takes_the_worse() -> None:
    """Of two engines the less loaded one gets the request."""
    strategy = LeastLoaded(random.Random(3))

    assert {ENGINES[1]} == {strategy.choose(candidates(3, 1), None).engine for _ in range(50)}


def test_least_loaded_spreads_over_equals() -> None:
    """Of equally loaded engines all get their share."""
    strategy = LeastLoaded(random.Random(3))
    counts = Counter(strategy.choose(candidates(0, 0, 0, 0), None).engine for _ in range(400))

    assert all(count > 50 for count in counts.values()) and len(counts) == 4


def test_rendezvous_depends_on_the_key_alone() -> None:
    """Two gateways choose alike, in any order of the candidates and at any load."""
    ours = Rendezvous().choose(candidates(0, 0, 0, 0), "conversation").engine
    theirs = Rendezvous().choose(list(reversed(candidates(9, 5, 7, 2))), "conversation").engine

    assert ours == theirs


def test_affinity_prefers_the_holder() -> None:
    """An engine that holds the tail goes before the key's own."""
    chosen = {
        TailAffinity(random.Random(1)).choose(candidates(1, 1, 1, holders=(2,)), f"key-{number}").engine
        for number in range(20)
    }

    assert {ENGINES[2]} == chosen


def test_affinity_keeps_a_conversation_together() -> None:
    """Without a holder, one key goes to one engine, and many keys go to all."""
    strategy = TailAffinity(random.Random(1))
    homes = {
        key: {strategy.choose(candidates(0, 0, 0, 0), key).engine for _ in range(5)}
        for key in map(str, range(40))
    }

    assert all(len(home) == 1 for home in homes.values())
    assert 4 == len({engine for home in homes.values() for engine in home})


def test_affinity_spills_over_the_bound() -> None:
    """A holder that is far busier than the mean is passed over, for an engine under the bound."""
    choice = TailAffinity(random.Random(1)).choose(candidates(9, 0, 0, 0, holders=(0,)), "key")

    assert choice.engine != ENGINES[0]
    assert Affinity.SPILLED is choice.affinity


def test_affinity_without_a_key_is_least_loaded() -> None:
    """A request that belongs to no conversation goes where there is room."""
    choice = TailAffinity(random.Random(1)).choose(candidates(5, 0, holders=(0,)), None)

    assert (ENGINES[1], Affinity.NONE) == (choice.engine, choice.affinity)


@pytest.mark.parametrize(
    ("in_flight", "mean", "expected"),
    [
        pytest.param(4, 2.0, False, id="few-over-the-factor-within-the-margin"),
        pytest.param(5, 2.0, True, id="few-over-both"),
        pytest.param(25, 20.0, False, id="many-at-the-factor"),
        pytest.param(26, 20.0, True, id="many-over-the-factor"),
        pytest.param(0, 0.0, False, id="idle"),
    ],
)
def test_bound_needs_factor_and_margin(in_flight: int, mean: float, expected: bool) -> None:
    """An engine is over the bound when it is so by the factor and by the margin."""
    assert expected is is_over_bound(in_flight, mean)


def test_no_candidate_is_an_error() -> None:
    """Without a ready engine there is no choice."""
    with pytest.raises(NoEngine):
        require_candidates([])
