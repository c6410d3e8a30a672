"""
What a hop through the gateway costs: `python -m bench.gateway`, which is `make bench-gateway`.

A mock engine, the gateway and other gateways run as processes; one load generator goes from one to the next.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from bench.common.process_group import group_bytes, group_cpu_seconds
from bench.common.results import write_results
from bench.common.resumable import status_of
from bench.demo.progress import Progress
from bench.gateway.arms import LITELLM_REQUIREMENT, Arm, Environments, own_arms, peer_arms
from bench.gateway.bodies import LARGE_BYTES, SMALL_BYTES, bodies, write_bodies
from bench.gateway.idle_streams import bytes_per_stream
from bench.gateway.load import Cell, Sample, measure
from bench.gateway.report import bounds_table, report
from bench.gateway.stage import Engines, Standing, running_arm, running_arms, running_engines
from bench.gateway.summary import DIRECT, STREAM, judge, summarize
from bench.routing.routers import PEERS
from sternpost_core.clock import SystemClock
from sternpost_gateway.bench.machine import Machine, describe_machine

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "bench" / "results" / "gateway.json"
DOCUMENT: Final = ROOT / "docs" / "results" / "gateway.md"
ENVIRONMENTS: Final = Path.home() / ".cache" / "sternpost" / "peers"

CONNECTIONS: Final = (1, 16, 256)
STREAM_CONNECTIONS: Final = 16
ROUNDS: Final = 3
SECONDS: Final = 3
WARM_SECONDS: Final = 2
"""For which each gateway is loaded beforehand: tails are built, and code is loaded."""


@dataclass(slots=True)
class Found:
    """What has been measured: the runs by workload and arm, and the bytes of an idle stream by arm."""

    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)

    def add(self, cell: Cell, arm: str, sample: Sample) -> None:
        """Keep a run."""
        self.samples.setdefault(cell.name, {}).setdefault(arm, []).append(sample)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the status is 1 when a bound is missed or something failed."""
    arguments = _parser().parse_args(argv)
    clock = SystemClock()
    progress = Progress(clock, clock.monotonic(), sys.stdout)
    return status_of(lambda: asyncio.run(_carry_out(arguments, progress)), progress)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of each run (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="ARM", help="arms to run besides none; default: all")
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument(
        "--save-results", action="store_true", help="write bench/results and docs/results, too"
    )
    return parser


async def _carry_out(arguments: argparse.Namespace, progress: Progress) -> None:
    found = Found()
    with tempfile.TemporaryDirectory(prefix="sternpost-gateway-") as name:
        folder = Path(name)
        environments = Environments(ENVIRONMENTS / "routing", ENVIRONMENTS / "proxy")
        peers, missing = peer_arms(folder, environments)
        arms = [arm for arm in (*own_arms(folder), *peers) if arm.name in (arguments.only or [arm.name])]
        cells = [one for one in cells_in(folder) if one.name in (arguments.workloads or [one.name])]
        async with running_engines(folder) as engines:
            await _measure_hops(arms, cells, engines, folder, arguments, found, progress)
            for arm in arms:
                found.idle[arm.name] = await _measure_idle(arm, engines, folder)
                progress.tell(f"{arm.name}: {found.idle[arm.name] / 1024:.1f} KiB for an idle stream")
    _conclude(found, missing, arms, arguments.save_results)


def cells_in(folder: Path) -> list[Cell]:
    """Write all bodies, and return what is measured with them."""
    files = {
        name: write_bodies(folder, name, bodies(size))
        for name, size in (("5k", SMALL_BYTES), ("40k", LARGE_BYTES))
    }
    hops = [
        Cell(name=f"hop_{name}_{connections}", bodies=path, connections=connections)
        for name, path in files.items()
        for connections in CONNECTIONS
    ]
    streams = write_bodies(folder, STREAM, bodies(SMALL_BYTES, stream=True))
    return [
        *hops,
        Cell(name=f"{STREAM}_{STREAM_CONNECTIONS}", bodies=streams, connections=STREAM_CONNECTIONS),
    ]


async def _measure_hops(
    arms: Sequence[Arm],
    cells: Sequence[Cell],
    engines: Engines,
    folder: Path,
    arguments: argparse.Namespace,
    found: Found,
    progress: Progress,
) -> None:
    async with running_arms(arms, engines.url, folder) as standing:
        progress.tell(f"running: {', '.join(standing)}")
        for one in standing.values():
            await measure(one.url, cells[0], WARM_SECONDS, lambda: 0.0)
        for number in range(arguments.rounds):
            for cell in cells:
                for name in _turns([DIRECT, *standing], number):
                    sample = await _measure(standing.get(name), engines, cell, arguments.seconds)
                    found.add(cell, name, sample)
                    progress.tell(told(cell, name, sample))


def _turns(names: Sequence[str], number: int) -> list[str]:
    """Return who comes when in a round: every other round goes backwards, so that nobody is always first."""
    return list(reversed(names)) if number % 2 else list(names)


async def _measure(standing: Standing | None, engines: Engines, cell: Cell, seconds: int) -> Sample:
    if standing is None:
        return await measure(engines.url, cell, seconds, lambda: 0.0)
    return await measure(standing.url, cell, seconds, partial(group_cpu_seconds, standing.group))


def told(cell: Cell, arm: str, sample: Sample) -> str:
    """Return a run as a line."""
    return (
        f"{cell.name:<12} {arm:<20} p50 {sample.p50 * 1000:8.2f} ms  p99 {sample.p99 * 1000:8.2f} ms  "
        f"{sample.rate:8.0f}/s  {sample.rate_per_core:8.0f}/s of CPU  {sample.failed} failed"
    )


async def _measure_idle(arm: Arm, engines: Engines, folder: Path) -> float:
    (body, *_) = bodies(SMALL_BYTES, stream=True)
    async with running_arm(arm, engines.holding_url, folder) as standing:
        return await bytes_per_stream(standing.url, body, partial(group_bytes, standing.group))


def _conclude(found: Found, missing: Mapping[str, str], arms: Sequence[Arm], save: bool) -> None:
    rows = summarize(found.samples, found.idle)
    judged = judge(rows)
    machine, date = _machine(arms), datetime.now(UTC)
    print(f"\n{bounds_table(judged)}\n")
    if save:
        write_results(
            "gateway", rows, machine, date, RESULTS, {"missing": dict(missing)} if missing else None
        )
        DOCUMENT.parent.mkdir(parents=True, exist_ok=True)
        DOCUMENT.write_text(report(rows, judged, missing, machine, date), encoding="utf-8")


def _machine(arms: Sequence[Arm]) -> Machine:
    """Return this machine, with the versions of the gateways that were compared."""
    machine = describe_machine(ROOT)
    pinned = dict(requirement.split("==") for requirement in (*PEERS, LITELLM_REQUIREMENT))
    names = {arm.name.replace("_", "-") for arm in arms}
    compared = {name: number for name, number in pinned.items() if name.partition("[")[0] in names}
    return replace(machine, versions={**machine.versions, **compared})


if __name__ == "__main__":
    sys.exit(main())
