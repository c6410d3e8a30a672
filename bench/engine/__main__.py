"""`python -m bench.engine`: run or go on, then report; the exit status says whether more is to be run."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from bench.common.engine_process import running_engine
from bench.common.results import Row, write_results
from bench.common.resumable import status_of
from bench.common.store import RecordStore, code_of, fingerprint_of
from bench.demo.progress import Progress
from bench.engine.asking import Sample
from bench.engine.batches import ARGUMENTS, ENGINES, PATCHED, PLAIN, Run, batch_key, memory_key, run_all
from bench.engine.report import bounds_table, report
from bench.engine.scenarios import AT_ONCE, Batch, Scenario, make_scenarios
from bench.engine.summary import BatchPair, judge, memory_rows, reasons_of, workload_rows
from sternpost_core.clock import SystemClock
from sternpost_engine.model_fetch import default_directory
from sternpost_gateway.bench.machine import describe_machine

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "bench" / "results" / "engine.json"
DOCUMENT: Final = ROOT / "docs" / "results" / "engine.md"

SEED: Final = 2026
SECONDS_MAX: Final = 3600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is left to run; report when all is there."""
    arguments = _parser().parse_args(argv)
    clock = SystemClock()
    progress = Progress(clock, clock.monotonic(), sys.stdout)
    return status_of(lambda: _carry_out(arguments, progress), progress)


def _carry_out(arguments: argparse.Namespace, progress: Progress) -> None:
    (arguments.report / "logs").mkdir(parents=True, exist_ok=True)
    run = _run(arguments, progress)
    if not arguments.report_only:
        asyncio.run(run_all(run))
    _conclude(run, arguments)


def _parser() -> argparse.ArgumentParser:
    names = [scenario.name for scenario in make_scenarios(SEED)]
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--model", type=Path, help="default: the small model of `sternpost model fetch`")
    parser.add_argument("--report", type=Path, default=ROOT / "engine-report", help="folder of the records")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="scenarios; default: all")
    parser.add_argument("--report-only", action="store_true", help="run nothing; report what is recorded")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_MAX, help="stop after so long; the next run goes on"
    )
    parser.add_argument(
        "--save-results", action="store_true", help="write bench/results and docs/results, too"
    )
    return parser


def _run(arguments: argparse.Namespace, progress: Progress) -> Run:
    scenarios = make_scenarios(SEED)
    folder = arguments.report.absolute()
    return Run(
        scenarios=[scenario for scenario in scenarios if scenario.name in arguments.only],
        records=RecordStore(
            folder / "records.jsonl", fingerprint_of(scenarios, ARGUMENTS, code_of(ROOT / "engine_patch"))
        ),
        progress=progress,
        start=partial(running_engine, logs=folder / "logs", progress=progress),
        model=arguments.model or default_directory(os.environ),
        seconds_max=arguments.seconds,
    )


def _conclude(run: Run, arguments: argparse.Namespace) -> None:
    rows: list[Row] = []
    reasons = {}
    for scenario in run.scenarios:
        for workload, batches in workloads(run.records, scenario).items():
            rows += workload_rows(workload, batches)
            reasons[workload] = reasons_of(batches)
    if all(memory_key(name) in run.records for name in ENGINES):
        rows += memory_rows({name: run.records[memory_key(name)] for name in ENGINES})
    judged = judge(rows)
    machine, date = describe_machine(ROOT), datetime.now(UTC)
    text = report(rows, judged, reasons, machine, date, run.model.name)
    folder: Path = arguments.report
    (folder / "report.md").write_text(text, encoding="utf-8")
    print(f"\n{bounds_table(judged)}\n")
    run.progress.tell(f"report, records and logs: {folder}")
    if arguments.save_results:
        write_results("engine", rows, machine, date, RESULTS)
        DOCUMENT.parent.mkdir(parents=True, exist_ok=True)
        DOCUMENT.write_text(text, encoding="utf-8")


def workloads(records: RecordStore, scenario: Scenario) -> dict[str, list[BatchPair]]:
    """Return a scenario's batches that both engines have run; several sessions at once have another name."""
    found: dict[str, list[BatchPair]] = {}
    for batch in scenario.batches:
        if any(batch_key(scenario, batch, name) not in records for name in ENGINES):
            continue
        name = scenario.name if len(batch.sessions) == 1 else f"{scenario.name}_{AT_ONCE}"
        found.setdefault(name, []).append(_pair(records, scenario, batch))
    return found


def _pair(records: RecordStore, scenario: Scenario, batch: Batch) -> BatchPair:
    plain, patched = (records[batch_key(scenario, batch, name)] for name in (PLAIN, PATCHED))
    return BatchPair(
        plain_seconds=plain["seconds"],
        patched_seconds=patched["seconds"],
        plain=tuple(Sample.from_record(sample) for sample in plain["samples"]),
        patched=tuple(Sample.from_record(sample) for sample in patched["samples"]),
    )


if __name__ == "__main__":
    sys.exit(main())
