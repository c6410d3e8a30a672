"""`python -m bench.recipes`: compute what is left, report the tasks that are done, and save them all."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from transformers import AutoTokenizer

from bench.common.results import write_results
from bench.common.resumable import EXIT_MORE
from bench.common.store import RecordStore, fingerprint_of
from bench.quality.tasks import Task, load_task
from bench.recipes.recipes import RECIPES
from bench.recipes.summary import Case, make_cases, report, result_rows, summarize
from bench.recipes.workbench import (
    EXACT,
    SAMPLES,
    Models,
    from_record,
    make_workbench,
    prompts_of,
    to_record,
)
from sternpost_core.clock import SystemClock
from sternpost_core.command import EXIT_FAILED
from sternpost_core.errors import SternpostError
from sternpost_engine.calibrate.budget import Budget, start_budget
from sternpost_engine.calibrate.progress import ProgressBars
from sternpost_engine.model_fetch import default_directory
from sternpost_engine.reference import load_model
from sternpost_gateway.bench.machine import describe_machine

ROOT: Final = Path(__file__).parents[2]
DATA: Final = Path(__file__).parent / "data"
RESULTS: Final = ROOT / "bench" / "results" / "recipes.json"

TASKS: Final = ("locker", "language", "desk", "fruit", "colour", "mood")
SEED: Final = 1129
PROMPTS: Final = 48
OWNER_PROMPTS: Final = 24
SECONDS_DEFAULT: Final = 7200


def main(argv: Sequence[str] | None = None) -> int:
    """Compute, write each prompt's record as it comes, and report once every task is done."""
    arguments = _parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    try:
        left = run(arguments)
    except SternpostError as error:
        print(f"bench recipes: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_MORE if left else 0


def run(arguments: argparse.Namespace) -> int:
    """Compute the tasks in turn, as far as the time reaches; return how many are left."""
    arguments.report.mkdir(parents=True, exist_ok=True)
    budget = start_budget(SystemClock(), arguments.seconds)
    tasks = [load_task(name, DATA) for name in arguments.tasks]
    fingerprint = fingerprint_of(RECIPES, SEED, SAMPLES, arguments.prompts)
    store = RecordStore(arguments.report / "records.jsonl", fingerprint)
    missing = [task for task in tasks if any(key not in store for key in _keys(task, arguments.prompts))]
    if missing:
        models = _load(arguments.model)
        with ProgressBars(Console(stderr=True)) as bars:
            for task in missing:
                _compute(task, models, arguments.prompts, store, budget, bars)
    complete = [task for task in tasks if all(key in store for key in _keys(task, arguments.prompts))]
    _conclude(complete, arguments, store)
    return len(tasks) - len(complete)


def _compute(
    task: Task, models: Models, count: int, store: RecordStore, budget: Budget, bars: ProgressBars
) -> None:
    if not budget.has(0.0):
        return
    owner, test = prompts_of(task, OWNER_PROMPTS, count, SEED)
    workbench = make_workbench(models, task, owner, test, budget, bars)
    bars.begin(task.name, OWNER_PROMPTS + count)
    for prompt, recipes in [*((one, ()) for one in owner), *((one, RECIPES) for one in test)]:
        if not budget.has(0.0):
            return
        if prompt.id not in store:
            store.add(prompt.id, to_record(workbench.read(prompt, recipes)))
        bars.step()


def _keys(task: Task, count: int) -> list[str]:
    owner, test = prompts_of(task, OWNER_PROMPTS, count, SEED)
    return [prompt.id for prompt in (*owner, *test)]


def _conclude(tasks: Sequence[Task], arguments: argparse.Namespace, store: RecordStore) -> None:
    left = len(arguments.tasks) - len(tasks)
    if left:
        print(f"{left} of {len(arguments.tasks)} tasks are not done; run it again", file=sys.stderr)
    if not tasks:
        return
    figures = summarize({task.name: _cases(task, arguments.prompts, store) for task in tasks})
    print(report(figures))
    if {task.name for task in tasks} == set(TASKS):
        machine = describe_machine(ROOT)
        write_results("recipes", result_rows(figures), machine, datetime.now(UTC), RESULTS)


def _cases(task: Task, count: int, store: RecordStore) -> list[Case]:
    owner, test = prompts_of(task, OWNER_PROMPTS, count, SEED)
    return make_cases(
        [task.answers.index(prompt.answer) for prompt in test],
        [from_record(store[prompt.id])[EXACT] for prompt in owner],
        [from_record(store[prompt.id]) for prompt in test],
    )


def _load(folder: Path | None) -> Models:
    model = folder or default_directory(os.environ)
    cpu = torch.device("cpu")
    return Models(
        exact=load_model(model, torch.float32, cpu),
        rough=load_model(model, torch.bfloat16, cpu),
        tokenizer=AutoTokenizer.from_pretrained(model, local_files_only=True),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.recipes", description=__doc__)
    parser.add_argument("--model", type=Path, help="default: the small model of `sternpost model fetch`")
    parser.add_argument("--report", type=Path, default=ROOT / "recipes-report", help="folder of the records")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="default: all")
    parser.add_argument("--prompts", type=_count, default=PROMPTS, help="per task (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=_count, default=SECONDS_DEFAULT, help="after which no prompt begins (%(default)s)"
    )
    parser.add_argument("--threads", type=_count, default=1, help="default: %(default)s")
    return parser


def _count(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not allowed; allowed: an integer from 1 on")
    return int(word)


if __name__ == "__main__":
    sys.exit(main())
