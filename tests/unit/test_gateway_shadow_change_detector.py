"""The test behind a demotion: quick where a mean is over its limit, patient where it is not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_gateway.shadow.change_detector import ChangeDetector

LIMIT = 0.05


def first_alarm(detector: ChangeDetector, chance: random.Random, mean: float, figures: int) -> int | None:
    """Return after how many of so many figures, 0 or 1 each, there is an alarm."""
    for number in range(figures):
        detector.observe(float(chance.random() < mean))
        if detector.has_changed:
            return number + 1
    return None


@pytest.mark.parametrize(
    ("mean", "within"),
    [
        pytest.param(1.0, 5, id="always"),
        pytest.param(0.5, 30, id="half"),
        pytest.param(0.15, 600, id="thrice"),
    ],
)
def test_mean_over_the_limit_is_found(mean: float, within: int) -> None:
    """The further over its limit a mean is, the fewer figures it takes."""
    alarms = [first_alarm(ChangeDetector(LIMIT), random.Random(seed), mean, within) for seed in range(20)]

    assert None not in alarms


def test_mean_at_the_limit_raises_no_alarm_for_long() -> None:
    """At the limit itself an alarm takes 10,000 figures on average, so one in 500 is rare."""
    alarms = [first_alarm(ChangeDetector(LIMIT), random.Random(seed), LIMIT, 500) for seed in range(200)]

    assert sum(alarm is not None for alarm in alarms) <= 200 * 500 / 10_000 * 2


def test_long_good_past_hides_nothing() -> None:
    """A tail that has agreed for ever is found out as quickly as a new one."""
    detector = ChangeDetector(LIMIT)
    for _ in range(5000):
        detector.observe(0.0)

    assert first_alarm(detector, random.Random(1), 1.0, 10) == first_alarm(
        ChangeDetector(LIMIT), random.Random(1), 1.0, 10
    )


@given(st.lists(st.floats(0.0, LIMIT), max_size=300))
def test_figures_within_the_limit_never_raise_an_alarm(figures: list[float]) -> None:
    """Whatever the order, nothing that keeps to the limit is over it."""
    detector = ChangeDetector(LIMIT)
    for figure in figures:
        detector.observe(figure)

    assert not detector.has_changed


@pytest.mark.parametrize(
    ("limit", "figures", "expected"),
    [
        pytest.param(0.0, [0.0] * 100, False, id="none-allowed-and-none"),
        pytest.param(0.0, [0.1], True, id="none-allowed-and-one"),
        pytest.param(1.0, [1.0] * 100, False, id="all-allowed"),
    ],
)
def test_limits_at_the_ends(limit: float, figures: list[float], expected: bool) -> None:
    """A policy may allow nothing, or everything."""
    detector = ChangeDetector(limit)
    for figure in figures:
        detector.observe(figure)

    assert expected is detector.has_changed
