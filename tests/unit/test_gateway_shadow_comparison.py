"""Comparing two paths' candidates: what agrees, and how far apart they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_gateway.shadow.comparison import Candidates, compare, divergence

VOCABULARY = 8


def logs(**shares: float) -> dict[int, float]:
    """Return candidates by shares, `t3=0.5` being token 3."""
    return {int(name[1:]): math.log(share) for name, share in shares.items()}


@pytest.mark.parametrize(
    ("exact", "reused", "expected"),
    [
        pytest.param(logs(t1=0.9, t2=0.1), logs(t1=0.6, t2=0.4), 1, id="same"),
        pytest.param(logs(t1=0.9, t2=0.1), logs(t1=0.4, t2=0.6), 0, id="other"),
        pytest.param(logs(t1=0.5, t2=0.5), logs(t1=0.4, t2=0.6), 1, id="tie"),
    ],
)
def test_first_choices_agree(exact: Candidates, reused: Candidates, expected: int) -> None:
    """The most probable token is the same; of two that are equally probable, either will do."""
    assert expected == compare([exact], [reused]).agreed


@pytest.mark.parametrize(
    ("exact", "reused", "expected"),
    [
        pytest.param(logs(t1=0.9, t2=0.1), logs(t1=0.9, t2=0.1), 0.0, id="equal"),
        pytest.param(
            logs(t1=0.5, t2=0.5),
            logs(t1=0.25, t2=0.75),
            0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75),
            id="two-tokens",
        ),
        pytest.param(
            logs(t1=0.5, t2=0.5),
            logs(t1=0.25, t3=0.75),
            0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75),
            id="rest",
        ),
    ],
)
def test_divergence_is_that_of_the_exact_path(exact: Candidates, reused: Candidates, expected: float) -> None:
    """In nats, over what both tell of and all else as one."""
    assert expected == pytest.approx(divergence(exact, reused), abs=1e-6)


def test_comparison_sums_its_tokens() -> None:
    """Shares and means are over the tokens of one answer."""
    same, other = logs(t1=0.9, t2=0.1), logs(t1=0.1, t2=0.9)
    found = compare([same] * 4, [same, same, same, other])

    assert (4, 3, 0.25) == (found.tokens, found.agreed, found.disagreement)
    assert found.divergence == pytest.approx(divergence(same, other) / 4)


def test_answers_of_different_length_are_not_compared() -> None:
    """There is nothing to compare a token with that one path does not tell of."""
    with pytest.raises(ValueError, match="zip"):
        compare([logs(t1=1.0)], [])


distributions = st.lists(st.floats(0.001, 1.0), min_size=VOCABULARY, max_size=VOCABULARY).map(
    lambda weights: [weight / sum(weights) for weight in weights]
)


@given(distributions, distributions, st.integers(1, VOCABULARY))
def test_divergence_is_never_larger_than_the_whole(p: list[float], q: list[float], kept: int) -> None:
    """Whatever part of the vocabulary is told of, the figure stays between zero and the true divergence."""
    whole = sum(one * math.log(one / other) for one, other in zip(p, q, strict=True))
    exact, reused = (
        {token: math.log(share[token]) for token in sorted(range(VOCABULARY), key=lambda t: -share[t])[:kept]}
        for share in (p, q)
    )

    assert 0.0 <= divergence(exact, reused) <= whole + 1e-6
