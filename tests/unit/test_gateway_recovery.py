"""The way back from a kill level: by steps, sticky by session, and over at once when a level rises."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.jsonspan import scan
from sternpost_core.kill import KillLevel
from sternpost_core.policy_match import PolicySet
from sternpost_core.rollout import BUCKETS
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway_scene import CHAT, policy
from sternpost_fakes.virtual_time import VirtualClock, run_virtual
from sternpost_gateway.identify import identify
from sternpost_gateway.kills import Kills
from sternpost_gateway.receive import CHAT_PATH, Received
from sternpost_gateway.recovery import Recovery, freeze_while_stale

POLICY = policy()
NAME = POLICY.full_name
STEP_SECONDS = 120.0
K1 = KillLevel.NO_SUFFIX_READS
K3 = KillLevel.NO_REWRITE


def levels(kills: Kills, clock: FakeClock, sessions: int = 400) -> list[KillLevel]:
    """Return the level that each session gets now."""
    found = []
    for number in range(sessions):
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
        found.append(identify(received, PolicySet((POLICY,)), kills.table).level)
    return found


def killed(level: KillLevel = K1) -> tuple[Kills, FakeClock]:
    """Return kill levels at which a policy's has just been taken back."""
    clock = FakeClock()
    kills = Kills(clock, None, step_seconds=STEP_SECONDS)
    kills.configure([POLICY], [])
    kills.latch(level, None, "drill", "test")
    clock.advance(10.0)
    kills.latch(KillLevel.NONE, None, "over", "test")
    return kills, clock


@pytest.mark.parametrize(
    ("seconds", "share"),
    [(0.0, 1), (119.0, 1), (120.0, 5), (240.0, 10), (360.0, 25), (480.0, 50), (600.0, 100), (1e9, 100)],
)
def test_share_grows_by_steps(seconds: float, share: int) -> None:
    """Two minutes each, as a rollout's."""
    assert share == Recovery(K1, 0.0, STEP_SECONDS).share(seconds)


def test_sessions_come_back_and_stay() -> None:
    """Who is back at one step is back at the next; in the end all are."""
    kills, clock = killed()
    back: list[set[int]] = []
    for _ in range(6):
        back.append({number for number, level in enumerate(levels(kills, clock)) if level is KillLevel.NONE})
        clock.advance(STEP_SECONDS)

    assert all(before <= after for before, after in pairwise(back))
    assert len(back[0]) < 20 < len(back[3]) < 200 < len(back[5]) == 400


def test_level_that_rises_again_ends_the_way_back() -> None:
    """Whoever kills on the way kills for all, at once."""
    kills, clock = killed()
    clock.advance(3 * STEP_SECONDS)
    kills.latch(K1, None, "again", "test")

    assert {K1} == set(levels(kills, clock))
    assert {} == kills.table.recoveries


def test_level_that_falls_in_two_comes_back_from_the_first() -> None:
    """Sessions that are not back yet keep what was the highest level, and the way begins anew."""
    clock = FakeClock()
    kills = Kills(clock, None, step_seconds=STEP_SECONDS)
    kills.configure([POLICY], [])
    for level in (K3, K1, KillLevel.NONE):
        kills.latch(level, None, "drill", "test")
        clock.advance(10.0)

    assert Recovery(K3, 20.0, STEP_SECONDS) == kills.table.recoveries[NAME]


def test_policy_that_is_new_has_nothing_to_come_back_from() -> None:
    """At a start, and for a policy that has just been made."""
    clock = FakeClock()
    kills = Kills(clock, None, step_seconds=STEP_SECONDS)
    kills.configure([POLICY], [])

    assert {KillLevel.NONE} == set(levels(kills, clock))


def test_without_steps_all_come_back_at_once() -> None:
    """A step of no length is none."""
    clock = FakeClock()
    kills = Kills(clock, None)
    kills.configure([POLICY], [])
    kills.latch(K1, None, "drill", "test")
    kills.latch(KillLevel.NONE, None, "over", "test")

    assert {KillLevel.NONE} == set(levels(kills, clock))


def test_news_about_policies_do_not_begin_the_way_back_anew() -> None:
    """Gateways read their policies every few seconds."""
    kills, clock = killed()
    clock.advance(2 * STEP_SECONDS)
    kills.configure([POLICY], [])

    assert 10 == kills.table.recoveries[NAME].share(clock.monotonic())


@given(st.integers(0, BUCKETS - 1), st.floats(0.0, 1e5), st.floats(0.0, 1e5))
def test_nobody_loses_what_is_back(bucket: int, first: float, second: float) -> None:
    """As time goes on, a session's level only falls."""
    recovery = Recovery(K1, 0.0, STEP_SECONDS)
    early, late = sorted((first, second))

    assert recovery.held(bucket, late) <= recovery.held(bucket, early)


@pytest.mark.parametrize(
    ("age", "expected"), [pytest.param(29.0, 5, id="fresh"), pytest.param(31.0, 1, id="stale")]
)
def test_way_back_stands_still_while_the_configuration_is_stale(age: float, expected: int) -> None:
    """A kill may be on its way that the gateway cannot hear of."""

    async def two_minutes(clock: VirtualClock) -> int:
        kills = Kills(clock, None, step_seconds=STEP_SECONDS)
        kills.configure([POLICY], [])
        for level in (K1, KillLevel.NONE):
            kills.latch(level, None, "drill", "test")
        freezing = asyncio.ensure_future(freeze_while_stale(kills.delay, lambda: age, clock.monotonic))
        await asyncio.sleep(STEP_SECONDS + 0.5)
        freezing.cancel()
        return kills.table.recoveries[NAME].share(clock.monotonic())

    assert expected == run_virtual(two_minutes)
