"""Both engines run, batch by batch, in turn: never is one loaded while the other is."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.common.engine_api import Engine, Messages
from bench.common.engine_process import EngineSettings, StartEngine
from bench.common.process_group import group_bytes
from bench.common.store import OutOfTime, RecordStore
from bench.common.tails import Tail, build_tail, measure_tail
from bench.demo.progress import Progress
from bench.demo.workload import arm_order
from bench.engine.asking import Place, Sample, ask
from bench.engine.scenarios import Batch, Scenario, Session
from sternpost_core.hint import Hint

PLAIN: Final = "plain"
PATCHED: Final = "patched"
ENGINES: Final = (PLAIN, PATCHED)
"""Baseline and candidate, in the order of the first batch."""

ARGUMENTS: Final = ("--block-size", "32")
"""
Both engines keep KV in blocks of 32 tokens, the least that vLLM's CPU build computes well with. Its own
choice of 128, which no GPU has, would hide up to 127 tokens of each prefix from either.
"""

KV_CACHE_GIB: Final = 2
"""Eight long prompts at once must fit."""

WARM_UP: Final = ({"role": "user", "content": "Good morning, is anybody there?"},)

MEMORY: Final = "memory"


@dataclass(frozen=True, slots=True)
class Run:
    """
    What is asked, of which engines, where the records go, and until when.

    `seconds_max` counts from the progress's start.
    """

    scenarios: Sequence[Scenario]
    records: RecordStore
    progress: Progress
    start: StartEngine
    model: Path
    seconds_max: float


def batch_key(scenario: Scenario, batch: Batch, engine: str) -> str:
    """Return the key of what one batch showed on one engine."""
    return f"{scenario.name}/{batch.id}/{engine}"


def memory_key(engine: str) -> str:
    """Return the key of what an engine held at the end."""
    return f"{MEMORY}/{engine}"


async def run_all(run: Run) -> None:
    """
    Run every batch that is not recorded yet on both engines.

    Raises:
        OutOfTime: time was over first.
        OperatingError: an engine failed.
    """
    left = [scenario for scenario in run.scenarios if _batches_left(run, scenario)]
    if not left:
        return
    async with AsyncExitStack() as running:
        engines: dict[str, Engine] = {}
        for name in ENGINES:
            engines[name] = await running.enter_async_context(run.start(engine_settings(name, run.model)))
        for scenario in left:
            await _run_scenario(run, scenario, engines)
        for name, engine in engines.items():
            pool = await engine.metric("sternpost_suffix_pool_bytes")
            run.records.add(memory_key(name), {"bytes": group_bytes(engine.pid), "pool_bytes": pool})


def engine_settings(name: str, model: Path) -> EngineSettings:
    """Return how an engine is started: alike but for the plugin."""
    return EngineSettings(
        name=name, model=model, plain=name == PLAIN, kv_cache_gib=KV_CACHE_GIB, arguments=ARGUMENTS
    )


def _batches_left(run: Run, scenario: Scenario) -> list[tuple[int, Batch]]:
    """Return the batches, with their places, that some engine has not done."""
    return [
        (place, batch)
        for place, batch in enumerate(scenario.batches)
        if any(batch_key(scenario, batch, name) not in run.records for name in ENGINES)
    ]


async def _run_scenario(run: Run, scenario: Scenario, engines: Mapping[str, Engine]) -> None:
    clock = run.progress.clock
    prefix, closing = _messages(scenario.prefix), _messages(scenario.tail)
    tail = await measure_tail(engines[PATCHED], scenario.name, closing, prefix=prefix)
    if scenario.built:
        await build_tail(engines[PATCHED], tail)
    for name, engine in engines.items():
        # The prefix, and whatever an engine does at its first request of a kind, are not what is measured.
        await ask(engine, clock, tail.conversation(WARM_UP), _hint(scenario, tail, name), Place("", 0, False))
    for place, batch in _batches_left(run, scenario):
        for name in (ENGINES[number] for number in arm_order(place)):
            if run.progress.elapsed() > run.seconds_max:
                raise OutOfTime(f"{run.seconds_max:.0f} s are over; run it again to go on")
            record = await _run_batch(run, scenario, batch, tail, engines[name])
            run.records.add(batch_key(scenario, batch, name), record)
    run.progress.tell(f"{scenario.name}: done, tail of {len(tail.tokens)} tokens")


async def _run_batch(
    run: Run, scenario: Scenario, batch: Batch, tail: Tail, engine: Engine
) -> Mapping[str, Any]:
    clock = run.progress.clock
    hint = _hint(scenario, tail, engine.name)

    async def run_session(session: Session) -> list[Sample]:
        return [
            await ask(
                engine, clock, tail.conversation(turn.middle), hint, Place(session.id, number, turn.measured)
            )
            for number, turn in enumerate(session.turns)
        ]

    started = clock.monotonic()
    samples = await asyncio.gather(*map(run_session, batch.sessions))
    return {
        "seconds": clock.monotonic() - started,
        "samples": [sample.to_record() for sample in itertools.chain.from_iterable(samples)],
    }


def _hint(scenario: Scenario, tail: Tail, engine: str) -> Hint | None:
    return tail.read_hint() if scenario.hinted and engine == PATCHED else None


def _messages(content: str) -> Messages:
    return [{"role": "system", "content": content}] if content else []
