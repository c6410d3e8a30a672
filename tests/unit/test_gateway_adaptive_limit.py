"""How many cold requests an engine takes, found by what they do to the warm ones."""

from __future__ import annotations

import pytest

from sternpost_gateway.adaptive_limit import SAMPLES_MIN, WINDOW_SECONDS, AdaptiveLimit, percentile

LIMIT_MAX = 10


def after(*windows: float, samples: int = SAMPLES_MIN, limit_max: int = LIMIT_MAX) -> list[int]:
    """Return the limit after each window of equal times to first token."""
    tested, now, limits = AdaptiveLimit(limit_max), 0.0, []
    for seconds in windows:
        for _ in range(samples - 1):
            tested.observe(seconds, now)
        now += WINDOW_SECONDS
        tested.observe(seconds, now)
        limits.append(tested.limit)
    return limits


def test_limit_shrinks_while_warm_requests_suffer() -> None:
    """Above 1.5 times the baseline each window takes three tenths, down to one."""
    assert [10, 7, 4, 3, 2, 1, 1, 1] == after(0.1, *[0.16] * 7)


def test_limit_grows_step_by_step_when_they_are_well() -> None:
    """Up to 1.2 times the baseline each window adds one, up to the maximum."""
    assert [10, 7, 4, 5, 6, 7, 8, 9, 10, 10] == [
        *after(0.1, 0.16, 0.16, *[0.115] * 7),
    ]


def test_limit_rests_in_between() -> None:
    """Between the two ratios nothing moves."""
    assert [10, 7, 7, 7] == after(0.1, 0.16, 0.13, 0.14)


def test_engine_that_became_slower_is_measured_anew() -> None:
    """The baseline is forgotten slowly, so that the limit returns in the end."""
    limits = after(0.1, *[0.2] * 900)

    assert (1, LIMIT_MAX) == (min(limits), limits[-1])


def test_windows_without_enough_answers_go_on() -> None:
    """A few slow answers decide nothing."""
    tested = AdaptiveLimit(LIMIT_MAX)
    for now in range(SAMPLES_MIN - 1):
        tested.observe(float(now + 1), now * WINDOW_SECONDS)

    assert LIMIT_MAX == tested.limit


@pytest.mark.parametrize("limit_max", [0, 1], ids=["none", "one"])
def test_one_is_always_allowed(limit_max: int) -> None:
    """Nothing is closed for good."""
    assert 1 == after(0.1, 0.9, 0.9, limit_max=limit_max)[-1]


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [
        pytest.param([3.0], 0.9, 3.0, id="one"),
        pytest.param([float(number) for number in range(1, 11)], 0.9, 9.0, id="ten"),
        pytest.param([2.0, 1.0], 0.5, 1.0, id="unordered"),
    ],
)
def test_percentile_is_a_sample(samples: list[float], share: float, expected: float) -> None:
    """It is the smallest that so many do not exceed."""
    assert expected == percentile(samples, share)
