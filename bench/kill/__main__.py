"""
Kill again and again while three gateways are under load, by each way, and time the last read.

Everything is real but the engines: an API server, three gateway processes, the files and signals.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx

from bench.common.results import head_of, write_document
from bench.demo.progress import Progress
from bench.kill.load import Load, TimedEngine, running
from bench.kill.trial import Trial, Verdict, last_read, table, ttft_verdict, verdicts
from sternpost_core.clock import SystemClock
from sternpost_fakes.engine import running_engine
from sternpost_gateway.bench.machine import describe_machine
from sternpost_running.box import Box, running_box
from sternpost_running.gateway import TOKEN, GatewayProcess, running_gateways
from sternpost_running.kubernetes import Cluster, find_binaries, running_cluster

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "bench" / "results" / "kill.json"

GATEWAYS: Final = 3
NAMESPACE: Final = "bench"
POLICY: Final = "bench/support"
MODEL: Final = "qwen"
TRIALS_DEFAULT: Final = 50
BLACKHOLE_TRIALS: Final = 8
SETTLE_SECONDS: Final = 0.4
"""After which a trial looks for reads that came late: far beyond the bound of every way but one."""

BLACKHOLE_SETTLE_SECONDS: Final = 9.0
LOAD_SECONDS: Final = 60.0
TURNS: Final = 10
"""For so long the time to the first byte is measured with a kill and without, in so many turns."""

RETURN_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.02
KILL_LEVEL: Final = "NoSuffixReads"


@dataclass(frozen=True, slots=True)
class Stage:
    """What a trial works with."""

    cluster: Cluster
    box: Box
    gateways: Sequence[GatewayProcess]
    kill_file: Path
    engine: TimedEngine
    load: Load
    client: httpx.AsyncClient


Order = Callable[[Stage, bool], Awaitable[None]]
"""Gives an order, to kill or to take it back, and returns when it is answered."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the status is 1 when a figure is out of its bound."""
    parser = argparse.ArgumentParser(prog="bench.kill", description=__doc__)
    parser.add_argument(
        "--trials", type=int, default=TRIALS_DEFAULT, help="of each way (default: %(default)s)"
    )
    parser.add_argument("--load-seconds", type=float, default=LOAD_SECONDS, help="default: %(default)s")
    parser.add_argument("--save-results", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    arguments = parser.parse_args(argv)
    binaries = find_binaries(os.environ)
    if binaries is None:
        print("an API server's binaries are needed: tests/support/apiserver/build.sh", file=sys.stderr)
        return 2
    clock = SystemClock()
    progress = Progress(clock, clock.monotonic(), sys.stdout)
    with tempfile.TemporaryDirectory(prefix="sternpost-kill-") as folder:
        found = asyncio.run(_measure(binaries, Path(folder), arguments, progress))
    print("\n".join(table(found)))
    if arguments.save_results:
        _save(found)
    return 0 if all(item.holds for item in found) else 1


async def _measure(
    binaries: Path, folder: Path, arguments: argparse.Namespace, progress: Progress
) -> list[Verdict]:
    async with AsyncExitStack() as stack:
        with ExitStack() as processes:
            stage = await _set_up(binaries, folder, stack, processes)
            progress.tell(f"{GATEWAYS} gateways under load")
            trials: list[Trial] = []
            for way, order in WAYS.items():
                trials += [await _trial(stage, way, order, SETTLE_SECONDS) for _ in range(arguments.trials)]
                progress.tell(f"{way}: {arguments.trials} trials")
            for _ in range(min(BLACKHOLE_TRIALS, arguments.trials)):
                trials.append(await _blackhole(stage))
            progress.tell("k1_blackhole: done")
            effect = await _effect(stage, arguments.load_seconds)
            progress.tell("effect on the time to the first byte: done")
    return [*verdicts(trials), effect]


async def _set_up(binaries: Path, folder: Path, stack: AsyncExitStack, processes: ExitStack) -> Stage:
    kube = folder / "kube"
    kube.mkdir()
    cluster = processes.enter_context(running_cluster(binaries, kube))
    cluster.apply_crds(ROOT / "crds")
    cluster.namespace(NAMESPACE)
    cluster.apply(_policy())
    box = processes.enter_context(running_box(cluster.url))
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig().read_text().replace(cluster.url, box.url))
    engine = TimedEngine()
    await stack.enter_async_context(running_engine(engine))
    kill_file = folder / "kill"
    flags = ("--kubernetes", "--kubeconfig", str(kubeconfig), "--engine", engine.url)
    starting = running_gateways(folder, GATEWAYS, *flags, "--kill-file", str(kill_file))
    gateways = await asyncio.to_thread(processes.enter_context, starting)
    load = await stack.enter_async_context(running(Load([gateway.url for gateway in gateways], MODEL)))
    client = await stack.enter_async_context(
        httpx.AsyncClient(verify=False, trust_env=False, timeout=10)  # The server's certificate is its own.
    )
    return Stage(cluster, box, gateways, kill_file, engine, load, client)


def _policy() -> dict[str, Any]:
    return {
        "apiVersion": "sternpost.dev/v1alpha1",
        "kind": "CachePolicy",
        "metadata": {"name": "support", "namespace": NAMESPACE},
        "spec": {
            "match": {"models": [MODEL]},
            "poolRef": {"name": "any"},
            "prompt": {"layout": "FixedTail", "tail": {"source": "LastSystemMessage", "minTokens": 256}},
            "suffixCache": {"recompute": {"head": 0, "last": 32, "match": 0}},
        },
    }


async def _trial(stage: Stage, way: str, order: Order, settle_seconds: float) -> Trial:
    """Wait until every gateway has tails read, kill, see when reading ends, and take the kill back."""
    await _until_reading(stage)
    answered, failed = stage.load.answered, stage.load.failed
    await order(stage, True)
    ordered_at = time.monotonic()
    await asyncio.sleep(settle_seconds)
    seconds = last_read(stage.engine.reads, ordered_at)
    await order(stage, False)
    return Trial(way, seconds, stage.load.answered - answered, stage.load.failed - failed)


async def _blackhole(stage: Stage) -> Trial:
    await _until_reading(stage)
    stage.box.silence()
    trial = await _trial(stage, "k1_blackhole", _by_api, BLACKHOLE_SETTLE_SECONDS)
    stage.box.close()
    stage.box.reopen()
    return trial


async def _until_reading(stage: Stage) -> None:
    """Wait until no gateway is killed and reads arrive again."""
    async with asyncio.timeout(RETURN_SECONDS_MAX):
        for gateway in stage.gateways:
            while await _level(stage, gateway) != "None":
                await asyncio.sleep(POLL_SECONDS)
        stage.engine.reads.clear()
        while len(stage.engine.reads) < GATEWAYS * 3:
            await asyncio.sleep(POLL_SECONDS)


async def _level(stage: Stage, gateway: GatewayProcess) -> str:
    response = await stage.client.get(f"{gateway.url}/sternpost/v1/kill", headers=_token())
    return str(response.json()["policies"].get(POLICY))


async def _by_api(stage: Stage, kill: bool) -> None:
    url = f"{stage.cluster.url}/apis/sternpost.dev/v1alpha1/namespaces/{NAMESPACE}/cachepolicies/support"
    headers = {**stage.cluster.api.headers, "content-type": "application/merge-patch+json"}
    response = await stage.client.patch(url, json={"spec": {"killLevel": _word(kill)}}, headers=headers)
    response.raise_for_status()


async def _by_http(stage: Stage, kill: bool) -> None:
    body = {"level": _word(kill), "policy": None, "reason": "bench"}
    calls = [
        stage.client.post(f"{gateway.url}/sternpost/v1/kill", json=body, headers=_token())
        for gateway in stage.gateways
    ]
    for response in await asyncio.gather(*calls):
        response.raise_for_status()


async def _by_file(stage: Stage, kill: bool) -> None:
    stage.kill_file.write_text(f"{_word(kill)}\nbench\n")


async def _by_signal(stage: Stage, kill: bool) -> None:
    for gateway in stage.gateways:
        gateway.process.send_signal(signal.SIGUSR1 if kill else signal.SIGUSR2)


WAYS: Final[dict[str, Order]] = {
    "k1_api": _by_api,
    "k1_http": _by_http,
    "k1_file": _by_file,
    "k1_signal": _by_signal,
}
"""Each way by its name in the results."""


def _word(kill: bool) -> str:
    return KILL_LEVEL if kill else "None"


def _token() -> dict[str, str]:
    return {"authorization": f"Bearer {TOKEN}"}


async def _effect(stage: Stage, load_seconds: float) -> Verdict:
    """
    Compare the time to the first byte with and without a kill, for `load_seconds` each.

    The two take turns, because on a shared machine one minute is not like the next.
    """
    before: list[float] = []
    after: list[float] = []
    for _ in range(TURNS):
        await _until_reading(stage)
        before += await _answer_seconds(stage, load_seconds / TURNS)
        await _by_http(stage, True)
        after += await _answer_seconds(stage, load_seconds / TURNS)
        await _by_http(stage, False)
    return ttft_verdict(before, after)


async def _answer_seconds(stage: Stage, window_seconds: float) -> list[float]:
    stage.load.seconds.clear()
    await asyncio.sleep(window_seconds)
    return [seconds for _, seconds in stage.load.seconds]


def _save(found: Sequence[Verdict]) -> None:
    head = head_of("kill", describe_machine(ROOT), datetime.now(UTC))
    write_document({**head, "rows": [item.to_row() for item in found]}, RESULTS)


if __name__ == "__main__":
    sys.exit(main())
