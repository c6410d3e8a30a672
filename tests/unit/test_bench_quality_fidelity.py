"""KL divergence and top-1 agreement from log-probabilities of a few tokens."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quality.fidelity import kl_divergence, likeliest, mean_kl, top1_share


def logs(*probabilities: float) -> tuple[float, ...]:
    """Return log-probabilities."""
    return tuple(map(math.log, probabilities))


@pytest.mark.parametrize(
    ("exact", "other", "expected"),
    [
        pytest.param(logs(0.5, 0.5), logs(0.5, 0.5), 0.0, id="the same"),
        pytest.param(logs(0.5), logs(0.25), 0.5 * math.log(2) + 0.5 * math.log(2 / 3), id="with the rest"),
        pytest.param(
            logs(0.6, 0.3), logs(0.3, 0.6), 0.6 * math.log(2) - 0.3 * math.log(2), id="two tokens swapped"
        ),
    ],
)
def test_kl_counts_the_known_tokens_and_the_rest_as_one(
    exact: Sequence[float], other: Sequence[float], expected: float
) -> None:
    """The probability that is left is one more outcome."""
    assert pytest.approx(expected, abs=1e-6) == kl_divergence(exact, other)


distributions = st.integers(2, 6).flatmap(
    lambda size: st.tuples(*(st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size) for _ in range(2)))
)


@given(distributions)
def test_kl_over_fewer_tokens_is_a_lower_bound(pair: tuple[list[float], list[float]]) -> None:
    """Taking tokens together never adds divergence, and divergence is never below zero."""
    whole = [[math.log(weight / sum(weights)) for weight in weights] for weights in pair]
    coarse = [logprobs[:-1] for logprobs in whole]
    coarser = [logprobs[:-2] for logprobs in whole]

    assert 0.0 <= kl_divergence(*coarser) <= kl_divergence(*coarse) + 1e-9


def test_kl_of_rounded_probabilities_stays_finite() -> None:
    """Log-probabilities that add up to more than 1 by rounding leave a trace for the rest."""
    assert math.isfinite(kl_divergence([1e-9], [math.log(0.9)]))


def test_kl_needs_the_same_tokens() -> None:
    """Different counts are an error, never a silent cut."""
    with pytest.raises(ValueError, match="2 and 1"):
        kl_divergence(logs(0.5, 0.4), logs(0.5))


def test_the_mean_is_over_positions() -> None:
    """Two positions, one of them equal, halve the other's divergence."""
    once = kl_divergence(logs(0.5), logs(0.25))

    assert pytest.approx(once / 2) == mean_kl([logs(0.5), logs(0.9)], [logs(0.25), logs(0.9)])


def test_top1_counts_positions_whose_likeliest_token_stays() -> None:
    """A change of probability that leaves the order alone is agreement."""
    exact = [logs(0.6, 0.3), logs(0.6, 0.3), logs(0.2, 0.7)]
    other = [logs(0.5, 0.4), logs(0.3, 0.6), logs(0.1, 0.2)]

    assert pytest.approx(2 / 3) == top1_share(exact, other)


def test_the_first_of_equal_tokens_is_the_likeliest() -> None:
    """So ties are broken alike in every arm."""
    assert 0 == likeliest([-1.0, -1.0, -2.0])
