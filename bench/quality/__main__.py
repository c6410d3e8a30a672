"""`python -m bench.quality`: run or go on, then report; the exit status says whether more is to be run."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
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
from bench.quality.asking import ANSWER_TOKENS_MAX, LIKELIEST, Reading, Reference
from bench.quality.form import Ending, ending_of
from bench.quality.passes import (
    CONTEXT_TOKENS,
    MEANS,
    SAMPLES,
    Probe,
    Run,
    make_probes,
    missing_of,
    prior_key,
    reading_key,
    reference_key,
    run_all,
)
from bench.quality.report import bounds_table, report
from bench.quality.summary import Case, result_rows, summarize
from bench.quality.tasks import ENDING, FURTHER, TASKS, Prompt, load_task
from bench.quality.texts import TextOf, token_texts
from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError
from sternpost_engine.model_fetch import default_directory
from sternpost_gateway.bench.machine import describe_machine

ROOT: Final = Path(__file__).parents[2]

SEED: Final = 2026
PROMPTS: Final = 100
OWNER_PROMPTS: Final = 24

SECONDS_MAX: Final = 7200.0


@dataclass(frozen=True, slots=True)
class Saved:
    """Where figures are kept: the result file, and the page that is made with it."""

    name: str
    root: Path = ROOT

    @property
    def results(self) -> Path:
        """The result file."""
        return self.root / "bench" / "results" / f"{self.name}.json"

    @property
    def document(self) -> Path:
        """The page of tables."""
        return self.root / "docs" / "results" / f"{self.name}.md"


def saved_of(tasks: Sequence[str], root: Path = ROOT) -> Saved:
    """
    Return where the figures of these tasks are kept: further tasks have files of their own.

    Raises:
        OperatingError: some tasks are further ones and others are not, so that no file is meant for all.
    """
    further = [name for name in tasks if name in FURTHER]
    if further and len(further) < len(tasks):
        raise OperatingError(
            f"--save-results: tasks {', '.join(tasks)} are of both kinds; allowed: some of "
            f"{', '.join(TASKS)}, or some of {', '.join(FURTHER)}"
        )
    return Saved("quality_further" if further else "quality", root)


def main(argv: Sequence[str] | None = None) -> int:
    """Ask what is left to ask; report when all is there."""
    arguments = _parser().parse_args(argv)
    clock = SystemClock()
    progress = Progress(clock, clock.monotonic(), sys.stdout)
    return status_of(lambda: _carry_out(arguments, progress), progress)


def _carry_out(arguments: argparse.Namespace, progress: Progress) -> None:
    saved = saved_of(arguments.tasks) if arguments.save_results else None
    (arguments.report / "logs").mkdir(parents=True, exist_ok=True)
    run = _run(arguments, progress)
    if not arguments.report_only:
        asyncio.run(run_all(run))
    check_whole(run)
    _conclude(run, saved)


def check_whole(run: Run) -> None:
    """
    Check that everything that a report needs is recorded.

    Raises:
        OperatingError: it is not; it says how much is missing, and what first.
    """
    missing = missing_of(run)
    if missing:
        raise OperatingError(
            f"{run.folder}: {len(missing)} answers are not recorded, the first of them {missing[0]}; "
            "run it without --report-only"
        )


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
        "--save-results",
        action="store_true",
        help="write bench/results and docs/results, too; further tasks have files of their own there",
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


def _conclude(run: Run, saved: Saved | None) -> None:
    text_of = token_texts(run.model)
    cases = {probe.task.name: cases_of(run.records, probe, run.arms, text_of) for probe in run.probes}
    figures = summarize(cases, run.arms)
    machine, date = describe_machine(ROOT), datetime.now(UTC)
    text = report(figures, machine, date, _settings(run))
    (run.folder / "report.md").write_text(text, encoding="utf-8")
    print(f"\n{bounds_table(figures)}\n")
    run.progress.tell(f"report, records and logs: {run.folder}")
    if saved is not None:
        write_results(saved.name, result_rows(figures), machine, date, saved.results)
        saved.document.parent.mkdir(parents=True, exist_ok=True)
        saved.document.write_text(text, encoding="utf-8")


def cases_of(records: RecordStore, probe: Probe, arms: Sequence[Arm], text_of: TextOf) -> list[Case]:
    """Return a task's prompts with what each of these arms made of them."""
    owner = [Reading.from_record(records[prior_key(prompt)]) for prompt in probe.owner]
    prior = prior_of([reading.answers for reading in owner])
    return [
        Case(
            right=probe.task.answers.index(prompt.answer),
            prior=prior,
            readings={arm.name: Reading.from_record(records[reading_key(arm, prompt)]) for arm in arms},
            ending=_ending(records, prompt, text_of) if probe.task.name in ENDING else None,
        )
        for prompt in probe.prompts
    ]


def _ending(records: RecordStore, prompt: Prompt, text_of: TextOf) -> Ending:
    reference = Reference.from_record(records[reference_key(prompt)])
    likeliest = [[text_of(token) for token in tokens] for tokens in reference.likeliest]
    return ending_of([text_of(token) for token in reference.tokens], likeliest)


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
