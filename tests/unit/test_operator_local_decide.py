"""The decisions of `sternpost up`: when a child is started, started again, killed or given up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_operator.local.child import (
    ChildSpec,
    ChildState,
    Limits,
    Observation,
    after_look,
    after_start,
    was_well,
)
from sternpost_operator.local.decide import Action, Announce, GiveUp, Kill, Start, decide, restart_seconds

LIMITS = Limits()
NOW = 1_000.0

ENGINE = ChildSpec(
    name="engine-1",
    command=("engine",),
    ready_url="http://127.0.0.1:1/health",
    live_url="http://127.0.0.1:1/health",
    log=Path("engine-1.log"),
    ready_seconds_max=100,
    stop_seconds_max=1,
    start_deaths_max=5,
)
GATEWAY = replace(ENGINE, name="gateway", start_deaths_max=1, waits_for=("engine-1",))

FRESH = ChildState()
LOADING = ChildState(started_at=NOW - 10)
READY = ChildState(started_at=NOW - 50, ready_at=NOW - 40, healthy_at=NOW - 1, ever_ready=True)


def dead(*, ago: float, deaths: int, ever_ready: bool = True) -> ChildState:
    """Return the state of a child that died `ago` seconds before now."""
    return ChildState(
        started_at=NOW - ago - 5, ended_at=NOW - ago, exit_status=1, deaths=deaths, ever_ready=ever_ready
    )


def decided(engine: ChildState, gateway: ChildState = READY, *, announced: bool = True) -> tuple[Action, ...]:
    """Return the decision about one engine and the gateway."""
    states = {"engine-1": engine, "gateway": gateway}
    return decide([ENGINE, GATEWAY], states, LIMITS, announced=announced, now=NOW)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(FRESH, (Start("engine-1"),), id="never-started"),
        pytest.param(LOADING, (), id="loading"),
        pytest.param(replace(LOADING, started_at=NOW - 100), (), id="loading-at-the-limit"),
        pytest.param(
            replace(LOADING, started_at=NOW - 101),
            (Kill("engine-1", "was not ready within 100 s"),),
            id="never-gets-ready",
        ),
        pytest.param(READY, (), id="well"),
        pytest.param(replace(READY, healthy_at=NOW - 120), (), id="silent-at-the-limit"),
        pytest.param(
            replace(READY, healthy_at=NOW - 121),
            (Kill("engine-1", "did not answer for 120 s"),),
            id="hung",
        ),
        pytest.param(dead(ago=0.9, deaths=1), (), id="died-just-now"),
        pytest.param(dead(ago=1.0, deaths=1), (Start("engine-1"),), id="first-wait-is-over"),
        pytest.param(dead(ago=3.9, deaths=3), (), id="third-wait-is-longer"),
        pytest.param(dead(ago=4.0, deaths=3), (Start("engine-1"),), id="third-wait-is-over"),
        pytest.param(dead(ago=60.0, deaths=99), (Start("engine-1"),), id="wait-has-a-limit"),
        pytest.param(dead(ago=60.0, deaths=4, ever_ready=False), (Start("engine-1"),), id="one-more-start"),
        pytest.param(
            dead(ago=0.0, deaths=5, ever_ready=False),
            (GiveUp("engine-1", "engine-1 died 5 times in a row and was never ready"),),
            id="hopeless",
        ),
    ],
)
def test_engine_is_kept_running(state: ChildState, expected: tuple[Action, ...]) -> None:
    """Each state of an engine has its action, at the limit and past it."""
    assert expected == decided(state)


@pytest.mark.parametrize(
    ("engine", "gateway", "expected"),
    [
        pytest.param(
            LOADING, replace(LOADING, started_at=NOW - 999), (), id="engines-load-for-as-long-as-they-may"
        ),
        pytest.param(
            replace(READY, ready_at=NOW - 99),
            replace(LOADING, started_at=NOW - 999),
            (),
            id="limit-counts-from-the-engines-being-ready",
        ),
        pytest.param(
            replace(READY, ready_at=NOW - 101),
            replace(LOADING, started_at=NOW - 999),
            (Kill("gateway", "was not ready within 100 s"),),
            id="engines-are-ready-and-it-is-not",
        ),
        pytest.param(
            READY,
            dead(ago=0.0, deaths=1, ever_ready=False),
            (GiveUp("gateway", "gateway died at its start"),),
            id="dies-at-its-start",
        ),
        pytest.param(READY, dead(ago=1.0, deaths=1), (Start("gateway"),), id="dies-later"),
    ],
)
def test_gateway_waits_for_engines(
    engine: ChildState, gateway: ChildState, expected: tuple[Action, ...]
) -> None:
    """The gateway's time runs once it could be ready, and a death at its start is final."""
    assert expected == decided(engine, gateway)


@pytest.mark.parametrize(
    ("engine", "gateway", "announced", "expected"),
    [
        pytest.param(READY, READY, False, (Announce(),), id="all-ready"),
        pytest.param(READY, READY, True, (), id="only-once"),
        pytest.param(LOADING, READY, False, (), id="engine-loads"),
        pytest.param(READY, LOADING, False, (), id="gateway-loads"),
    ],
)
def test_ready_is_announced_when_all_are(
    engine: ChildState, gateway: ChildState, announced: bool, expected: tuple[Action, ...]
) -> None:
    """The ready line comes once, when every child is ready."""
    assert expected == decided(engine, gateway, announced=announced)


def test_waits_double_up_to_the_limit() -> None:
    """A fault that lasts is tried ever more rarely, down to once a minute."""
    assert [1, 2, 4, 8, 16, 32, 60, 60] == [restart_seconds(deaths, LIMITS) for deaths in range(1, 9)]


@given(st.integers(min_value=0, max_value=10**9))
def test_wait_stays_within_its_limits(deaths: int) -> None:
    """No count of deaths makes the wait shorter than the first or longer than the longest."""
    assert LIMITS.restart_first <= restart_seconds(deaths, LIMITS) <= LIMITS.restart_max


@pytest.mark.parametrize(
    ("state", "observation", "changes"),
    [
        pytest.param(LOADING, Observation(running=True, healthy=False), {}, id="not-yet"),
        pytest.param(LOADING, Observation(running=True), {}, id="not-asked"),
        pytest.param(
            LOADING,
            Observation(running=True, healthy=True),
            {"ready_at": NOW, "healthy_at": NOW, "ever_ready": True},
            id="gets-ready",
        ),
        pytest.param(READY, Observation(running=True, healthy=True), {"healthy_at": NOW}, id="stays-well"),
        pytest.param(READY, Observation(running=True, healthy=False), {}, id="keeps-its-last-good-time"),
        pytest.param(
            replace(LOADING, deaths=2),
            Observation(running=False, exit_status=3),
            {"ended_at": NOW, "exit_status": 3, "deaths": 3},
            id="dies-again",
        ),
        pytest.param(
            replace(READY, deaths=2, ready_at=NOW - 61),
            Observation(running=False, exit_status=3),
            {"ended_at": NOW, "exit_status": 3, "deaths": 1},
            id="dies-after-it-had-recovered",
        ),
        pytest.param(FRESH, Observation(running=False), {}, id="never-started"),
    ],
)
def test_observation_changes_what_is_known(
    state: ChildState, observation: Observation, changes: dict[str, Any]
) -> None:
    """One look at a child changes exactly what it shows."""
    assert replace(state, **changes) == after_look(state, observation, LIMITS, NOW)


def test_start_forgets_the_process_before_but_not_its_deaths() -> None:
    """A new process begins afresh, and the waits go on growing."""
    before = dead(ago=1.0, deaths=3)

    assert ChildState(started_at=NOW, deaths=3, ever_ready=True) == after_start(before, NOW)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(LOADING, False, id="never-ready"),
        pytest.param(replace(READY, ready_at=NOW - 60.9), False, id="not-for-long-enough"),
        pytest.param(replace(READY, ready_at=NOW - 61), True, id="for-long-enough"),
    ],
)
def test_a_minute_of_health_is_recovery(state: ChildState, expected: bool) -> None:
    """Health counts from being ready to the last good answer."""
    assert expected == was_well(state, LIMITS)
