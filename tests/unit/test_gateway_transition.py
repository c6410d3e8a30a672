"""From one kill level to another: by steps, sticky by session, and at once where that makes nothing cold."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.jsonspan import scan
from sternpost_core.kill import CacheKillSwitch, KillLevel
from sternpost_core.policy import Policy
from sternpost_core.policy_match import PolicySet
from sternpost_core.rollout import BUCKETS, WEIGHT_MAX
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway_scene import CHAT, policy
from sternpost_fakes.virtual_time import VirtualClock, run_virtual
from sternpost_gateway.identify import identify
from sternpost_gateway.kills import Kills
from sternpost_gateway.receive import CHAT_PATH, Received
from sternpost_gateway.transition import (
    RAMPED,
    Pace,
    Said,
    Target,
    Transition,
    freeze_while_stale,
    target_of,
    transitions,
)

POLICY = policy()
NAME = POLICY.full_name
STEP_SECONDS = 120.0
RISE_SECONDS = 600.0
PACE = Pace(STEP_SECONDS, RISE_SECONDS)
K0 = KillLevel.NONE
K1 = KillLevel.NO_SUFFIX_READS
K2 = KillLevel.NEW_EPOCH
K3 = KillLevel.NO_REWRITE
K4 = KillLevel.NO_AFFINITY
K5 = KillLevel.PLAIN_PROXY
SESSIONS = 400


def levels(kills: Kills, clock: FakeClock, policies: tuple[Policy, ...] = (POLICY,)) -> list[KillLevel]:
    """Return the level that each session gets now."""
    found = []
    for number in range(SESSIONS):
        received = Received(
            method="POST",
            path=CHAT_PATH,
            target=CHAT_PATH,
            headers=((b"x-tenant-id", b"acme"), (b"x-session-id", str(number).encode())),
            request_id="id",
            arrived=clock.monotonic(),
            has_body=False,
            document=scan(json.dumps(CHAT).encode()),
        )
        found.append(identify(received, PolicySet(policies), kills.table).level)
    return found


def calm() -> tuple[Kills, FakeClock]:
    """Return kill levels of which none is set."""
    clock = FakeClock()
    kills = Kills(clock, None, pace=PACE)
    kills.configure([POLICY], [])
    return kills, clock


def killed(level: KillLevel = K1) -> tuple[Kills, FakeClock]:
    """Return kill levels of which one counted for everybody and has just been taken back."""
    kills, clock = calm()
    kills.latch(level, None, "drill", "test")
    clock.advance(RISE_SECONDS)
    kills.latch(K0, None, "over", "test")
    return kills, clock


@pytest.mark.parametrize(
    ("seconds", "share"),
    [
        (-5.0, 1),
        (0.0, 1),
        (119.0, 1),
        (120.0, 5),
        (240.0, 10),
        (360.0, 25),
        (480.0, 50),
        (600.0, 100),
        (1e9, 100),
    ],
)
def test_share_that_is_back_grows_by_steps(seconds: float, share: int) -> None:
    """Two minutes each, as a rollout's."""
    assert share == Transition((K1,) * WEIGHT_MAX, Target(K0, K0), PACE, 0.0, 0.0).share(seconds)


@pytest.mark.parametrize(
    ("seconds", "share"), [(-5.0, 0), (0.0, 0), (5.9, 0), (6.0, 1), (300.0, 50), (600.0, 100), (1e9, 100)]
)
def test_share_that_gets_a_ramped_level_grows_evenly(seconds: float, share: int) -> None:
    """Each percent of the sessions makes as many prompts cold as any other."""
    assert share == Transition((K0,) * WEIGHT_MAX, Target(K3, K2), PACE, 0.0, 0.0).share(seconds)


@pytest.mark.parametrize("level", [K1, K2, K5], ids=str)
def test_level_that_makes_nothing_cold_counts_for_everybody_at_once(level: KillLevel) -> None:
    """And so does the last resort, which is for when nothing else can be trusted."""
    kills, clock = calm()
    kills.latch(level, None, "drill", "test")

    assert {level} == set(levels(kills, clock))
    assert {} == kills.table.transitions


@pytest.mark.parametrize("level", [K3, K4], ids=str)
def test_level_that_makes_prompts_cold_reaches_sessions_one_after_the_other(level: KillLevel) -> None:
    """No session reads a tail from the first moment on; bytes and engines change over ten minutes."""
    kills, clock = calm()
    kills.latch(level, None, "drill", "test")
    reached: list[set[int]] = []
    for _ in range(5):
        found = levels(kills, clock)
        assert {K2, level} >= set(found)
        reached.append({number for number, item in enumerate(found) if item is level})
        clock.advance(RISE_SECONDS / 4)

    assert all(before <= after for before, after in pairwise(reached))
    assert [0, SESSIONS] == [len(reached[0]), len(reached[4])]
    assert all(abs(len(reached[quarter]) - quarter * SESSIONS / 4) < SESSIONS / 10 for quarter in (1, 2, 3))


@pytest.mark.parametrize("level", [K3, K4], ids=str)
def test_forced_level_counts_for_everybody_at_once(level: KillLevel) -> None:
    """Whoever forces a level knows that prompts are cold then."""
    kills, clock = calm()
    kills.latch(level, None, "drill", "test", forced=True)

    assert {level} == set(levels(kills, clock))


def test_level_can_be_forced_on_its_way() -> None:
    """Saying it again with force is enough."""
    kills, clock = calm()
    kills.latch(K3, None, "drill", "test")
    clock.advance(RISE_SECONDS / 10)
    kills.latch(K3, None, "quicker", "test", forced=True)

    assert {K3} == set(levels(kills, clock))


def test_switch_can_force_its_level() -> None:
    """What an object at the API server says is as good as what comes over HTTP."""
    kills, clock = calm()
    kills.configure([POLICY], [CacheKillSwitch(name="now", level=K4, forced=True)])

    assert {K4} == set(levels(kills, clock))


def test_force_counts_for_the_level_that_asks_for_it() -> None:
    """A higher level of somebody else, without force, is ramped from there."""
    assert Target(K4, K3) == target_of([Said(K3, forced=True), Said(K4), Said(K1)])


def test_ramp_that_is_called_off_takes_nobody_along() -> None:
    """Sessions that the level has not reached keep their prompts, and read again step by step."""
    kills, clock = calm()
    kills.latch(K3, None, "drill", "test")
    clock.advance(RISE_SECONDS / 4)
    reached = Counter(levels(kills, clock))
    kills.latch(K0, None, "not needed", "test")
    found = Counter(levels(kills, clock))

    assert {K2, K3} == set(reached)
    assert {K0, K2, K3} == set(found)
    assert reached[K2] == found[K2]
    assert reached[K3] == found[K3] + found[K0]


def test_ramp_goes_on_where_it_is_when_a_higher_level_is_asked_for() -> None:
    """Whoever has no rewriting already keeps that while engines are let go one session after the other."""
    kills, clock = calm()
    kills.latch(K3, None, "drill", "test")
    clock.advance(RISE_SECONDS)
    kills.latch(K4, None, "more", "test")
    clock.advance(RISE_SECONDS / 2)

    assert {K3, K4} == set(levels(kills, clock))


def test_requests_without_a_policy_lose_their_engines_one_session_after_the_other() -> None:
    """Affinity is for them, too."""
    kills, clock = calm()
    kills.configure([], [])
    kills.latch(K4, None, "drill", "test")
    clock.advance(RISE_SECONDS / 2)

    assert {K2, K4} == set(levels(kills, clock, policies=()))


def test_forced_way_back_is_none() -> None:
    """Everybody is back at once."""
    kills, clock = calm()
    kills.latch(K1, None, "drill", "test")
    kills.latch(K0, None, "over", "test", forced=True)

    assert {K0} == set(levels(kills, clock))


def test_sessions_come_back_and_stay() -> None:
    """Who is back at one step is back at the next; in the end all are."""
    kills, clock = killed()
    back: list[set[int]] = []
    for _ in range(6):
        back.append({number for number, level in enumerate(levels(kills, clock)) if level is K0})
        clock.advance(STEP_SECONDS)

    assert all(before <= after for before, after in pairwise(back))
    assert len(back[0]) < 20 < len(back[3]) < 200 < len(back[5]) == 400


def test_level_that_rises_again_ends_the_way_back() -> None:
    """Whoever kills on the way kills for all, at once."""
    kills, clock = killed()
    clock.advance(3 * STEP_SECONDS)
    kills.latch(K1, None, "again", "test")

    assert {K1} == set(levels(kills, clock))
    assert {} == kills.table.transitions


def test_level_that_falls_in_two_comes_back_from_the_first() -> None:
    """Sessions that are not back yet keep what they had, and the way begins anew."""
    kills, clock = killed(K3)
    kills.configure([POLICY], [CacheKillSwitch(name="rest", level=K1)])
    clock.advance(10.0)
    kills.configure([POLICY], [])

    assert {K0, K3} == set(levels(kills, clock))
    assert 1 == kills.table.transitions[NAME].share(clock.monotonic())


def test_policy_that_is_new_has_no_way_to_go() -> None:
    """At a start, and for a policy that has just been made."""
    clock = FakeClock()
    kills = Kills(clock, None, pace=PACE)
    kills.latch(K3, NAME, "drill", "test")
    kills.configure([POLICY], [])

    assert {K3} == set(levels(kills, clock))


def test_at_no_pace_all_change_at_once() -> None:
    """A step of no length is none."""
    clock = FakeClock()
    kills = Kills(clock, None)
    kills.configure([POLICY], [])
    found = []
    for level in (K3, K0):
        kills.latch(level, None, "drill", "test")
        found.append(set(levels(kills, clock)))

    assert [{K3}, {K0}] == found


def test_news_about_policies_do_not_begin_the_way_back_anew() -> None:
    """Gateways read their policies every few seconds."""
    kills, clock = killed()
    clock.advance(2 * STEP_SECONDS)
    kills.configure([POLICY], [])

    assert 10 == kills.table.transitions[NAME].share(clock.monotonic())


@given(st.integers(0, BUCKETS - 1), st.floats(0.0, 1e5), st.floats(0.0, 1e5))
def test_nobody_loses_what_is_back(bucket: int, first: float, second: float) -> None:
    """As time goes on, a session's level only falls."""
    way = Transition((K1,) * WEIGHT_MAX, Target(K0, K0), PACE, 0.0, 0.0)
    early, late = sorted((first, second))

    assert way.level_of(bucket, late) <= way.level_of(bucket, early)


said = st.builds(Said, st.sampled_from(KillLevel), st.booleans())


@given(st.lists(st.tuples(said, st.floats(0.0, 400.0)), min_size=1, max_size=8), st.integers(0, BUCKETS - 1))
def test_no_session_is_below_what_counts_at_once_or_above_what_was_asked_for(
    orders: list[tuple[Said, float]], bucket: int
) -> None:
    """However levels follow each other: a kill that makes nothing cold has no exceptions."""
    now, last, highest = 0.0, Target(), K0
    ways: dict[str, Transition] = {}
    for order, seconds in orders:
        target = target_of([order])
        ways = transitions({NAME: last}, {NAME: target}, ways, now, PACE)
        highest, last, now = max(highest, target.level), target, now + seconds
        level = ways[NAME].level_of(bucket, now) if NAME in ways else target.level
        assert target.least <= level <= highest
        assert target.level in RAMPED or level >= target.level


@pytest.mark.parametrize(
    ("age", "expected"), [pytest.param(29.0, 5, id="fresh"), pytest.param(31.0, 1, id="stale")]
)
def test_way_back_stands_still_while_the_configuration_is_stale(age: float, expected: int) -> None:
    """A kill may be on its way that the gateway cannot hear of."""

    async def two_minutes(clock: VirtualClock) -> int:
        kills = Kills(clock, None, pace=PACE)
        kills.configure([POLICY], [])
        for level in (K1, K0):
            kills.latch(level, None, "drill", "test")
        freezing = asyncio.ensure_future(freeze_while_stale(kills.delay, lambda: age, clock.monotonic))
        await asyncio.sleep(STEP_SECONDS + 0.5)
        freezing.cancel()
        return kills.table.transitions[NAME].share(clock.monotonic())

    assert expected == run_virtual(two_minutes)


def test_ramp_of_a_kill_goes_on_while_the_configuration_is_stale() -> None:
    """What is to be switched off is switched off, whoever can be heard."""
    kills, clock = calm()
    kills.latch(K3, None, "drill", "test")
    clock.advance(RISE_SECONDS / 2)
    kills.delay(RISE_SECONDS / 2)

    assert {K2, K3} == set(levels(kills, clock))
