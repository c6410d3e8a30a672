"""The warm-up, and the measured phase: every question once to each arm, one at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.demo.client import Asker, Target
from bench.demo.rows import Arm, Phase, Row
from bench.demo.workload import Question, arm_order, numbered
from sternpost_core.errors import OperatingError

WARM_UP_REQUESTS: Final = 3
"""Requests to each engine in each arm before anything is measured."""

WARM_UP_SECONDS_MAX: Final = 120.0
"""The time for the gateway to learn the rules' tokens and have both engines build their KV."""

WARM_UP_ANSWER_TOKENS: Final = 1
"""What is to be warm are prefill and suffix store; longer answers would only take time."""

BURST: Final = 8
"""
Requests at once in the gateway's warm-up.

The gateway keeps sending requests for a tail to an engine that holds it, unless that engine has more than
two requests above the mean: so many at once make the other engines build it, too.
"""


@dataclass(frozen=True, slots=True)
class Targets:
    """Where requests go: straight to each engine, and to the gateway in front of them."""

    engines: tuple[Target, ...]
    gateway: Target

    def of(self, arm: Arm, place: int) -> Target:
        """Return where the arm sends the question at `place`."""
        if arm is Arm.STERNPOST:
            return self.gateway
        # Half the pace of the arms' order, so that each engine is asked first as often as second.
        return self.engines[place // 2 % len(self.engines)]


async def warm_up(asker: Asker, targets: Targets, tickets: Iterator[int]) -> tuple[Row, ...]:
    """
    Ask until every engine is warm in both arms.

    Raises:
        OperatingError: an engine did not reuse the rules' KV in time.
    """
    straight = [_warm_engine(asker, target, tickets) for target in targets.engines]
    rows = [row for engine_rows in await asyncio.gather(*straight) for row in engine_rows]
    asker.progress.tell(f"warm-up: {len(rows)} requests straight to the engines")
    ends = asker.progress.elapsed() + WARM_UP_SECONDS_MAX
    while asker.progress.elapsed() < ends:
        # Until an engine holds the tail, more at once would only be computed in full.
        count = BURST if hits_by_engine(rows) else 1
        burst = [_ask_numbered(asker, targets.gateway, tickets) for _ in range(count)]
        rows += await asyncio.gather(*burst)
        hits = hits_by_engine(rows)
        asker.progress.tell(f"warm-up: requests that reused the rules, by engine: {sorted(hits.values())}")
        if is_warm(hits, len(targets.engines)):
            return tuple(rows)
    raise OperatingError(
        f"{len(hits_by_engine(rows))} of {len(targets.engines)} engines reused the rules' KV within "
        f"{WARM_UP_SECONDS_MAX:.0f} s; what the others reported: {_reasons(rows)}"
    )


async def measure(asker: Asker, targets: Targets, questions: Sequence[Question]) -> tuple[Row, ...]:
    """Ask every question once in each arm, the arms in ABBA order."""
    rows: list[Row] = []
    for place, question in enumerate(questions):
        arms = [list(Arm)[number] for number in arm_order(place)]
        pair = [await asker.ask(targets.of(arm, place), Phase.MEASURED, question) for arm in arms]
        rows += pair
        asker.progress.tell(f"{place + 1:2}/{len(questions)}  " + "   ".join(_outcome(row) for row in pair))
    return tuple(rows)


def hits_by_engine(rows: Sequence[Row]) -> Counter[str]:
    """Return how many requests reused a tail, by the engine's own name."""
    return Counter(row.answer.engine for row in rows if row.answer and row.answer.suffix_tokens)


def is_warm(hits: Counter[str], engines: int) -> bool:
    """Tell whether every engine reused a tail often enough."""
    return len(hits) >= engines and min(hits.values()) >= WARM_UP_REQUESTS


async def _warm_engine(asker: Asker, target: Target, tickets: Iterator[int]) -> list[Row]:
    return [await _ask_numbered(asker, target, tickets) for _ in range(WARM_UP_REQUESTS)]


async def _ask_numbered(asker: Asker, target: Target, tickets: Iterator[int]) -> Row:
    question = numbered(asker.workload.questions, next(tickets))
    return await asker.ask(target, Phase.WARM_UP, question, WARM_UP_ANSWER_TOKENS)


def _outcome(row: Row) -> str:
    if row.answer is None:
        return f"{row.arm}: {row.error}"
    reused = row.answer.prefix_tokens + row.answer.suffix_tokens
    milliseconds = row.answer.ttft_seconds * 1000
    return f"{row.arm:9} {milliseconds:5.0f} ms, {reused:4} of {row.answer.prompt_tokens} tokens reused"


def _reasons(rows: Sequence[Row]) -> str:
    reasons = Counter(row.answer.reason if row.answer else row.error for row in rows if not row.suffix_tokens)
    return ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
