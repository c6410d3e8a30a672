"""Answers chosen among candidates, Wilson intervals, flips and their sign test."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quality.accuracy import Flips, choose, flips_of, prior_of, sign_test, wilson


def test_the_answer_that_gains_most_over_its_prior_is_chosen() -> None:
    """An answer that the model always likes best is chosen only where it gains."""
    prior = prior_of([(-0.5, -3.0), (-0.7, -5.0)])

    assert pytest.approx((-0.6, -4.0)) == prior
    assert 1 == choose((-0.6, -3.0), prior)
    assert 0 == choose((-0.2, -4.0), prior)


def test_a_prior_needs_prompts() -> None:
    """No prompts are an error."""
    with pytest.raises(ValueError, match="prior"):
        prior_of([])


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        # Worked examples of Newcombe, "Two-sided confidence intervals for the single proportion" (1998).
        pytest.param(81, 263, 0.2553, 0.3662, id="Newcombe's first"),
        pytest.param(15, 148, 0.0624, 0.1605, id="his second"),
        pytest.param(0, 20, 0.0, 0.1611, id="none"),
        pytest.param(1, 29, 0.0061, 0.1718, id="one"),
    ],
)
def test_wilson_intervals_are_the_published_ones(successes: int, count: int, low: float, high: float) -> None:
    """Four published intervals come out to four digits."""
    share = wilson(successes, count)

    assert pytest.approx((low, high), abs=5e-5) == (share.low, share.high)
    assert successes / count == share.value


@given(st.integers(1, 500).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_wilson_intervals_hold_the_share(pair: tuple[int, int]) -> None:
    """Whatever the counts, 0 <= low <= share <= high <= 1."""
    share = wilson(*pair)

    assert -1e-12 <= share.low <= share.value <= share.high <= 1 + 1e-12


@pytest.mark.parametrize(("successes", "count"), [(0, 0), (3, 2), (-1, 5)])
def test_what_is_no_share_is_refused(successes: int, count: int) -> None:
    """Counts that cannot be are an error."""
    with pytest.raises(ValueError, match="no share"):
        wilson(successes, count)


def test_flips_count_each_direction() -> None:
    """Only prompts whose verdict changed count."""
    exact = [True, True, True, False, False]
    other = [True, False, False, True, False]

    assert Flips(lost=2, won=1) == flips_of(exact, other)


@pytest.mark.parametrize(
    ("lost", "won", "expected"),
    [
        pytest.param(0, 0, 1.0, id="no flips say nothing"),
        pytest.param(1, 0, 1.0, id="one flip says nothing"),
        pytest.param(5, 0, 0.0625, id="five in one direction"),
        pytest.param(0, 5, 0.0625, id="in the other"),
        pytest.param(8, 1, 2 * 10 / 2**9, id="eight against one"),
        pytest.param(3, 3, 1.0, id="even"),
    ],
)
def test_the_sign_test_is_exact_and_two_sided(lost: int, won: int, expected: float) -> None:
    """The tail of the binomial distribution, twice, never over 1."""
    assert pytest.approx(expected) == sign_test(lost, won) == Flips(lost, won).p_value


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_sign_test_is_a_probability_and_even_handed(lost: int, won: int) -> None:
    """Which direction is called lost does not matter."""
    assert 0.0 < sign_test(lost, won) <= 1.0
    assert math.isclose(sign_test(lost, won), sign_test(won, lost))
