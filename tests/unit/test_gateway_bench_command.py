"""`sternpost bench` from its flags to its files."""

import argparse
import asyncio
import json
from pathlib import Path

import pytest

from sternpost_core.errors import OperatingError, SettingsError
from sternpost_fakes.engine import FakeEngine, Faults, running_engine
from sternpost_fakes.gateway import running_gateway
from sternpost_gateway.bench.command import COMMAND
from sternpost_gateway.bench.order import order_of
from sternpost_gateway.bench.records import read_records
from sternpost_gateway.bench.workload import Bursts


def parsed(*argv: str) -> argparse.Namespace:
    """Return the flags as the command takes them."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    return parser.parse_args(argv)


def run_flags(engine: FakeEngine, folder: Path) -> list[str]:
    """Return the flags of a short run at two targets that are one engine."""
    flags = ["--target", f"one={engine.url}", "--target", f"two={engine.url}", "--model", "m"]
    flags += ["--workload", "short_chat", "--sessions", "2", "--repeats", "2", "--settle-seconds", "0"]
    return [*flags, "--target-body", 'two={"prefix_cache": false}', "--out", str(folder)]


async def test_a_run_leaves_units_rows_report_and_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each target gets each repetition, its warm-ups and its own members."""
    engine = FakeEngine()
    async with running_engine(engine):
        status = await asyncio.to_thread(COMMAND.run, parsed(*run_flags(engine, tmp_path)))

    recorded = read_records(tmp_path)
    assert 0 == status
    assert ["one", "two", "two", "one"] == [unit.target for unit in recorded.units]
    assert 4 * (3 + 2) == len(engine.chats)
    assert 10 == sum("prefix_cache" in json.loads(chat.body) for chat in engine.chats)
    assert {"units.jsonl", "report.md", "rows.json", "plot.png"} == {path.name for path in tmp_path.iterdir()}
    assert "| two |" in capsys.readouterr().out


async def test_sessions_are_held_in_turn_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each unit is recorded and told; the file and the report say how it was measured."""
    engine = FakeEngine()
    async with running_engine(engine):
        flags = [*run_flags(engine, tmp_path), "--in-turn", "--engine", engine.url, "--reset"]
        status = await asyncio.to_thread(COMMAND.run, parsed(*flags))

    recorded, said = read_records(tmp_path), capsys.readouterr()
    ours = [b"prefix_cache" in chat.body for chat in engine.chats]
    assert (0, True) == (status, recorded.head["in_turn"])
    assert ["one", "two", "two", "one"] == [unit.target for unit in recorded.units]
    # Of two repetitions, behind three warm-ups of each target: the second begins with the other one.
    assert [False, True, True, False, True, False, False, True] == [*ours[6:10], *ours[16:]]
    assert 2 * (2 + 2 * 2) == len(engine.posts("/reset_prefix_cache"))
    assert 4 == said.err.count(": 2 requests in ")
    assert "Each session was held at every target before the next began." in said.out


async def test_failed_requests_are_said_and_make_the_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures of what failed would be of nothing."""
    engine = FakeEngine(faults=Faults(drop=True))
    async with running_engine(engine):
        status = await asyncio.to_thread(COMMAND.run, parsed(*run_flags(engine, tmp_path)))

    assert 1 == status
    assert "failed requests at one: 4, the first: ServerDisconnectedError" in capsys.readouterr().err


async def test_a_gateway_is_measured_against_itself_with_reuse_off(tmp_path: Path) -> None:
    """The tail is built during the warm-ups, and read by whoever does not ask for a cache that is off."""
    engine = FakeEngine()
    async with running_engine(engine), running_gateway(tmp_path, [engine.url]) as gateway:
        flags = ["--target", f"off={gateway.url}", "--target", f"on={gateway.url}", "--model", "qwen"]
        flags += ["--target-body", 'off={"prefix_cache": false}', "--workload", "fixed_tail"]
        flags += ["--sessions", "3", "--repeats", "1", "--settle-seconds", "0.3"]
        flags += ["--out", str(tmp_path / "run")]
        status = await asyncio.to_thread(COMMAND.run, parsed(*flags))

    units = read_records(tmp_path / "run").units
    reused = {unit.target: [bool(one.suffix_tokens) for one in unit.samples] for unit in units}
    assert 0 == status
    assert [False] * 3 == reused["off"]
    assert reused["on"][-1]


async def test_two_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By their folders."""
    engine = FakeEngine()
    async with running_engine(engine):
        await asyncio.to_thread(COMMAND.run, parsed(*run_flags(engine, tmp_path / "a")))
    capsys.readouterr()

    assert 0 == COMMAND.run(parsed("compare", str(tmp_path / "a"), str(tmp_path / "a")))
    assert "| short_chat | one | 1.00 (1.00 to 1.00)" in capsys.readouterr().out


def test_the_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """With what each stands for."""
    assert 0 == COMMAND.run(parsed("workloads"))
    assert "fixed_tail         80 tokens of the user's" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        pytest.param([], "--target: nothing", id="no target"),
        pytest.param(["--target", "http://x"], "--target: 'http://x'", id="no name"),
        pytest.param(["--target", "a=ftp://x"], "--target: ftp://x", id="no URL"),
        pytest.param(["--target", "a=http://x", "--baseline", "b"], "--baseline: 'b'", id="baseline"),
        pytest.param(["--target", "a=http://x", "--no-reuse", "b"], "--no-reuse: 'b'", id="no-reuse"),
        pytest.param(["--target", "a=http://x", "--target-body", "a=[]"], "--target-body: ", id="no object"),
        pytest.param(["--target", "a=http://x", "--target-body", "b={}"], "--target-body: 'b'", id="whose"),
        pytest.param(["--target", "a=http://x", "--reset"], "--reset: no --engine", id="reset"),
        pytest.param(["--target", "a=http://x", "--workload", "w"], "--workload: 'w'", id="workload"),
        pytest.param(
            ["--target", "a=http://x", "--in-turn"],
            "--in-turn: agent_unstable, closed:at_once=2 is .*; "
            "--in-turn: clean_shared, bursts:size=4,seconds=3 is not allowed; "
            "allowed: workloads of closed:at_once=1",
            id="all workloads in turn",
        ),
        pytest.param(["compare", "one"], "RUN: 1 runs", id="one run"),
        pytest.param(["run", "one"], "RUN: one", id="a run to run"),
    ],
)
def test_wrong_flags_are_named_with_what_is_allowed(flags: list[str], fault: str) -> None:
    """Before anything is asked."""
    with pytest.raises(SettingsError, match=fault):
        COMMAND.run(parsed(*flags))


def test_a_replay_takes_its_arrivals_from_a_flag(tmp_path: Path) -> None:
    """What is wrong with it is said in the same way."""
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}))
    flags = ["--target", "a=http://x", "--replay", str(log)]

    order = order_of(parsed(*flags, "--arrivals", "bursts:size=8,seconds=2"))

    assert Bursts(8, 2) == order.workloads[0].make(0).arrivals
    for text in ("sometimes", "bursts:size=0,seconds=1", "poisson:per_minute=3", "closed:at_once=many"):
        with pytest.raises(SettingsError, match="--arrivals"):
            order_of(parsed(*flags, "--arrivals", text))


def test_a_replay_is_held_in_turn_where_its_requests_come_one_after_the_other(tmp_path: Path) -> None:
    """As they do unless another flag says how they come."""
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}))
    flags = ["--target", "a=http://x", "--replay", str(log), "--in-turn"]

    assert order_of(parsed(*flags)).in_turn
    with pytest.raises(SettingsError, match=r"--in-turn: log, poisson:per_second=0\.5 is not allowed"):
        order_of(parsed(*flags, "--arrivals", "poisson:per_second=0.5"))


def test_replays_of_one_name_are_refused(tmp_path: Path) -> None:
    """Their figures would be mixed; the name is told."""
    flags = ["--target", "a=http://x"]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.jsonl").write_text(
            json.dumps({"model": "m", "messages": [{"role": "user"}]})
        )
        flags += ["--replay", str(tmp_path / folder / "log.jsonl")]

    with pytest.raises(
        SettingsError, match="--replay: 'log' is not allowed; allowed: files whose names differ"
    ):
        order_of(parsed(*flags))


async def test_a_trace_is_replayed_at_its_own_moments(tmp_path: Path) -> None:
    """From the file to what an engine got, and when."""
    trace = tmp_path / "trace.jsonl"
    entries = (
        {"timestamp": 1000 + 400 * number, "input_length": 40, "output_length": 3, "hash_ids": [7]}
        for number in range(2)
    )
    trace.write_text("\n".join(map(json.dumps, entries)))
    engine = FakeEngine()
    async with running_engine(engine):
        flags = ["--target", f"one={engine.url}", "--model", "m", "--replay", str(trace), "--repeats", "1"]
        flags += ["--arrivals", "traced", "--settle-seconds", "0", "--out", str(tmp_path / "run")]
        status = await asyncio.to_thread(COMMAND.run, parsed(*flags))

    (unit,) = read_records(tmp_path / "run").units
    first, second = (json.loads(chat.body) for chat in engine.chats[-2:])
    assert (0, "trace", 2) == (status, unit.workload, len(unit.samples))
    assert (first["messages"], 3) == (second["messages"], second["max_tokens"])
    assert unit.samples[1].started - unit.samples[0].started >= 0.39


async def test_an_endpoint_without_models_needs_a_name(tmp_path: Path) -> None:
    """The message says what to do."""
    engine = FakeEngine()
    async with running_engine(engine):
        flags = ["--target", f"a={engine.url}", "--out", str(tmp_path)]
        with pytest.raises(OperatingError, match="name one by --model"):
            await asyncio.to_thread(COMMAND.run, parsed(*flags))
