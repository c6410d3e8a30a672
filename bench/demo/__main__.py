"""`python -m bench.demo`: run the demonstration; the exit status says whether it holds."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from bench.demo.plot import write_plot
from bench.demo.progress import Progress
from bench.demo.report import Report, comparison, kill_table, write_report, write_results, write_row
from bench.demo.show import Outcome, show
from bench.demo.summary import Summary, conditions, summarize
from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError, SternpostError
from sternpost_gateway.bench.machine import describe_machine

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "bench" / "results" / "demo.json"

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; return 0 if all its conditions hold."""
    arguments = _parser().parse_args(argv)
    clock = SystemClock()
    progress = Progress(clock, clock.monotonic(), sys.stdout)
    try:
        folder = _prepared(arguments.report)
        with (folder / "rows.jsonl").open("w", encoding="utf-8") as rows:
            record = partial(write_row, file=rows)
            outcome = asyncio.run(show(arguments.model, folder / "logs", progress, record))
        return _conclude(outcome, folder, RESULTS if arguments.save_results else None, progress)
    except SternpostError as error:
        progress.tell(f"failed: {error}")
        return EXIT_FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        progress.tell("interrupted; everything has ended")
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.demo", description=__doc__)
    parser.add_argument("--model", type=Path, help="default: the small model of `sternpost model fetch`")
    parser.add_argument(
        "--report",
        type=Path,
        default=ROOT / "demo-report",
        help="folder of the report (default: %(default)s)",
    )
    parser.add_argument(
        "--save-results", action="store_true", help=f"write the figures to {RESULTS.relative_to(ROOT)}, too"
    )
    return parser


def _prepared(folder: Path) -> Path:
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        for old in [*(folder / "logs").glob("*.log"), *folder.glob("plot.png"), *folder.glob("report.md")]:
            old.unlink()
    except OSError as error:
        raise OperatingError(f"--report: {folder} cannot be written to: {error}") from error
    return folder.absolute()


def _conclude(outcome: Outcome, folder: Path, results: Path | None, progress: Progress) -> int:
    summary = summarize(outcome.rows, outcome.tokens, outcome.kill)
    report = Report(summary, describe_machine(ROOT), datetime.now(UTC))
    write_report(report, folder / "report.md")
    write_plot(outcome.rows, outcome.kill, folder / "plot.png")
    if results:
        write_results(report, results)
    print(f"\n{comparison(summary)}\n\n{kill_table(summary.kill)}\n")
    progress.tell(f"report, rows, plot and logs: {folder}")
    return _verdict(summary, progress)


def _verdict(summary: Summary, progress: Progress) -> int:
    missed = [condition for condition in conditions(summary) if not condition.holds]
    for condition in missed:
        progress.tell(f"does not hold: {condition.text}")
    if not missed:
        progress.tell(f"all {len(conditions(summary))} conditions hold")
    return EXIT_FAILED if missed else 0


if __name__ == "__main__":
    sys.exit(main())
