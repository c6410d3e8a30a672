"""
What a large installation costs one gateway: `python -m bench.scale`, which writes `docs/scale.md`.

200 engines and 100,000 sessions go through index and strategy as a gateway's requests do; 2,000 gateways are
asked for a kill level by one `sternpost kill`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from sternpost_core.clock import SystemClock
from sternpost_core.kill import KillLevel
from sternpost_gateway.bench.machine import describe_machine
from sternpost_gateway.block_index import BlockIndex
from sternpost_gateway.estimates import Estimates
from sternpost_gateway.fleet import Engine
from sternpost_gateway.kill_client import KillClient, Wanted
from sternpost_gateway.prompt_blocks import BLOCK_BYTES, BlockHash
from sternpost_gateway.route import Affinity, Candidate, Demand, LeastCost

ENGINES: Final = 200
SESSIONS: Final = 100_000
TURNS: Final = 20_000
"""Second turns of sessions taken at random, by which one sees what is still known."""

PREFIXES: Final = 50
PREFIX_BLOCKS: Final = 6
SESSION_BLOCKS: Final = 4
"""Blocks of 512 bytes: a system prompt of 3 KB that many share, and 2 KB of a session's own."""

GATEWAYS: Final = 2000
GATEWAY_SECONDS: Final = 0.005
ANSWER_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 5.0

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "scale.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """What routing came to; times are of one decision, in microseconds."""

    p50: float
    p99: float
    known_share: float
    blocks: int
    memory_mib: float
    busiest_to_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FannedOut:
    """What a kill came to: gateways that answered as asked, and seconds until the last one had."""

    answered: int
    seconds: float


def route_sessions() -> Routed:
    """Route the first turn of every session, and then some second turns."""
    before = _memory_mib()
    router = _Router()
    first = [router.route(session, PREFIX_BLOCKS + SESSION_BLOCKS) for session in range(SESSIONS)]
    chance = random.Random(2)
    second = [
        router.route(chance.randrange(SESSIONS), PREFIX_BLOCKS + SESSION_BLOCKS + 1) for _ in range(TURNS)
    ]
    micros = sorted(seconds * 1e6 for seconds, _ in (*first, *second))
    loads = list(router.sent.values())
    return Routed(
        p50=micros[len(micros) // 2],
        p99=micros[int(len(micros) * 0.99)],
        known_share=sum(affinity is Affinity.HELD for _, affinity in second) / len(second),
        blocks=sum(router.index.held(engine) for engine in router.engines),
        memory_mib=_memory_mib() - before,
        busiest_to_mean=max(loads) / statistics.fmean(loads),
    )


class _Router:
    """Index and strategy, put together as `sternpost_gateway.router` does."""

    def __init__(self) -> None:
        self.engines = [
            Engine(f"http://10.0.{number // 250}.{number % 250}:8000") for number in range(ENGINES)
        ]
        self.index = BlockIndex(SystemClock())
        self.sent: Counter[Engine] = Counter()
        self._estimates = Estimates()
        self._strategy = LeastCost(random.Random(1))
        self._prefixes = [list(_blocks(f"prefix-{number}", PREFIX_BLOCKS)) for number in range(PREFIXES)]

    def route(self, session: int, blocks: int) -> tuple[float, Affinity]:
        """Route a turn of so many blocks; return how long the decision took, in seconds, and what it was."""
        own = _blocks(f"session-{session}", blocks - PREFIX_BLOCKS)
        hashes = (*self._prefixes[session % PREFIXES], *own)
        began = time.perf_counter()
        held = self.index.match(hashes)
        tokens = self._estimates.tokens(BLOCK_BYTES)
        candidates = [
            Candidate(
                engine,
                0,
                held.get(engine, 0) * tokens,
                recent=self.sent[engine],
                prefill_rate=self._estimates.prefill_rate(engine),
            )
            for engine in self.engines
        ]
        choice = self._strategy.choose(candidates, Demand(f"session-{session}", len(hashes) * tokens))
        self.index.expect(choice.engine, hashes)
        seconds = time.perf_counter() - began
        self.index.confirm(choice.engine, hashes)
        self.sent[choice.engine] += 1
        return seconds, choice.affinity


def _blocks(name: str, count: int) -> Iterator[BlockHash]:
    # What a hash is made of does not matter here, only that no two are equal.
    chance = random.Random(name)
    for _ in range(count):
        yield chance.getrandbits(64).to_bytes(8, "big")


async def fan_out() -> FannedOut:
    """Ask all gateways for a kill level at once."""

    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(GATEWAY_SECONDS)
        level = KillLevel.NO_SUFFIX_READS.value
        return httpx.Response(200, json={"level": level, "policies": {}, "sources": [], "persisted": True})

    gateways = [f"http://gateway-{number}:8080" for number in range(GATEWAYS)]
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        began = time.perf_counter()
        asker = KillClient(client, SystemClock(), ANSWER_SECONDS_MAX)
        outcomes = await asker.ask(gateways, Wanted(KillLevel.NO_SUFFIX_READS, None, "drill"))
    complete = sum(outcome.level == KillLevel.NO_SUFFIX_READS.value for outcome in outcomes)
    return FannedOut(answered=complete, seconds=time.perf_counter() - began)


def page(routed: Routed, fanned: FannedOut) -> str:
    """Return the page for readers."""
    machine = describe_machine(ROOT)
    load = f"{os.getloadavg()[0]:.0f}"
    polls = f"{GATEWAYS / POLL_SECONDS:.0f} per second"
    return f"""# Scale

Made by `make bench-scale`, at commit `{machine.commit[:12]}`, on {machine}.

| {ENGINES} engines, {SESSIONS:,} sessions, one gateway | |
|---|---|
| one decision (lookup, choice, note), median | {routed.p50:.0f} µs |
| 99th percentile | {routed.p99:.0f} µs |
| blocks remembered | {routed.blocks:,} |
| memory for them | {routed.memory_mib:.0f} MiB |
| second turns whose engine is still known | {routed.known_share:.1%} |
| busiest engine to the mean | {routed.busiest_to_mean:.2f} |

| {GATEWAYS:,} gateways, one `sternpost kill` | |
|---|---|
| gateways that answered | {fanned.answered:,} |
| until the last answer, {GATEWAY_SECONDS * 1000:.0f} ms each way included | {fanned.seconds:.2f} s |
| reads of the API server, each gateway polling every {POLL_SECONDS:.0f} s | {polls} |

Times are by the clock on the wall, with a load of {load} on the machine meanwhile: what others did there
is in the 99th percentile.

A decision costs time in proportion to the engines that may get the request. Gateways share nothing: a
second one remembers as much, and where it remembers nothing makes the same choice, from the conversation's
key.
"""


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Measure, write the page, and print the figures."""
    routed, fanned = route_sessions(), asyncio.run(fan_out())
    figures: dict[str, Any] = {
        name: getattr(value, name) for value in (routed, fanned) for name in type(value).__slots__
    }
    print(json.dumps(figures, indent=1))
    PAGE.write_text(page(routed, fanned), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
