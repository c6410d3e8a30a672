"""The subcommand `sternpost bench`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import aiohttp

from sternpost_core.clock import SystemClock
from sternpost_core.command import EXIT_FAILED
from sternpost_core.errors import Fault, OperatingError, SettingsError
from sternpost_core.flag_numbers import positive, scale, zero_or_more
from sternpost_gateway.bench.client import open_session
from sternpost_gateway.bench.compare import compare, comparison_text
from sternpost_gateway.bench.machine import describe_machine
from sternpost_gateway.bench.order import Order, order_of
from sternpost_gateway.bench.procedure import SETTLE_SECONDS, Bench, Step, interleaved
from sternpost_gateway.bench.progress import Advance, unit_progress
from sternpost_gateway.bench.recipes import BUILT_IN, load_recipes
from sternpost_gateway.bench.records import UNITS, Recorded, append_unit, read_records, write_head
from sternpost_gateway.bench.report import failures, report
from sternpost_gateway.bench.sample import Unit
from sternpost_gateway.bench.summary import figures_of, ratios_of, rows_of
from sternpost_gateway.bench.target import Target

ACTIONS: Final = ("run", "compare", "workloads")
COMPARED: Final = 2

DESCRIPTION: Final = """
Send the same requests to endpoints of OpenAI's API, one endpoint after the other in changing order, and say
how long the first token and the whole answer took, what was reused, and how far the answers agree.
`compare A B` sets two runs beside each other; `workloads` lists what can be asked.
Exit status: 0, 1 when a request failed.
"""


class BenchCommand:
    """Measure endpoints side by side."""

    summary = "measure endpoints of OpenAI's API side by side, on made-up or your own requests"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.description = DESCRIPTION
        parser.add_argument("action", nargs="?", choices=ACTIONS, default="run", help="default: %(default)s")
        parser.add_argument(
            "runs", nargs="*", type=Path, metavar="RUN", help="for compare: two runs' folders"
        )
        _add_targets(parser)
        _add_workloads(parser)
        parser.add_argument(
            "--out", type=Path, default=Path("bench-report"), metavar="DIR",
            help="folder of units, report, rows and plot (default: %(default)s)",
        )  # fmt: skip

    def run(self, arguments: argparse.Namespace) -> int:
        """Do what is asked for."""
        if arguments.action == "compare":
            return _compare(arguments.runs)
        if arguments.runs:
            raise SettingsError("bench", [Fault("RUN", str(arguments.runs[0]), "nothing, but for compare")])
        if arguments.action == "workloads":
            return _list_workloads(arguments.workloads or BUILT_IN)
        return _run(order_of(arguments))


COMMAND: Final = BenchCommand()
"""What the entry point names."""


def _add_targets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", action="append", default=[], metavar="NAME=URL",
        help="an endpoint; a name that is given twice takes requests at both URLs in turn",
    )  # fmt: skip
    parser.add_argument(
        "--target-body", action="append", default=[], metavar="NAME=JSON",
        help='members added to a target\'s bodies, such as off={"prefix_cache": false}',
    )  # fmt: skip
    parser.add_argument(
        "--no-reuse", action="append", default=[], metavar="NAME",
        help="give each request to this target a cache_salt of its own, so that vLLM reuses nothing",
    )  # fmt: skip
    parser.add_argument("--baseline", metavar="NAME", help="the target of the ratios (default: the first)")
    parser.add_argument(
        "--engine", action="append", default=[], metavar="URL", help="an engine whose metrics are read"
    )
    parser.add_argument(
        "--reset", action="store_true",
        help="empty the engines' prefix caches before each unit, or with --in-turn before each session: "
        "needed where targets share engines",
    )  # fmt: skip
    parser.add_argument(
        "--settle-seconds", type=zero_or_more, default=SETTLE_SECONDS, metavar="S",
        help="pause after each warm-up, in which a gateway has a tail built (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--model", metavar="NAME", help="the model to ask (default: the first one served)")
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="the key that clients send")


def _add_workloads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload", action="append", default=[], metavar="NAME", help="one to run (default: all)"
    )
    parser.add_argument(
        "--workloads", type=Path, metavar="FILE", help="a file of workloads, for the built-in"
    )
    parser.add_argument("--sessions", type=positive, metavar="N", help="sessions of each, for its own number")
    parser.add_argument("--repeats", type=positive, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--in-turn", action="store_true",
        help="hold each session at every target before the next begins: finer, for differences of a percent; "
        "for workloads of closed:at_once=1",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--replay", action="append", type=Path, default=[], metavar="FILE",
        help="replay a log of request bodies, or a trace as Mooncake publishes them, in place of workloads",
    )  # fmt: skip
    parser.add_argument(
        "--arrivals", default="closed:at_once=1", metavar="KIND",
        help="how a replay's requests arrive: closed:at_once=N, poisson:per_second=R, "
        "bursts:size=N,seconds=S, traced:speed=X (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--requests-max", type=positive, default=1000, metavar="N", help="of a replay")
    parser.add_argument("--answer-tokens", type=positive, metavar="N", help="longest answer of a replay")
    parser.add_argument(
        "--trace-scale", type=scale, default=1.0, metavar="X", help="shrinks a trace's lengths"
    )


def head_of(order: Order, now: datetime) -> dict[str, Any]:
    """Return what a run's file begins with."""
    machine = describe_machine(Path.cwd())
    return {
        "date": now.isoformat(timespec="seconds"),
        "machine": str(machine),
        "versions": {"python": machine.python, **machine.versions},
        "seed": order.seed,
        "repeats": order.repeats,
        "in_turn": order.in_turn,
        "baseline": order.baseline,
        "targets": {target.name: list(target.origins) for target in order.targets},
        "workloads": {workload.name: workload.about for workload in order.workloads},
    }


def write_reports(folder: Path, recorded: Recorded) -> str:
    """Write report, rows and plot into a run's folder, and return the report."""
    baseline = recorded.head["baseline"]
    figures = figures_of(recorded.units)
    ratios = ratios_of(recorded.units, baseline)
    text = report(recorded.head, figures, ratios)
    (folder / "report.md").write_text(text, encoding="utf-8")
    rows = {**recorded.head, "rows": list(rows_of(figures, ratios))}
    (folder / "rows.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if find_spec("matplotlib") is None:
        print("sternpost bench: no plot is drawn, because matplotlib is missing", file=sys.stderr)
    elif figures:
        # Only drawing needs it, and it takes a second to import.
        from sternpost_gateway.bench.plot import write_plot

        write_plot(figures, folder / "plot.png")
    return text


def _run(order: Order) -> int:
    path = order.out / UNITS
    write_head(path, head_of(order, datetime.now(UTC)))
    units = len(order.targets) * len(order.workloads) * order.repeats
    with unit_progress(units, sys.stderr) as advance:
        asyncio.run(_measure(order, path, advance))
    recorded = read_records(path)
    print(write_reports(order.out, recorded))
    failed = failures(recorded.units)
    for line in failed:
        print(f"sternpost bench: failed requests at {line}", file=sys.stderr)
    return EXIT_FAILED if failed else 0


async def _measure(order: Order, path: Path, advance: Advance) -> None:
    clock = SystemClock()
    async with open_session() as http:
        targets = [await _with_model(http, target) for target in order.targets]
        bench = Bench(
            http, clock, f"bench-{order.seed}-{clock.time():.0f}", order.resets, order.settle_seconds
        )
        for workload in order.workloads:
            for repeat, turns in interleaved(targets, order.repeats):
                steps = [Step(partial(workload.make, repeat), target, repeat) for target in turns]
                async for unit in bench.units(steps, in_turn=order.in_turn):
                    append_unit(path, unit)
                    advance(_line(unit))


async def _with_model(http: aiohttp.ClientSession, target: Target) -> Target:
    if target.model:
        return target
    url = f"{target.origins[0]}/v1/models"
    try:
        async with http.get(url, headers=dict(target.headers)) as response:
            response.raise_for_status()
            return replace(target, model=str((await response.json())["data"][0]["id"]))
    except (aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError) as error:
        raise OperatingError(f"{url} names no model ({error!r}); name one by --model") from error


def _line(unit: Unit) -> str:
    failed = sum(1 for sample in unit.samples if sample.error)
    name = f"{unit.workload} at {unit.target}, {unit.repeat + 1}"
    said = f"{name}: {len(unit.samples)} requests in {unit.seconds:.1f} s"
    return f"{said}, {failed} failed" if failed else said


def _compare(runs: Sequence[Path]) -> int:
    if len(runs) != COMPARED:
        raise SettingsError("bench", [Fault("RUN", f"{len(runs)} runs", f"{COMPARED} runs' folders")])
    first, second = map(read_records, runs)
    print(comparison_text(compare(first, second)))
    return 0


def _list_workloads(path: Path) -> int:
    for recipe in load_recipes(path):
        print(f"{recipe.name:18} {recipe.about}")
    return 0
