"""The figures of the benchmark of applied policies."""

import pytest

from bench.apply import BOUNDS, Change, rows_of, table


def test_figures_are_from_the_start_of_the_command() -> None:
    """A gateway that serves before kubectl is back leaves nothing to wait for."""
    rows = {row.metric: row.value for row in rows_of([Change(0.4, 0.3), Change(0.4, 0.5), Change(0.4, 0.7)])}

    assert pytest.approx(0.5) == rows["apply_p50_s"]
    assert pytest.approx(0.4) == rows["command_p99_s"]
    assert pytest.approx(0.1) == rows["after_p50_s"]


@pytest.mark.parametrize(("seconds", "expected"), [(0.9, True), (1.1, False)], ids=["within", "beyond"])
def test_the_bound_is_on_the_whole_way(seconds: float, expected: bool) -> None:
    """What counts is the time from kubectl's start to the last gateway."""
    rows = rows_of([Change(0.2, seconds)] * 3)
    (bound,) = BOUNDS
    (found,) = (row for row in rows if row.metric == bound.metric)

    assert expected == bound.holds(found.value)
    assert any("<= 1" in line for line in table(rows))
