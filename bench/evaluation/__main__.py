"""`python -m bench.evaluation`: run or go on, then report; the exit status says whether more is to be run."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.common.engine_process import running_engine
from bench.common.results import head_of, write_document
from bench.common.resumable import status_of
from bench.common.store import RecordStore, code_of, fingerprint_of
from bench.demo.progress import Progress
from bench.evaluation.claims import Judged, judge
from bench.evaluation.peers import available
from bench.evaluation.scope import QUICK, SEED, WHOLE, Scope
from bench.evaluation.targets import NO_CACHE, PLAIN, POLICIES, own_routers
from bench.evaluation.units import Run, recorded_units, run_all
from bench.gateway.arms import LITELLM_REQUIREMENT
from bench.routing.routers import PEERS, Router
from sternpost_core.clock import SystemClock
from sternpost_engine.model_fetch import default_directory
from sternpost_gateway.bench.machine import describe_machine
from sternpost_gateway.bench.plot import write_plot
from sternpost_gateway.bench.recipes import load_recipes
from sternpost_gateway.bench.report import failures, table, with_interval
from sternpost_gateway.bench.sample import Unit
from sternpost_gateway.bench.summary import Figures, figures_of, ratios_of, rows_of

ROOT: Final = Path(__file__).parents[2]
MEASURED: Final = tuple(ROOT / name for name in ("core", "gateway", "engine_patch"))
RESULTS: Final = ROOT / "bench" / "results" / "evaluation.json"
PICTURE: Final = ROOT / "docs" / "benchmarks.png"

SECONDS_MAX: Final = {"quick": 900.0, "whole": 5400.0}
SCOPES: Final[Mapping[str, Scope]] = {"quick": QUICK, "whole": WHOLE}


@dataclass(frozen=True, slots=True)
class Found:
    """What a run came to: units, figures, bounds, and why some targets could not be run."""

    units: Sequence[Unit]
    figures: Sequence[Figures]
    judged: Sequence[Judged]
    missing: Mapping[str, str]
    routers: Sequence[Router]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is left to run; report when all is there."""
    arguments = _parser().parse_args(argv)
    clock = SystemClock()
    progress = Progress(clock, clock.monotonic(), sys.stdout)
    return status_of(lambda: _carry_out(arguments, progress), progress)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.evaluation", description=__doc__)
    parser.add_argument("--scope", choices=list(SCOPES), default="quick", help="default: %(default)s")
    parser.add_argument("--model", type=Path, help="default: the small model of `sternpost model fetch`")
    parser.add_argument(
        "--report", type=Path, default=ROOT / "evaluation-report", help="folder of the records"
    )
    parser.add_argument("--only", nargs="+", default=[], choices=list(WHOLE), help="workloads")
    parser.add_argument("--report-only", action="store_true", help="run nothing; report what is recorded")
    parser.add_argument("--seconds", type=float, help="stop after so long; the next run goes on")
    parser.add_argument("--save-results", action="store_true", help="write bench/results and docs, too")
    return parser


def _carry_out(arguments: argparse.Namespace, progress: Progress) -> None:
    folder: Path = arguments.report.absolute() / arguments.scope
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    model: Path = arguments.model or default_directory(os.environ)
    scope = SCOPES[arguments.scope]
    peers, missing = available(model.name, folder)
    for name, reason in missing.items():
        progress.tell(f"{name} is not compared: {reason}")
    fingerprint = fingerprint_of(scope, SEED, load_recipes(), POLICIES, code_of(*MEASURED))
    run = Run(
        scope=scope,
        only=tuple(arguments.only),
        routers=[*peers, *own_routers(folder)],
        records=RecordStore(folder / "records.jsonl", fingerprint),
        progress=progress,
        start=partial(running_engine, logs=folder / "logs", progress=progress),
        model=model,
        folder=folder,
        seconds_max=arguments.seconds or SECONDS_MAX[arguments.scope],
    )
    try:
        if not arguments.report_only:
            missing |= asyncio.run(run_all(run))
    finally:
        # A run that was cut short shows what it has.
        _conclude(run, missing, arguments.save_results)


def _conclude(run: Run, missing: Mapping[str, str], save: bool) -> None:
    targets = [NO_CACHE, PLAIN, *(router.name for router in run.routers)]
    units = recorded_units(run.records, run.scope, targets)
    found = Found(units, figures_of(units), judge(units), missing, run.routers)
    document = document_of(found, datetime.now(UTC))
    write_document(document, run.folder / "evaluation.json")
    write_plot(found.figures, run.folder / "plot.png")
    print(f"\n{bounds_table(found.judged)}\n")
    for line in failures(units):
        run.progress.tell(f"failed requests at {line}")
    run.progress.tell(f"results, plot, records and logs: {run.folder}")
    if save:
        write_document(document, RESULTS)
        write_plot(found.figures, PICTURE)


def document_of(found: Found, now: datetime) -> dict[str, Any]:
    """Return the result file: what was run where, every figure, the bounds, and what is not compared."""
    machine = describe_machine(ROOT)
    head = head_of("evaluation", machine, now)
    pinned = dict(requirement.split("==") for requirement in (*PEERS, LITELLM_REQUIREMENT))
    present = {router.name for router in found.routers}
    named = {name.partition("[")[0]: version for name, version in pinned.items()}
    versions = {name: version for name, version in named.items() if name.replace("-", "_") in present}
    about = {recipe.name: recipe.about for recipe in load_recipes()}
    workloads = list(dict.fromkeys(unit.workload for unit in found.units))
    return {
        **head,
        "versions": {**head["versions"], **versions},
        "baseline": PLAIN,
        "missing": dict(found.missing),
        "workloads": {name: about[name] for name in workloads},
        "bounds": [bound_row(judged) for judged in found.judged],
        "rows": list(rows_of(found.figures, ratios_of(found.units, PLAIN))),
    }


def bound_row(judged: Judged) -> dict[str, Any]:
    """Return a bound as it is written."""
    figure = judged.figure
    return {
        "workload": judged.claim.bound.workload,
        "metric": judged.claim.bound.metric,
        "target": judged.claim.target,
        "says": judged.claim.says,
        "against": judged.against,
        "bound": str(judged.claim.bound),
        "value": round(figure.value, 4) if figure else None,
        "low": round(figure.low, 4) if figure else None,
        "high": round(figure.high, 4) if figure else None,
        "n": figure.count if figure else 0,
        "holds": judged.holds,
    }


def bounds_table(judged: Sequence[Judged]) -> str:
    """Return the bounds as a Markdown table."""
    head = ("workload", "metric", "target", "against", "bound", "measured (95%)", "")
    rows = [
        [
            one.claim.bound.workload,
            one.claim.bound.metric,
            one.claim.target,
            one.against,
            str(one.claim.bound),
            with_interval(one.figure, 3) if one.figure else "not run",
            "" if one.figure is None else "holds" if one.holds else "MISSED",
        ]
        for one in judged
    ]
    return table(head, rows)


if __name__ == "__main__":
    sys.exit(main())
