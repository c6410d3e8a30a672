"""The benchmark of lint's predictions: what it makes of figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.agent_log.compare import Comparison
from bench.lint import result_rows
from sternpost_fakes.lint_logs import RULES, chats, report_of, write_log


def test_rows_hold_predictions_beside_counts(tmp_path: Path) -> None:
    """With how far they are apart, as shares of prompt tokens."""
    report = report_of(write_log(tmp_path / "log", chats(40, lambda number: f"Turn: {number}\n{RULES}")))
    found = Comparison(report, 0.01, 0.8)
    values = {(row.workload, row.metric): row.value for row in result_rows(found)}

    assert 0.8 == values["agent_log_fixed", "reuse_counted"]
    assert report.reuse_fixed == values["agent_log_fixed", "reuse_predicted"]
    assert abs(report.reuse - 0.01) == pytest.approx(values["agent_log_today", "reuse_difference"])
    assert {40} == {row.n for row in result_rows(found)}
