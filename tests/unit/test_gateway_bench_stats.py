"""The statistics of the demonstration."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_gateway.bench.stats import (
    Estimate,
    common_share,
    estimate,
    estimate_paired,
    mean,
    mean_ratio,
    percentile,
    percentile_ratio,
)

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        pytest.param([7.0], 0.95, 7.0, id="one-value-is-every-percentile"),
        pytest.param([4.0, 1.0, 2.0], 0.5, 2.0, id="odd-median-is-the-middle"),
        pytest.param([8.0, 1.0, 4.0, 2.0], 0.5, 3.0, id="even-median-is-between"),
        pytest.param([0.0, 10.0], 0.95, 9.5, id="interpolated"),
        pytest.param([3.0, 1.0, 2.0], 0.0, 1.0, id="lowest"),
        pytest.param([3.0, 1.0, 2.0], 1.0, 3.0, id="highest"),
    ],
)
def test_percentile_lies_between_neighbours(values: list[float], share: float, expected: float) -> None:
    """A percentile is interpolated between the two values around its place."""
    assert expected == percentile(values, share)


@pytest.mark.parametrize(
    ("values", "share"),
    [
        pytest.param([], 0.5, id="no-values"),
        pytest.param([1.0], 1.5, id="share-over-one"),
        pytest.param([1.0], -0.1, id="share-under-zero"),
    ],
)
def test_percentile_refuses_what_has_none(values: list[float], share: float) -> None:
    """Without values, or outside 0 to 1, there is no percentile."""
    with pytest.raises(ValueError, match="not allowed"):
        percentile(values, share)


@given(values=VALUES, share=st.floats(0, 1))
def test_percentile_stays_within_the_values(values: list[float], share: float) -> None:
    """No percentile is under the least or over the greatest value."""
    assert min(values) <= percentile(values, share) <= max(values)


def test_mean_of_nothing_is_refused() -> None:
    """There is no mean of no values."""
    with pytest.raises(ValueError, match="no values"):
        mean([])


def test_ratios_are_candidate_over_baseline() -> None:
    """A candidate that takes half as long has the ratio 0.5."""
    candidate, baseline = [1.0, 2.0, 3.0], [2.0, 4.0, 6.0]

    assert (0.5, 0.5) == (
        percentile_ratio(candidate, baseline, 0.5),
        mean_ratio(candidate, baseline),
    )


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        pytest.param([], [], 1.0, id="both-empty"),
        pytest.param([1, 2], [], 0.0, id="one-empty"),
        pytest.param([1, 2, 3], [1, 2, 3], 1.0, id="equal"),
        pytest.param([1, 2, 3, 4], [1, 2, 9], 0.5, id="of-the-longer"),
        pytest.param([1, 2], [1, 2, 3, 4], 0.5, id="one-begins-the-other"),
        pytest.param([9, 2, 3], [1, 2, 3], 0.0, id="first-differs"),
    ],
)
def test_common_share_counts_leading_tokens(one: list[int], other: list[int], expected: float) -> None:
    """Only tokens before the first difference count, as a share of the longer answer."""
    assert expected == common_share(one, other)


@given(one=st.lists(st.integers(0, 3)), other=st.lists(st.integers(0, 3)))
def test_common_share_has_no_direction(one: list[int], other: list[int]) -> None:
    """Which answer is named first does not matter."""
    assert common_share(one, other) == common_share(other, one)


def test_same_seed_gives_the_same_interval() -> None:
    """A report made again from the same rows says the same."""
    values = [1.0, 5.0, 2.0, 8.0]

    assert estimate(values, mean, Random(3)) == estimate(values, mean, Random(3))


def test_interval_of_equal_values_is_a_point() -> None:
    """Values that do not differ leave nothing uncertain."""
    expected = Estimate(value=2.0, low=2.0, high=2.0, count=3)

    assert expected == estimate([2.0, 2.0, 2.0], mean, Random(0))


def test_interval_covers_a_known_spread() -> None:
    """The interval of a mean of 100 draws of 0 or 1 is about two standard errors to each side."""
    found = estimate([0.0, 1.0] * 50, mean, Random(0))

    assert (0.5, 100) == (found.value, found.count)
    assert found.low == pytest.approx(0.4, abs=0.02)
    assert found.high == pytest.approx(0.6, abs=0.02)


def test_pairs_are_drawn_together() -> None:
    """What makes a question slow in both arms cancels out: the ratio of a paired mean is exact."""
    baseline = [1.0, 10.0, 100.0, 1000.0]
    candidate = [value / 4 for value in baseline]

    assert Estimate(value=0.25, low=0.25, high=0.25, count=4) == estimate_paired(
        candidate, baseline, mean_ratio, Random(0)
    )


def test_values_without_partners_are_refused() -> None:
    """Two lists of different lengths are not pairs."""

    def first(candidate: Sequence[float], baseline: Sequence[float]) -> float:
        return candidate[0] / baseline[0]

    with pytest.raises(ValueError, match="2 and 1 values are not pairs"):
        estimate_paired([1.0, 2.0], [1.0], first, Random(0))
