"""Engines that get nothing for a while, because their answers fail."""

from __future__ import annotations

import random

import pytest

from sternpost_fakes.clock import FakeClock
from sternpost_gateway.ejection import (
    CALM_SECONDS,
    EJECTION_SECONDS_BASE,
    EJECTION_SECONDS_MAX,
    FAILURES_MAX,
    JITTER_SHARE,
    Ejections,
)
from sternpost_gateway.fleet import Engine

ENGINES = [Engine(f"http://engine-{number}") for number in range(6)]


def fail(ejections: Ejections, engine: Engine, pool: list[Engine], times: int = FAILURES_MAX) -> list[bool]:
    """Let an engine fail in a row; return which failure ejected it."""
    return [ejections.failed(engine, pool) for _ in range(times)]


def make() -> tuple[Ejections, FakeClock]:
    """Return ejections and their clock."""
    clock = FakeClock()
    return Ejections(clock, random.Random(1)), clock


def test_failures_in_a_row_eject() -> None:
    """The last of so many failures ejects, and what was in flight by then changes nothing."""
    ejections, _ = make()
    outcomes = fail(ejections, ENGINES[0], ENGINES, FAILURES_MAX + 3)

    assert [False] * (FAILURES_MAX - 1) + [True] + [False] * 3 == outcomes
    assert [True, False] == [ejections.is_ejected(engine) for engine in ENGINES[:2]]


def test_success_between_failures_counts_from_zero() -> None:
    """Only failures in a row eject."""
    ejections, _ = make()
    fail(ejections, ENGINES[0], ENGINES, FAILURES_MAX - 1)
    ejections.succeeded(ENGINES[0])
    fail(ejections, ENGINES[0], ENGINES, FAILURES_MAX - 1)

    assert not ejections.is_ejected(ENGINES[0])


def test_ejections_last_longer_each_time_up_to_the_maximum() -> None:
    """The n-th in a row lasts n times the base, a little longer at random; a calm engine begins anew."""
    ejections, clock = make()
    lengths = []
    for _ in range(12):
        fail(ejections, ENGINES[0], ENGINES)
        began = clock.monotonic()
        while ejections.is_ejected(ENGINES[0]):
            clock.advance(0.5)
        lengths.append(clock.monotonic() - began)
    clock.advance(CALM_SECONDS)
    fail(ejections, ENGINES[0], ENGINES)
    clock.advance(EJECTION_SECONDS_BASE * (1 + JITTER_SHARE))

    bases = [min(EJECTION_SECONDS_MAX, EJECTION_SECONDS_BASE * number) for number in range(1, 13)]
    assert all(
        base <= length <= base * (1 + JITTER_SHARE) + 0.5 for base, length in zip(bases, lengths, strict=True)
    )
    assert not ejections.is_ejected(ENGINES[0])


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(1, 0, id="the-only-one-stays"),
        pytest.param(2, 1, id="one-of-two"),
        pytest.param(3, 1, id="less-than-half-of-three"),
        pytest.param(6, 3, id="half-of-six"),
    ],
)
def test_half_of_the_pool_stays(size: int, expected: int) -> None:
    """When all engines fail, it is no one engine's fault, and half of them keep serving."""
    ejections, _ = make()
    pool = ENGINES[:size]
    for engine in pool:
        fail(ejections, engine, pool)

    assert expected == sum(ejections.is_ejected(engine) for engine in pool)


def test_engine_that_starts_anew_is_back() -> None:
    """What an earlier start did is forgotten."""
    ejections, _ = make()
    fail(ejections, ENGINES[0], ENGINES)
    ejections.forget(ENGINES[0])

    assert not ejections.is_ejected(ENGINES[0])
