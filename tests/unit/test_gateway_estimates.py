"""What is learned about engines from their answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sternpost_gateway.estimates import (
    BYTES_PER_TOKEN_DEFAULT,
    PREFILL_RATE_DEFAULT,
    PREFILL_RATE_MAX,
    SAMPLE_TOKENS_MIN,
    Estimates,
    Sample,
)
from sternpost_gateway.fleet import Engine

ENGINE, OTHER = Engine("http://engine"), Engine("http://other")
SAMPLE = Sample(
    queued_tokens=1000.0,
    computed_tokens=1000.0,
    first_token_seconds=0.5,
    predicted_tokens=0.0,
    reused_tokens=None,
)


def taught(sample: Sample, times: int = 1) -> Estimates:
    """Return estimates after so many equal answers of one engine."""
    estimates = Estimates()
    for _ in range(times):
        estimates.learn(ENGINE, sample)
    return estimates


def test_rate_is_what_was_computed_until_the_first_token() -> None:
    """Tokens ahead count as well; an engine not measured yet is taken for an average one."""
    estimates = taught(SAMPLE)

    assert [4000.0, 4000.0] == [estimates.prefill_rate(engine) for engine in (ENGINE, OTHER)]


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(replace(SAMPLE, first_token_seconds=None), id="no-time"),
        pytest.param(replace(SAMPLE, first_token_seconds=0.0), id="no-duration"),
        pytest.param(replace(SAMPLE, computed_tokens=SAMPLE_TOKENS_MIN - 1.0), id="too-few-tokens"),
    ],
)
def test_rate_is_not_learned_from_what_says_nothing(sample: Sample) -> None:
    """Without a time, or with hardly a token computed, the default stays."""
    assert PREFILL_RATE_DEFAULT == taught(sample).prefill_rate(ENGINE)


def test_rate_is_bounded() -> None:
    """One absurd answer does not make an engine infinitely fast."""
    assert PREFILL_RATE_MAX == taught(replace(SAMPLE, first_token_seconds=1e-9)).prefill_rate(ENGINE)


def test_engine_that_holds_much_is_not_taken_for_slow() -> None:
    """Both compute 10,000 tokens a second behind 10 ms; one only ever computes the ends of prompts."""
    estimates = Estimates()
    for _ in range(50):
        for engine, tokens in ((ENGINE, 200.0), (OTHER, 2000.0)):
            answer = replace(
                SAMPLE, queued_tokens=0.0, computed_tokens=tokens, first_token_seconds=0.01 + tokens / 10_000
            )
            estimates.learn(engine, answer)

    assert 0.8 < estimates.prefill_rate(ENGINE) / estimates.prefill_rate(OTHER) < 1.25


def test_engine_that_is_slow_is_known_from_the_others() -> None:
    """Where an engine differs by more than what chance does, its own rate counts."""
    estimates = Estimates()
    for _ in range(50):
        estimates.learn(ENGINE, SAMPLE)
        estimates.learn(OTHER, replace(SAMPLE, first_token_seconds=2.0))

    assert [4000.0, 1000.0] == pytest.approx([estimates.prefill_rate(engine) for engine in (ENGINE, OTHER)])


@pytest.mark.parametrize("factor", [0.01, 100.0], ids=["absurdly-fast", "absurdly-slow"])
def test_one_absurd_answer_is_outweighed_by_a_few(factor: float) -> None:
    """A stall of one request, or an answer from a cache, makes no engine another one for long."""
    estimates = taught(SAMPLE)
    estimates.learn(ENGINE, replace(SAMPLE, first_token_seconds=0.5 * factor))
    for _ in range(10):
        estimates.learn(ENGINE, SAMPLE)

    assert 4000.0 == pytest.approx(estimates.prefill_rate(ENGINE), rel=0.2)


def test_rate_follows_an_engine_that_becomes_slower() -> None:
    """Within some dozens of answers the average is the new rate."""
    estimates = taught(SAMPLE)
    for _ in range(50):
        estimates.learn(ENGINE, replace(SAMPLE, first_token_seconds=5.0))

    assert 400.0 == pytest.approx(estimates.prefill_rate(ENGINE), rel=0.1)


def test_trust_falls_where_predictions_do_not_come_true_and_returns() -> None:
    """An engine without a prefix cache is found out; nothing is held against engines that say nothing."""
    silent = taught(replace(SAMPLE, predicted_tokens=1000.0), times=50)
    empty = taught(replace(SAMPLE, predicted_tokens=1000.0, reused_tokens=0.0), times=50)
    fallen = empty.trust(ENGINE)
    for _ in range(50):
        empty.learn(ENGINE, replace(SAMPLE, predicted_tokens=1000.0, reused_tokens=1100.0))

    assert (1.0, True, True) == (silent.trust(ENGINE), fallen < 0.01, empty.trust(ENGINE) > 0.99)


def test_tokens_are_estimated_by_what_engines_count() -> None:
    """The ratio follows the answers, within what is believable."""
    estimates = Estimates()
    before = estimates.tokens(1200)
    for _ in range(100):
        estimates.learn_length(1200, 600)
    learned = estimates.tokens(1200)
    for _ in range(1000):
        estimates.learn_length(10**9, 1)
    estimates.learn_length(1200, 0)

    assert 1200 / BYTES_PER_TOKEN_DEFAULT == before
    assert 600.0 == pytest.approx(learned, rel=0.01)
    assert 75.0 == pytest.approx(estimates.tokens(1200))


def test_engine_that_starts_anew_is_not_known() -> None:
    """What was learned about an engine goes with it."""
    estimates = taught(replace(SAMPLE, predicted_tokens=10.0, reused_tokens=0.0))
    estimates.forget(ENGINE)

    assert 1.0 == estimates.trust(ENGINE)
