"""The arithmetic of the kill switch's benchmark."""

from __future__ import annotations

import pytest

from bench.kill.trial import Trial, last_read, table, ttft_verdict, verdicts


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        pytest.param([], 0.0, id="none"),
        pytest.param([9.0, 9.5], -0.5, id="all before the answer"),
        pytest.param([9.0, 10.25, 10.1], 0.25, id="the latest counts"),
    ],
)
def test_the_last_read_counts(reads: list[float], expected: float) -> None:
    """In seconds since the order's answer."""
    assert expected == pytest.approx(last_read(reads, ordered_at=10.0))


def test_each_way_has_its_figures_against_its_bounds() -> None:
    """A dead watch has a bound of its own; one failed request is too many."""
    trials = [Trial("k1_api", -0.1, 10, 0), Trial("k1_api", 0.5, 10, 1), Trial("k1_blackhole", 6.0, 10, 0)]
    found = {(item.workload, item.metric): item for item in verdicts(trials)}

    assert (0.25, True) == (found["k1_api", "p50_s"].value, found["k1_api", "p50_s"].holds)
    assert (1, False) == (
        found["k1_api", "failed_requests"].value,
        found["k1_api", "failed_requests"].holds,
    )
    assert found["k1_blackhole", "p99_s"].holds
    assert 6 + 2 == len(table(list(found.values())))


def test_the_effect_is_a_ratio_of_percentiles() -> None:
    """Twice as slow is out of bounds."""
    verdict = ttft_verdict([1.0, 1.0], [2.0, 2.0])

    assert (2.0, False, 2) == (verdict.value, verdict.holds, verdict.n)
