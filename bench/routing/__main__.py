"""
Compare routers: `python -m bench.routing [WORKLOAD...]`, which is `make bench-routing`.

Four mock engines run in a process of their own, each router in another; all routers get the same requests.
Figures go to `bench/results/routing.json`, what could not be run is said with its reason.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.routing.drive import Outcome, Ports, drive, reset
from bench.routing.report import Results, bounds, rows, table
from bench.routing.routers import HOST, PEERS, Router, own_routers, peer_routers, running
from bench.routing.workloads import WORKLOADS
from sternpost_gateway.bench.machine import describe_machine

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "bench" / "results" / "routing.json"
PEERS_ENVIRONMENT: Final = Path.home() / ".cache" / "sternpost" / "peers" / "routing"
ENGINES: Final = 4
SEED: Final = 11


async def main(names: Sequence[str]) -> int:
    """Run the workloads that are named, or all; return 0 if every bound holds."""
    peers, missing = peer_routers(PEERS_ENVIRONMENT)
    for name, reason in missing.items():
        print(f"{name} is not compared: {reason}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        results = await _run_all(names or list(WORKLOADS), peers, Path(folder))
    known = frozenset(router.name for router in peers)
    for line in table(results):
        print(line)
    found = bounds(results, known)
    for bound in found:
        print(f"{'holds' if bound.holds else 'MISSED':<7} {bound.text}")
    if not names:
        _write(results, known, missing)
    return 0 if all(bound.holds for bound in found) else 1


async def _run_all(names: Sequence[str], peers: Sequence[Router], folder: Path) -> Results:
    ports = free_ports(ENGINES)
    engines = [f"http://{HOST}:{port}" for port in ports.engines]
    mocks = [sys.executable, "-m", "bench.routing.mock_engines", str(ports.control), *map(str, ports.engines)]
    (folder / "policies").mkdir()
    results: dict[str, dict[str, Outcome]] = {name: {} for name in names}
    async with running(mocks, folder / "mocks.log", f"http://{HOST}:{ports.control}/totals"):
        for router in (*own_routers(folder / "policies"), *peers):
            for name in names:
                workload = WORKLOADS[name](random.Random(SEED))
                await reset(workload, ports)
                log = folder / f"{router.name}.log"
                ready = f"http://{HOST}:{ports.router}/v1/models"
                async with running(router.command(ports.router, engines), log, ready):
                    results[name][router.name] = await drive(workload, ports)
                print(f"{router.name} {name}: {results[name][router.name]}", flush=True)
    return results


def free_ports(engines: int) -> Ports:
    """Return ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(engines + 2)]
        control, router, *rest = [item.getsockname()[1] for item in sockets]
    return Ports(control, tuple(rest), router)


def _write(results: Results, peers: frozenset[str], missing: dict[str, str]) -> None:
    machine = describe_machine(ROOT)
    versions = dict(machine.versions)
    for name, _, found in (requirement.partition("==") for requirement in PEERS):
        if name.replace("-", "_") in peers:
            versions[name] = found
    report: dict[str, Any] = {
        "name": "routing",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": machine.commit,
        "machine": str(machine),
        "versions": versions,
        "missing": missing,
        "rows": rows(results, peers),
    }
    RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
