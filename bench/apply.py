"""
How long a policy takes from `kubectl apply` until every gateway serves by it: `make bench-apply`.

Everything is real but the engine: an API server, kubectl, and two gateways, which are asked by chats.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx

from bench.common.results import Bound, Row, write_results
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_gateway.bench.machine import describe_machine
from sternpost_gateway.bench.stats import percentile
from sternpost_running.gateway import GatewayProcess, running_gateways
from sternpost_running.kubernetes import Cluster, find_binaries, running_cluster

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "bench" / "results" / "apply.json"

GATEWAYS: Final = 2
NAMESPACE: Final = "bench"
NAME: Final = "changing"
CHANGES_DEFAULT: Final = 50
POLL_SECONDS: Final = 0.01
SERVED_SECONDS_MAX: Final = 30.0
POLICY_HEADER: Final = "x-sternpost-policy"

P99_SECONDS_MAX: Final = 1.0
BOUNDS: Final = (Bound(workload="policy", metric="apply_p99_s", limit=P99_SECONDS_MAX),)


@dataclass(frozen=True, slots=True)
class Change:
    """
    One change of a policy, in seconds.

    `applied` is how long kubectl took; `served` is when the last gateway answered by the new policy, from
    kubectl's start.
    """

    applied: float
    served: float


@dataclass(frozen=True, slots=True)
class Stage:
    """What is measured."""

    cluster: Cluster
    gateways: Sequence[GatewayProcess]
    client: httpx.AsyncClient


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the status is 1 when a figure is out of its bound."""
    parser = argparse.ArgumentParser(prog="bench.apply", description=__doc__)
    parser.add_argument("--changes", type=int, default=CHANGES_DEFAULT, help="default: %(default)s")
    parser.add_argument("--save-results", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    arguments = parser.parse_args(argv)
    binaries = find_binaries(os.environ)
    if binaries is None:
        print("an API server's binaries are needed: tests/support/apiserver/build.sh", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="sternpost-apply-") as folder:
        changes = asyncio.run(_measure(binaries, Path(folder), arguments.changes))
    rows = rows_of(changes)
    print("\n".join(table(rows)))
    if arguments.save_results:
        write_results("apply", rows, describe_machine(ROOT), datetime.now(UTC), RESULTS)
    return 0 if all(bound.holds_in(rows) for bound in BOUNDS) else 1


def rows_of(changes: Sequence[Change]) -> list[Row]:
    """
    Return the figures of some changes.

    `apply` is from kubectl's start, `command` is kubectl's own part of it, and `after` what one still has
    to wait when kubectl is back.
    """
    series = {
        "apply": [change.served for change in changes],
        "command": [change.applied for change in changes],
        "after": [max(0.0, change.served - change.applied) for change in changes],
    }
    return [
        Row(
            workload="policy",
            metric=f"{name}_p{share * 100:.0f}_s",
            value=percentile(values, share),
            unit="s",
            n=len(values),
        )
        for name, values in series.items()
        for share in (0.5, 0.99)
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """Return the figures as lines of Markdown."""
    bounds = {bound.metric: bound for bound in BOUNDS}
    lines = ["| figure | value | bound | n |", "|---|---|---|---|"]
    return lines + [
        f"| {row.metric} | {row.value:.3f} | {bounds.get(row.metric, '')} | {row.n} |" for row in rows
    ]


async def _measure(binaries: Path, folder: Path, count: int) -> list[Change]:
    async with AsyncExitStack() as stack:
        with ExitStack() as processes:
            stage = await _set_up(binaries, folder, stack, processes)
            # The first one makes the policy and kubectl's own cache, and is not counted.
            await _change(stage, 0)
            return [await _change(stage, number) for number in range(1, count + 1)]


async def _set_up(binaries: Path, folder: Path, stack: AsyncExitStack, processes: ExitStack) -> Stage:
    kube = folder / "kube"
    kube.mkdir()
    cluster = processes.enter_context(running_cluster(binaries, kube))
    cluster.apply_crds(ROOT / "crds")
    cluster.namespace(NAMESPACE)
    engine = await stack.enter_async_context(running_engine(FakeEngine()))
    flags = ("--kubernetes", "--kubeconfig", str(cluster.kubeconfig()), "--engine", engine.url)
    gateways = await asyncio.to_thread(processes.enter_context, running_gateways(folder, GATEWAYS, *flags))
    client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=10))
    return Stage(cluster, gateways, client)


async def _change(stage: Stage, number: int) -> Change:
    """Have the policy match another model, and ask each gateway for that model until it knows the policy."""
    model = f"model-{number}"
    started = time.monotonic()
    applying = asyncio.create_task(asyncio.to_thread(stage.cluster.apply, _policy(model)))
    asking = [asyncio.create_task(_served(stage, gateway, model)) for gateway in stage.gateways]
    await applying
    applied = time.monotonic() - started
    served = await asyncio.gather(*asking)
    return Change(applied, max(served) - started)


async def _served(stage: Stage, gateway: GatewayProcess, model: str) -> float:
    """Return when a gateway has first answered by the policy, in monotonic seconds."""
    body = {"model": model, "messages": [{"role": "user", "content": "where to?"}]}
    async with asyncio.timeout(SERVED_SECONDS_MAX):
        while True:
            answer = await stage.client.post(f"{gateway.url}/v1/chat/completions", json=body)
            if answer.headers.get(POLICY_HEADER) == f"{NAMESPACE}/{NAME}":
                return time.monotonic()
            await asyncio.sleep(POLL_SECONDS)


def _policy(model: str) -> dict[str, Any]:
    return {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"match": {"models": [model]}, "poolRef": {"name": "any"}},
    }


if __name__ == "__main__":
    sys.exit(main())
