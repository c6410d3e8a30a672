"""
Compare routers: `python -m bench.routing [WORKLOAD...]`, which is `make bench-routing`.

All routers get the same requests, each workload by one router after the other. By default four mock engines
answer, whose time goes by a model of prefill and decode; `--engines real` takes two vLLM engines on this
machine's cores, and workloads of their size. What could not be run is said with its reason.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.common.process_group import group_cpu_seconds
from bench.common.results import head_of, write_document
from bench.gateway.ports import free_ports
from bench.routing.drive import Outcome, drive
from bench.routing.real_engines import real_stage
from bench.routing.report import Results, rows, table, verdicts
from bench.routing.routers import HOST, OWN, PEERS, NotReady, Router, own_routers, peer_routers, running
from bench.routing.stage import Stage, mock_stage
from bench.routing.workloads import WORKLOADS, Workload
from sternpost_gateway.bench.machine import describe_machine

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "bench" / "results"
PEERS_ENVIRONMENT: Final = Path.home() / ".cache" / "sternpost" / "peers" / "routing"
MODEL: Final = Path.home() / ".cache" / "sternpost" / "models" / "SmolLM2-135M-Instruct"
SEED: Final = 11
MOCK: Final = "mock"
REAL: Final = "real"
SETTLE_SECONDS: Final = 6.0
"""For which a router runs before engines come and go: what it finds when it starts is no newcomer."""

FILES: Final = {MOCK: "routing", REAL: "routing_real"}
"""The result file of each kind of engines."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the status is 1 where a bound is missed."""
    arguments = _parser().parse_args(argv)
    peers, missing = peer_routers(PEERS_ENVIRONMENT)
    for name, reason in missing.items():
        print(f"{name} is not compared: {reason}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sternpost-routing-") as folder:
        results = asyncio.run(_measure(arguments, peers, Path(folder)))
    known = [router.name for router in peers]
    found = verdicts(results, known)
    print("\n".join(table(results)))
    print("\n".join(f"{'holds' if one.holds else 'MISSED':<7} {one.text}" for one in found))
    if arguments.save_results:
        _write(arguments.engines, results, known, missing)
    return 0 if all(one.holds for one in found) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.routing", description=__doc__)
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)} (default: all)"
    )
    parser.add_argument(
        "--engines", choices=list(FILES), default=MOCK, help="what answers (default: %(default)s)"
    )
    parser.add_argument(
        "--model", type=Path, default=MODEL, help="folder of the real engines' model (default: %(default)s)"
    )
    parser.add_argument("--router", action="append", metavar="NAME", help="only these; once for each")
    parser.add_argument("--save-results", action="store_true", help="write the result file")
    return parser


async def _measure(arguments: argparse.Namespace, peers: Sequence[Router], folder: Path) -> Results:
    _require_known("workload", arguments.workloads, WORKLOADS)
    (folder / "policies").mkdir()
    routers = [*own_routers(folder / "policies"), *peers]
    names = [router.name for router in routers]
    wanted = arguments.router or names
    _require_known("router", wanted, names)
    results: dict[str, dict[str, Outcome]] = {}
    async with _stage(arguments, folder) as stage:
        for name in arguments.workloads or WORKLOADS:
            workload = WORKLOADS[name](random.Random(SEED), stage.size)
            if not stage.can_run(workload):
                print(f"{name} is not run: these engines do not come and go", flush=True)
                continue
            results[name] = {}
            for router in (router for router in routers if router.name in wanted):
                await stage.begin(workload)
                try:
                    results[name][router.name] = await _drive(router, workload, stage, folder)
                except NotReady as error:
                    # What the others have shown is worth something without this one.
                    print(f"{name} {router.name}: {error}", flush=True)
                else:
                    print(f"{name} {router.name}: {results[name][router.name].requests} requests", flush=True)
    return results


def _require_known(kind: str, wanted: Collection[str], allowed: Collection[str]) -> None:
    unknown = [name for name in wanted if name not in allowed]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)} is no {kind}; allowed: {', '.join(allowed)}")


async def _drive(router: Router, workload: Workload, stage: Stage, folder: Path) -> Outcome:
    async with _running(router, stage, folder) as (url, group):
        await asyncio.sleep(SETTLE_SECONDS if workload.events else 0.0)
        return await drive(workload, stage, url, partial(group_cpu_seconds, group))


@asynccontextmanager
async def _stage(arguments: argparse.Namespace, folder: Path) -> AsyncIterator[Stage]:
    if arguments.engines == REAL:
        async with real_stage(arguments.model, folder) as real:
            yield real
    else:
        async with mock_stage(folder) as mock:
            yield mock


@asynccontextmanager
async def _running(router: Router, stage: Stage, folder: Path) -> AsyncIterator[tuple[str, int]]:
    """Run a router in front of all engines; yield its URL and its process group."""
    port, metrics = free_ports(2)
    url = f"http://{HOST}:{port}"
    log = folder / f"{router.name}.log"
    # Other routers want a port for their metrics, which is the same on every machine unless they are told.
    own = [] if router.name in OWN else ["--prometheus-port", str(metrics)]
    # A list of models may be asked of an engine that is down, and does not answer then.
    ready = "/v1/models" if router.name in OWN else "/readiness"
    async with running([*router.command(port, list(stage.urls)), *own], log, f"{url}{ready}") as group:
        yield url, group


def _write(engines: str, results: Results, peers: Sequence[str], missing: dict[str, str]) -> None:
    machine = describe_machine(ROOT)
    head = head_of(FILES[engines], machine, datetime.now(UTC))
    versions = {name: found for name, _, found in (one.partition("==") for one in PEERS)}
    known = {name: found for name, found in versions.items() if name.replace("-", "_") in peers}
    document: dict[str, Any] = {
        **head,
        "versions": {**head["versions"], **known},
        "settings": {"engines": engines, "routers": [*OWN, *peers], "missing": missing},
        "rows": [row.to_mapping() for row in rows(results, peers)],
    }
    write_document(document, RESULTS / f"{FILES[engines]}.json")


if __name__ == "__main__":
    sys.exit(main())
