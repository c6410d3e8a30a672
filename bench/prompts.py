"""
How long the gateway thinks about a prompt: the whole pipeline without a network, and the least it could do.

    python -m bench.prompts [--seconds SECONDS] [--save-results]

Baseline and candidate take turns on the same bodies. The baseline checks the body and sends it on; the
candidate looks for volatile lines, pins tools, moves the tail to the end, salts, hints and cuts blocks for
the router. In `body_40k` and `body_4m` all but the question stays the same from request to request; in the
`unstable` ones a clock in front has to move as well, and the tools come in another order each time. What is
learned from a prompt after its answer is measured apart: no client waits for it. Time is the thread's own CPU
time; there is no waiting in any of this.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
from prometheus_client import CollectorRegistry

from bench.canonicalize import message, tool
from bench.common.results import Bound, Row, row_of, write_results
from sternpost_core.clock import SystemClock
from sternpost_core.content import ContentId
from sternpost_core.jsonspan import apply, scan
from sternpost_core.policy_match import PolicySet
from sternpost_core.policy_parse import parse
from sternpost_gateway.bench.machine import describe_machine
from sternpost_gateway.bench.stats import estimate, percentile
from sternpost_gateway.compose import compose
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.findings import Findings
from sternpost_gateway.fleet import Engine, Info, Plugin
from sternpost_gateway.identify import identify
from sternpost_gateway.kills import KillTable
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.observe import Observer
from sternpost_gateway.pipeline import decide
from sternpost_gateway.plan import Planned
from sternpost_gateway.prompt_blocks import blocks_of
from sternpost_gateway.prompts import make_prompts
from sternpost_gateway.receive import CHAT_PATH, Received
from sternpost_gateway.settings import Timeouts
from sternpost_gateway.tails import Tails
from sternpost_gateway.tokens import TailFacts
from sternpost_gateway.versions import Versions

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results" / "prompts.json"

SECRET: Final = b"a secret of the benchmark's own, of 32 bytes"
ENGINE: Final = Engine("http://engine")
READY: Final = Info(plugin=Plugin.READY, batch="b", tail_tokens_min=4, tail_tokens_max=8192)
HEADERS: Final = ((b"x-tenant-id", b"acme"), (b"x-session-id", b"s"))

REPEATS_MIN: Final = 10
"""Requests of a size that are measured, however long they take."""

TOOLS: Final = 20
SYSTEM_CHARS: Final = 9_000
TAIL_CHARS: Final = 4_000

BOUNDS: Final = (
    Bound(workload="body_40k", metric="median_ms", limit=1.0),
    Bound(workload="body_4m", metric="median_ms", limit=40.0),
)
"""What DESIGN asks of the pipeline alone."""

POLICY: Final[dict[str, Any]] = {
    "apiVersion": "sternpost.dev/v1alpha1",
    "kind": "CachePolicy",
    "metadata": {"name": "bench"},
    "spec": {
        "match": {"models": ["example"]},
        "poolRef": {"name": "bench"},
        "tenancy": {"isolation": "Tenant", "tenantFrom": {"header": "x-tenant-id"}},
        "prompt": {
            "layout": "FixedTail",
            "canonicalize": "Pin",
            "volatile": [
                {"name": "clock", "detect": "Timestamp", "action": "Relocate"},
                {"name": "ticket", "pattern": "^Ticket: [A-Z]+-[0-9]+$", "action": "Relocate"},
            ],
            "tail": {"source": "LastSystemMessage", "minTokens": 256},
        },
        "suffixCache": {},
    },
}


@dataclass(frozen=True, slots=True)
class Workload:
    """
    Requests of about `size` bytes, made of messages of so many characters.

    `unstable` ones have a clock in front and their tools in another order each time.
    """

    name: str
    size: int
    message_chars: int
    unstable: bool = False


WORKLOADS: Final = (
    Workload("body_40k", 40_000, 1_000),
    Workload("body_40k_unstable", 40_000, 1_000, unstable=True),
    Workload("body_4m", 4_000_000, 20_000),
    Workload("body_4m_unstable", 4_000_000, 20_000, unstable=True),
)


@dataclass(slots=True)
class Timings:
    """Milliseconds of each request, by what was done with it."""

    baseline: list[float] = field(default_factory=list)
    candidate: list[float] = field(default_factory=list)
    observe: list[float] = field(default_factory=list)


class Gateway:
    """What a gateway needs to think about a prompt, and nothing that it needs to send one."""

    def __init__(self) -> None:
        clock = SystemClock()
        api = EngineApi(httpx.AsyncClient(), Timeouts())
        metrics = Metrics(CollectorRegistry())
        self._policies = PolicySet((parse(POLICY),))
        self._prompts = make_prompts(api, clock, Versions(None), lambda size: size / 4)
        self._findings = Findings(metrics, self._prompts.tokens)
        self._observer = Observer(self._prompts, metrics)
        self._tails = Tails(clock)

    def think(self, body: bytes) -> Planned:
        """Run the whole pipeline up to the engine's body."""
        identified = identify(received(body), self._policies, KillTable())
        planned = decide(identified, self._prompts, self._findings, SECRET)
        blocks_of(planned)
        self._learn(planned)
        composed = compose(planned, ENGINE, READY, self._tails)
        assert composed.outlook.hint is not None and composed.body is not None, "the tail is asked for"
        return planned

    def observe(self, planned: Planned) -> None:
        """Learn from a prompt, which a gateway does after the answer."""
        self._observer.observe(planned)

    def _learn(self, planned: Planned) -> None:
        """Let the tail's tokens be known, so that a hint is composed."""
        assert planned.wish is not None, "nothing speaks against reuse"
        template_id = planned.wish.template.template_id
        if self._tails.facts(template_id) is None:
            self._tails.learn(template_id, TailFacts((1, 2), tuple(range(1000)), 2, ContentId("c" * 64)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the status whether the bounds hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.prompts", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each size (default: %(default)s)")
    parser.add_argument("--save-results", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    rows = [row for workload in WORKLOADS for row in measure(workload, options.seconds)]
    for row in rows:
        print(f"{row.workload:>18} {row.metric:<20} {row.value:8.3f} {row.unit}")
    if options.save_results:
        write_results("prompts", rows, describe_machine(ROOT), datetime.now(UTC), RESULTS)
    missed = [bound for bound in BOUNDS if not bound.holds_in(rows)]
    for bound in missed:
        print(f"{bound.workload} {bound.metric} misses its bound {bound}", file=sys.stderr)
    return 1 if missed else 0


def measure(workload: Workload, seconds: float) -> list[Row]:
    """Return the figures of one size; the two take turns, and the first requests are not counted."""
    gateway, timings = Gateway(), Timings()
    deadline = time.monotonic() + seconds
    for number, body in enumerate(bodies(workload)):
        counted = timings if number >= TOOLS else Timings()
        began = time.thread_time()
        pass_on(body)
        passed = time.thread_time()
        planned = gateway.think(body)
        thought = time.thread_time()
        gateway.observe(planned)
        observed = time.thread_time()
        counted.baseline.append((passed - began) * 1000)
        counted.candidate.append((thought - passed) * 1000)
        counted.observe.append((observed - thought) * 1000)
        if time.monotonic() > deadline and len(timings.candidate) >= REPEATS_MIN:
            break
    return rows_of(workload, len(body), timings)


def rows_of(workload: Workload, size: int, timings: Timings) -> list[Row]:
    """Return the figures of one size as rows."""
    chance, median = Random(1), partial(percentile, share=0.5)
    figures = {
        "median_ms": (timings.candidate, median),
        "p99_ms": (timings.candidate, partial(percentile, share=0.99)),
        "baseline_median_ms": (timings.baseline, median),
        "observe_median_ms": (timings.observe, median),
    }
    rows = [
        row_of(workload.name, metric, estimate(values, statistic, chance), unit="ms")
        for metric, (values, statistic) in figures.items()
    ]
    return [*rows, Row(workload=workload.name, metric="body_bytes", value=size, unit="B")]


def pass_on(body: bytes) -> bytes:
    """Do the least that a gateway does: check the body, and send it as it is."""
    return apply(scan(body).body, ())


def received(body: bytes) -> Received:
    """Return a chat as it is received."""
    return Received(
        method="POST",
        path=CHAT_PATH,
        target=CHAT_PATH,
        headers=HEADERS,
        request_id="bench",
        arrived=0.0,
        has_body=False,
        document=scan(body),
    )


def bodies(workload: Workload) -> Iterator[bytes]:
    """Yield requests, each with a question of its own, and, of unstable ones, all else that may differ."""
    tools = [tool(number) for number in range(TOOLS)]
    fixed = SYSTEM_CHARS + TAIL_CHARS + len(json.dumps(tools))
    count = max(2, (workload.size - fixed) // workload.message_chars // 2 * 2)
    history = [message(role, workload.message_chars, "") for role in ("user", "assistant")] * (count // 2)
    tail = message("system", TAIL_CHARS, "Rules: ")
    for second in range(86_400):
        time_of_day = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        clock = f"Now: 2026-01-01 {time_of_day}\n" if workload.unstable else ""
        turn = second % TOOLS if workload.unstable else 0
        question = message("user", 80, f"{second} ")
        yield json.dumps(
            {
                "model": "example",
                "messages": [message("system", SYSTEM_CHARS, clock), *history, tail, question],
                "tools": tools[turn:] + tools[:turn],
                "temperature": 0.2,
            }
        ).encode()


if __name__ == "__main__":
    sys.exit(main())
