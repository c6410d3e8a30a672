"""Which engine a request gets."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.keys import rendezvous_rank
from sternpost_gateway.errors import NoEngine
from sternpost_gateway.fleet import Engine
from sternpost_gateway.route import (
    AWAY_TOKENS,
    Affinity,
    Candidate,
    Demand,
    LeastCost,
    LeastLoaded,
    Rendezvous,
    RoundRobin,
    Strategy,
    is_over_bound,
    require_candidates,
    within_bounds,
)

ENGINES = [Engine(f"http://engine-{number}") for number in range(4)]
ANYONE = Demand(None)
CHAT = Demand("key", 2000.0)
RATE = 1000.0


def candidates(*in_flight: int, reuse: dict[int, float] | None = None, **fields: float) -> list[Candidate]:
    """Return candidates with these numbers of requests in flight, and what some of them hold."""
    held = reuse or {}
    return [
        Candidate(ENGINES[index], count, held.get(index, 0.0), prefill_rate=RATE, **fields)
        for index, count in enumerate(in_flight)
    ]


def strategies() -> list[Strategy]:
    """Return one of each strategy."""
    chance = random.Random(1)
    return [RoundRobin(), LeastLoaded(chance), Rendezvous(), LeastCost(chance)]


def least_cost() -> LeastCost:
    """Return the strategy of a gateway."""
    return LeastCost(random.Random(1))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 3000)), min_size=1, max_size=4),
    st.sampled_from([None, "key"]),
)
def test_every_strategy_chooses_a_candidate(offers: list[tuple[int, float]], key: str | None) -> None:
    """Whatever load and reuse, the choice is one of the candidates."""
    offered = candidates(
        *(in_flight for in_flight, _ in offers),
        reuse={index: tokens for index, (_, tokens) in enumerate(offers)},
    )

    for strategy in strategies():
        chosen = strategy.choose(offered, Demand(key, 2000.0)).engine
        assert chosen in [candidate.engine for candidate in offered]


def test_round_robin_takes_turns() -> None:
    """Each engine gets every n-th request."""
    strategy = RoundRobin()
    chosen = [strategy.choose(candidates(0, 9), ANYONE).engine for _ in range(4)]

    assert [ENGINES[0], ENGINES[1], ENGINES[0], ENGINES[1]] == chosen


def test_least_loaded_of_two_never_takes_the_worse() -> None:
    """Of two engines the less loaded one gets the request."""
    strategy = LeastLoaded(random.Random(3))

    assert {ENGINES[1]} == {strategy.choose(candidates(3, 1), ANYONE).engine for _ in range(50)}


def test_least_loaded_spreads_over_equals() -> None:
    """Of equally loaded engines all get their share."""
    strategy = LeastLoaded(random.Random(3))
    counts = Counter(strategy.choose(candidates(0, 0, 0, 0), ANYONE).engine for _ in range(400))

    assert all(count > 50 for count in counts.values()) and len(counts) == 4


def test_rendezvous_depends_on_the_key_alone() -> None:
    """Two gateways choose alike, in any order of the candidates and at any load."""
    ours = Rendezvous().choose(candidates(0, 0, 0, 0), CHAT).engine
    theirs = Rendezvous().choose(list(reversed(candidates(9, 5, 7, 2))), CHAT).engine

    assert ours == theirs


def test_reuse_decides_where_load_is_equal() -> None:
    """Whatever the key, the engine that holds most of the prompt gets the request."""
    offered = candidates(1, 1, 1, reuse={1: 500.0, 2: 1500.0})
    choices = {least_cost().choose(offered, Demand(f"key-{number}", 2000.0)) for number in range(20)}

    assert [(ENGINES[2], Affinity.HELD)] == [(choice.engine, choice.affinity) for choice in choices]


def test_waiting_prefills_count_against_reuse() -> None:
    """An engine that has more to compute first than it would spare is left alone."""
    busy = Candidate(ENGINES[0], 1, 1500.0, ahead_tokens=4000.0, prefill_rate=RATE)
    idle = Candidate(ENGINES[1], 1, 0.0, ahead_tokens=0.0, prefill_rate=RATE)
    choice = least_cost().choose([busy, idle], CHAT)

    assert (ENGINES[1], Affinity.SPILLED) == (choice.engine, choice.affinity)


def test_faster_engine_answers_first() -> None:
    """Costs are seconds: an engine of twice the rate may have twice as much to do."""
    slow = Candidate(ENGINES[0], 0, 500.0, prefill_rate=RATE)
    fast = Candidate(ENGINES[1], 0, 400.0, prefill_rate=10 * RATE)

    assert ENGINES[1] == least_cost().choose([slow, fast], CHAT).engine


def test_equal_costs_are_told_apart_by_the_key() -> None:
    """Where all hold as much, a conversation stays at one engine, and many spread over all."""
    offered = candidates(0, 0, 0, 0, reuse=dict.fromkeys(range(4), 1000.0))
    homes = {
        key: {least_cost().choose(offered, Demand(key, 2000.0)).engine for _ in range(3)}
        for key in map(str, range(40))
    }

    assert all(len(home) == 1 for home in homes.values())
    assert 4 == len({engine for home in homes.values() for engine in home})


def test_holder_over_the_bound_is_passed_over_for_this_request_alone() -> None:
    """A hot engine gets no more of what it holds, and another conversation keeps its own engine."""
    hot = candidates(15, 0, 0, 0, reuse={0: 1500.0})
    other = candidates(15, 0, 0, 0, reuse={2: 1500.0})
    choices = [least_cost().choose(offered, CHAT) for offered in (hot, other)]

    assert ENGINES[0] != choices[0].engine and Affinity.SPILLED is choices[0].affinity
    assert (ENGINES[2], Affinity.HELD) == (choices[1].engine, choices[1].affinity)


@pytest.mark.parametrize(
    ("in_flight", "reuse", "expected"),
    [
        pytest.param(2, 0.0, True, id="two-above-the-mean"),
        pytest.param(3, 0.0, False, id="three-above-the-mean"),
        pytest.param(9, 2048.0, True, id="many-above-that-would-be-cold-elsewhere"),
        pytest.param(14, 2048.0, False, id="more-than-their-reuse-is-worth"),
    ],
)
def test_margin_grows_with_what_another_engine_would_compute(
    in_flight: int, reuse: float, expected: bool
) -> None:
    """To wait for a few requests that compute little beats computing a long prefix again."""
    offered = candidates(in_flight, 0, 0, 0, reuse={0: reuse})

    assert expected is (offered[0] in within_bounds(offered))


def test_engine_that_was_sent_too_much_lately_is_passed_over() -> None:
    """Bursts that are over soon add up: what is in flight at the moment does not show them."""
    offered = [
        Candidate(engine, 0, 1500.0 if engine == ENGINES[0] else 0.0, recent=recent, prefill_rate=RATE)
        for engine, recent in zip(ENGINES, (40.0, 20.0, 20.0, 20.0), strict=True)
    ]
    choice = least_cost().choose(offered, CHAT)

    assert choice.engine != ENGINES[0] and Affinity.SPILLED is choice.affinity


def test_burst_waits_for_a_prefix_that_is_being_computed() -> None:
    """To compute it on another engine, too, would take no longer, and cost twice as much."""
    computing = Candidate(ENGINES[0], 3, 1900.0, ahead_tokens=2000.0, prefill_rate=RATE)
    idle = Candidate(ENGINES[1], 0, 0.0, prefill_rate=RATE)

    assert ENGINES[0] == least_cost().choose([computing, idle], CHAT).engine


@pytest.mark.parametrize(
    "reuse",
    [
        pytest.param({}, id="nothing"),
        pytest.param({3: 63.0}, id="hardly-a-token"),
        pytest.param({3: 39.0, 2: 30.0}, id="hardly-a-share"),
    ],
)
def test_miss_gets_the_less_loaded_of_the_keys_two_engines(reuse: dict[int, float]) -> None:
    """Of the two engines of the highest rank the less loaded one is chosen, at every gateway alike."""
    first, second = sorted(ENGINES, key=lambda engine: -rendezvous_rank("key", engine.url))[:2]
    at_rest = least_cost().choose(candidates(0, 0, 0, 0, reuse=reuse), CHAT)
    loads = [2 if engine == first else 1 for engine in ENGINES]
    loaded = LeastCost(random.Random(9)).choose(candidates(*loads, reuse=reuse), CHAT)

    assert (first, Affinity.MISSED) == (at_rest.engine, at_rest.affinity)
    assert (second, Affinity.MISSED) == (loaded.engine, loaded.affinity)


@pytest.mark.parametrize(
    ("ahead", "stays"),
    [
        pytest.param(AWAY_TOKENS, True, id="a-little-more-to-do"),
        pytest.param(AWAY_TOKENS + 1.0, False, id="much-more-to-do"),
    ],
)
def test_miss_leaves_the_keys_two_engines_for_one_with_much_less_to_do(ahead: float, stays: bool) -> None:
    """That another gateway may have sent the conversation there is worth a short wait, and no more."""
    own = sorted(ENGINES, key=lambda engine: -rendezvous_rank("key", engine.url))[:2]
    offered = [
        Candidate(engine, 0, ahead_tokens=ahead if engine in own else 0.0, prefill_rate=RATE)
        for engine in ENGINES
    ]

    assert stays is (least_cost().choose(offered, CHAT).engine in own)


@pytest.mark.parametrize(
    ("is_alone", "expected"),
    [
        pytest.param(True, {2, 3}, id="alone-any-that-idles"),
        pytest.param(False, {0, 1}, id="beside-others-one-of-two"),
    ],
)
def test_gateway_that_is_alone_chooses_among_all_engines(is_alone: bool, expected: set[int]) -> None:
    """Nobody else looks for the conversation, so that not even a short wait is worth its two engines."""
    by_rank = sorted(ENGINES, key=lambda engine: -rendezvous_rank("key", engine.url))
    offered = [
        Candidate(engine, 0, ahead_tokens=AWAY_TOKENS if place < 2 else 0.0, prefill_rate=RATE)
        for place, engine in enumerate(by_rank)
    ]
    chosen = least_cost().choose(offered, replace(CHAT, is_alone=is_alone)).engine

    assert by_rank.index(chosen) in expected


def test_gateway_that_is_alone_finds_the_engine_that_idles_now() -> None:
    """Most of what an engine was sent in the last seconds is over; what it computes is not."""
    idle, busy = (
        Candidate(ENGINES[0], 0, recent=12.0, prefill_rate=RATE),
        Candidate(ENGINES[1], 4, prefill_rate=RATE),
    )
    chosen = least_cost().choose([idle, busy], replace(CHAT, is_alone=True)).engine

    assert ENGINES[0] == chosen


def test_misses_spread_as_evenly_as_two_choices_do() -> None:
    """A thousand conversations that share nothing load no engine far above the mean."""
    strategy, counts = least_cost(), Counter[Engine]()
    for number in range(1000):
        offered = candidates(*(counts[engine] for engine in ENGINES))
        counts[strategy.choose(offered, Demand(f"key-{number}", 2000.0)).engine] += 1

    assert max(counts.values()) <= 1.02 * 250


def test_engine_that_starts_slowly_gets_few_misses() -> None:
    """At a tenth of the weight an engine is taken for ten times as loaded."""
    strategy, counts = least_cost(), Counter[Engine]()
    for number in range(400):
        offered = [
            Candidate(engine, counts[engine], prefill_rate=RATE, weight=0.1 if engine == ENGINES[0] else 1.0)
            for engine in ENGINES
        ]
        counts[strategy.choose(offered, Demand(f"key-{number}", 2000.0)).engine] += 1

    assert 0 < counts[ENGINES[0]] < 30


def starting(*in_flight: int, reuse: dict[int, float], recent: float = 0.0) -> list[Candidate]:
    """Return candidates of which the last one has just begun to serve."""
    *others, last = candidates(*in_flight, reuse=reuse, recent=recent)
    return [*others, replace(last, weight=0.1, recent=0.0)]


def test_engine_that_starts_slowly_takes_no_conversation_from_others() -> None:
    """That it has had next to nothing lately does not put those over the bound who have had their share."""
    offers = starting(8, 8, 8, 0, reuse={1: 1500.0}, recent=30.0)

    assert Affinity.HELD is least_cost().choose(offers, CHAT).affinity


def test_conversation_that_has_begun_on_an_engine_that_starts_slowly_stays() -> None:
    """What it holds it need not compute: only what is new makes a cold engine slow."""
    offers = starting(0, 0, 0, 0, reuse={3: 1800.0})

    assert ENGINES[3] == least_cost().choose(offers, CHAT).engine


def test_request_without_a_key_goes_where_there_is_room() -> None:
    """A request that belongs to no conversation is not held by anything."""
    choice = least_cost().choose(candidates(5, 0, reuse={0: 1500.0}), ANYONE)

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
