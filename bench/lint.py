"""
What `sternpost lint` predicts of 10,000 agent requests, beside what vLLM counts: `python -m bench.lint`.

vLLM's parser of requests and its cache manager run without an engine around them: a prefix cache looks at
tokens only, so that no weights are needed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.agent_log.compare import Comparison, compare
from bench.common.results import Row, write_results
from sternpost_engine.model_fetch import default_directory
from sternpost_gateway.bench.machine import describe_machine

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results" / "lint.json"

REQUESTS: Final = 10_000
SEED: Final = 11

DIFFERENCE_MAX: Final = 0.02
"""By how much a prediction of reuse may be off."""

TODAY, FIXED = "agent_log_today", "agent_log_fixed"


def main(argv: Sequence[str] | None = None) -> int:
    """Predict, count and print; 1 if a prediction is off by more than two points."""
    parser = argparse.ArgumentParser(prog="python -m bench.lint", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="default: %(default)s")
    parser.add_argument("--save-results", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = compare(default_directory(os.environ), Path(folder), arguments.requests, SEED)
    rows = result_rows(found)
    for row in rows:
        print(f"{row.workload:18} {row.metric:18} {row.value:8.4f}  n = {row.n:,}")
    if arguments.save_results:
        write_results("lint", rows, describe_machine(ROOT), datetime.now(UTC), RESULTS)
    return int(max(found.differences) > DIFFERENCE_MAX)


def result_rows(found: Comparison) -> list[Row]:
    """Return the shares of reuse, predicted and counted by vLLM, and how far they are apart."""
    report, (today_off, fixed_off) = found.report, found.differences
    figures = (
        (TODAY, "reuse_predicted", report.reuse),
        (TODAY, "reuse_counted", found.today),
        (TODAY, "reuse_difference", today_off),
        (FIXED, "reuse_predicted", report.reuse_fixed),
        (FIXED, "reuse_counted", found.fixed),
        (FIXED, "reuse_difference", fixed_off),
    )
    count = report.lines.requests
    return [
        Row(workload=workload, metric=metric, value=value, n=count) for workload, metric, value in figures
    ]


if __name__ == "__main__":
    sys.exit(main())
