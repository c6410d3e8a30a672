"""The benchmark of the pipeline alone: what it measures, and when its bounds hold."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from bench.common.results import Row
from bench.prompts import BOUNDS, REPEATS_MIN, WORKLOADS, Workload, bodies, measure


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_bodies_have_their_size_and_never_repeat(workload: Workload) -> None:
    """Each is about as large as it says; unstable ones have another clock and order of tools each time."""
    one, two = islice(bodies(workload), 2)
    first, second = json.loads(one), json.loads(two)

    assert 0.9 < len(one) / workload.size < 1.1
    assert first["messages"][-1] != second["messages"][-1]
    assert workload.unstable is (first["messages"][0] != second["messages"][0])
    assert workload.unstable is (first["tools"] != second["tools"])


def test_every_figure_is_measured() -> None:
    """Baseline and candidate get the same bodies, after the tools have come once in each order."""
    rows = measure(Workload("small", 40_000, 1_000), seconds=0.0)

    assert ["median_ms", "p99_ms", "baseline_median_ms", "observe_median_ms", "body_bytes"] == [
        row.metric for row in rows
    ]
    assert {REPEATS_MIN} == {row.n for row in rows if row.unit == "ms"}
    assert all(row.value > 0 for row in rows)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(1.0, True, id="at-the-limit"),
        pytest.param(1.01, False, id="over-the-limit"),
        pytest.param(None, False, id="not-measured"),
    ],
)
def test_bound_needs_its_figure(value: float | None, expected: bool) -> None:
    """What was not measured does not hold."""
    rows = [] if value is None else [Row(workload="body_40k", metric="median_ms", value=value, unit="ms")]

    assert expected is BOUNDS[0].holds_in(rows)
