"""`python -m bench.quality`: run or go on, then report; the exit status says whether more is to be run."""

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
from bench.common.results import write_results
from bench.common.resumable import status_of
from bench.common.store import RecordStore, fingerprint_of
from bench.demo.progress import Progress
from bench.quality.accuracy import prior_of
from bench.quality.arms import ARMS, EXACT, FLOOR, LAST, Arm
from bench.quality.asking import ANSWER_TOKENS_MAX, LIKELIEST, Reading
from bench.quality.passes import (
    CONTEXT_TOKENS,
    MEANS,
    SAMPLES,
    Probe,
    Run,
    make_probes,
    prior_key,
    reading_key,
    run_all,
)
from bench.quality.report import bounds_table, report
from bench.quality.summary import Case, result_rows, summarize
from bench.quality.tasks import FURTHER, TASKS, load_task
from sternpost_core.clock import SystemClock
from sternpost_engine.model_fetch import default_directory
from sternpost_gateway.bench.machine import describe_machine

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "bench" / "results" / "quality.json"
DOCUMENT: Final = ROOT / "docs" / "results" / "quality.md"

SEED: Final = 2026
PROMPTS: Final = 100
OWNER_PROMPTS: Final = 24

SECONDS_MAX: Final = 7200.0


def main(argv: Sequence[str] | None = None) -> int:
    """Ask what is left to ask; report when all is there."""
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
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description=__doc__)
    parser.add_argument("--model", type=Path, help="default: the small model of `sternpost model fetch`")
    parser.add_argument("--report", type=Path, default=ROOT / "quality-report", help="folder of the records")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="per task (default: %(default)s)")
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=(*TASKS, *FURTHER),
        default=list(TASKS),
        help=f"default: {', '.join(TASKS)}; with others, the records need a folder of their own",
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=[arm.name for arm in ARMS],
        default=[arm.name for arm in ARMS],
        help="beside exact and bfloat16; default: all",
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_MAX, help="stop after so long; the next run goes on"
    )
    parser.add_argument("--report-only", action="store_true", help="ask nothing; report what is recorded")
    parser.add_argument(
        "--save-results", action="store_true", help="write bench/results and docs/results, too"
    )
    return parser


def _run(arguments: argparse.Namespace, progress: Progress) -> Run:
    tasks = [load_task(name) for name in (*TASKS, *FURTHER) if name in TASKS or name in arguments.tasks]
    probes = make_probes(tasks, arguments.prompts, OWNER_PROMPTS, SEED)
    folder = arguments.report.absolute()
    # Not the number of prompts: fewer are the first of more, so that a run can be made longer.
    owner = [probe.owner for probe in probes]
    settings = (ARMS, LAST, ANSWER_TOKENS_MAX, LIKELIEST, CONTEXT_TOKENS, SAMPLES)
    fingerprint = fingerprint_of(tasks, owner, SEED, settings)
    return Run(
        probes=tuple(probe for probe in probes if probe.task.name in arguments.tasks),
        arms=tuple(arm for arm in ARMS if arm in (EXACT, FLOOR) or arm.name in arguments.arms),
        records=RecordStore(folder / "records.jsonl", fingerprint),
        progress=progress,
        start=partial(running_engine, logs=folder / "logs", progress=progress),
        folder=folder,
        model=arguments.model or default_directory(os.environ),
        seconds_max=arguments.seconds,
    )


def _conclude(run: Run, arguments: argparse.Namespace) -> None:
    cases = {probe.task.name: cases_of(run.records, probe, run.arms) for probe in run.probes}
    figures = summarize(cases, run.arms)
    machine, date = describe_machine(ROOT), datetime.now(UTC)
    text = report(figures, machine, date, _settings(run))
    (run.folder / "report.md").write_text(text, encoding="utf-8")
    print(f"\n{bounds_table(figures)}\n")
    run.progress.tell(f"report, records and logs: {run.folder}")
    if arguments.save_results:
        write_results("quality", result_rows(figures), machine, date, RESULTS)
        DOCUMENT.parent.mkdir(parents=True, exist_ok=True)
        DOCUMENT.write_text(text, encoding="utf-8")


def cases_of(records: RecordStore, probe: Probe, arms: Sequence[Arm] = ARMS) -> list[Case]:
    """Return a task's prompts with what each of these arms made of them."""
    owner = [Reading.from_record(records[prior_key(prompt)]) for prompt in probe.owner]
    prior = prior_of([reading.answers for reading in owner])
    return [
        Case(
            right=probe.task.answers.index(prompt.answer),
            prior=prior,
            readings={arm.name: Reading.from_record(records[reading_key(arm, prompt)]) for arm in arms},
        )
        for prompt in probe.prompts
    ]


def _settings(run: Run) -> str:
    first = [(probe, run.records[reading_key(EXACT, probe.prompts[0])]) for probe in run.probes]
    tails = [f"{probe.task.name} {Reading.from_record(record).tail_tokens}" for probe, record in first]
    return (
        f"{run.model.name}, {len(run.probes[0].prompts)} prompts per task, seed {SEED}; the tails' tokens: "
        f"{', '.join(tails)}. Every reusing arm computes the last {LAST} tokens of the tail. Means are over "
        f"{SAMPLES} middles at each of {MEANS} lengths (about 48 and 384 tokens; prompts end at "
        f"{CONTEXT_TOKENS}); the owner's are made from {len(run.probes[0].owner)} texts per task."
    )


if __name__ == "__main__":
    sys.exit(main())
