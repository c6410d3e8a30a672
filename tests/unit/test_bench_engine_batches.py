"""Both engines run, batch by batch, in turn."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.common.engine_api import Engine
from bench.common.engine_process import EngineSettings
from bench.common.store import OutOfTime, RecordStore
from bench.demo.progress import Progress
from bench.engine.__main__ import workloads
from bench.engine.batches import ENGINES, PATCHED, PLAIN, Run, batch_key, engine_settings, memory_key, run_all
from bench.engine.scenarios import Batch, Scenario, Session, Turn
from sternpost_fakes.bench_engine import FakeEngine, answer_with, usage_of
from sternpost_fakes.clock import FakeClock


def user(content: str) -> tuple[dict[str, str], ...]:
    """Return a middle of one message."""
    return ({"role": "user", "content": content},)


def session(name: str) -> Session:
    """Return a session of two turns."""
    return Session(name, (Turn(user(f"{name} first")), Turn(user(f"{name} second"))))


SCENARIO = Scenario(
    name="fixed_tail",
    tail="rules",
    batches=(
        Batch("alone-0", (session("a"),)),
        Batch("alone-1", (session("b"),)),
        Batch("loaded", (session("c"), session("d"))),
    ),
)


class Engines:
    """Starts fakes; `chats` are the conversations in the order in which both were asked."""

    def __init__(self) -> None:
        self.chats: list[tuple[str, str, bool]] = []
        self.builds = 0

    @asynccontextmanager
    async def start(self, settings: EngineSettings) -> AsyncIterator[Engine]:
        """Give a fake engine."""

        def chat(body: dict[str, Any]) -> httpx.Response:
            self.chats.append((settings.name, body["messages"][0]["content"], "kv_transfer_params" in body))
            words = {"choices": [{"delta": {"content": "Hello"}}]}
            usage = {"choices": [], "usage": usage_of(suffix=60, computed=40)}
            events = "".join(f"data: {json.dumps(event)}\n\n" for event in (words, usage))
            return httpx.Response(200, text=f"{events}data: [DONE]\n\n")

        def build(body: dict[str, Any]) -> httpx.Response:
            self.builds += 1
            return answer_with({"usage": usage_of(reason="built")})(body)

        fake = FakeEngine(
            {
                "/v1/chat/completions": chat,
                "/v1/completions": build,
                "/metrics": lambda body: httpx.Response(200, text="sternpost_suffix_pool_bytes{} 5.0\n"),
            }
        )
        yield fake.client(settings.name)


def make_run(folder: Path, engines: Engines, scenario: Scenario = SCENARIO, *, now: float = 0.0) -> Run:
    """Return a run whose records lie in `folder`."""
    return Run(
        scenarios=[scenario],
        records=RecordStore(folder / "records.jsonl", "f"),
        progress=Progress(FakeClock(monotonic=now), 0.0, io.StringIO()),
        start=engines.start,
        model=Path("model"),
        seconds_max=100.0,
    )


async def test_every_batch_runs_on_both_engines_and_never_again(tmp_path: Path) -> None:
    """All rounds are recorded with all their samples, and the pairs are made of them."""
    engines = Engines()
    run = make_run(tmp_path, engines)

    await run_all(run)
    asked = len(engines.chats)
    await run_all(make_run(tmp_path, engines))

    assert asked == len(engines.chats) == 2 * (1 + 8)
    assert all(
        batch_key(SCENARIO, batch, name) in run.records for batch in SCENARIO.batches for name in ENGINES
    )
    assert {"fixed_tail": [2, 2], "fixed_tail_8": [4]} == {
        name: [len(pair.patched) for pair in pairs]
        for name, pairs in workloads(run.records, SCENARIO).items()
    }
    assert 5.0 == run.records[memory_key(PATCHED)]["pool_bytes"]


async def test_the_engines_take_turns_in_abba_order(tmp_path: Path) -> None:
    """What drifts evenly meets both alike; nothing is asked of one while the other is asked."""
    engines = Engines()

    await run_all(make_run(tmp_path, engines))

    measured = [(name, content.split()[0]) for name, content, _ in engines.chats[2:]]
    batches = list(dict.fromkeys((name, {"d": "c"}.get(word, word)) for name, word in measured))
    assert [
        (PLAIN, "a"),
        (PATCHED, "a"),
        (PATCHED, "b"),
        (PLAIN, "b"),
        (PLAIN, "c"),
        (PATCHED, "c"),
    ] == batches


async def test_only_the_patched_engine_gets_hints(tmp_path: Path) -> None:
    """Once the tail is built; a scenario without hints gets none at all."""
    engines, unhinted = Engines(), Engines()
    scenario = Scenario(name="no_reuse", batches=SCENARIO.batches, hinted=False, built=False)

    await run_all(make_run(tmp_path, engines))
    (tmp_path / "other").mkdir()
    await run_all(make_run(tmp_path / "other", unhinted, scenario))

    assert {(PLAIN, False), (PATCHED, True)} == {(name, hinted) for name, _, hinted in engines.chats}
    assert {False} == {hinted for _, _, hinted in unhinted.chats}
    assert (1, 0) == (engines.builds, unhinted.builds)


async def test_a_run_out_of_time_stops_between_batches(tmp_path: Path) -> None:
    """What is recorded is kept."""
    engines = Engines()

    with pytest.raises(OutOfTime):
        await run_all(make_run(tmp_path, engines, now=101.0))

    assert {PLAIN, PATCHED} == {name for name, _, _ in engines.chats}
    assert {} == workloads(RecordStore(tmp_path / "records.jsonl", "f"), SCENARIO)
    assert 0 == len(RecordStore(tmp_path / "records.jsonl", "f"))


def test_the_engines_are_alike_but_for_the_plugin() -> None:
    """The same model, blocks and memory."""
    plain, patched = (engine_settings(name, Path("model")) for name in ENGINES)

    assert (True, False) == (plain.plain, patched.plain)
    assert (plain.arguments, plain.kv_cache_gib, plain.threads) == (
        patched.arguments,
        patched.kv_cache_gib,
        patched.threads,
    )
