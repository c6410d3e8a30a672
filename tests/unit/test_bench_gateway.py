"""What the hop costs: the bodies, the load generator's figures, and which bounds hold."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.common.results import Row, find_row
from bench.gateway.arms import LITELLM, OURS, SILENT, SMG, pinned
from bench.gateway.bodies import BODIES, LARGE_BYTES, SMALL_BYTES, bodies
from bench.gateway.load import Cell, Sample, measure, sample_of
from bench.gateway.report import report
from bench.gateway.summary import BOUNDS, DIRECT, judge, summarize
from bench.gateway.upstream import MODEL, SUFFIX_TOKENS, chat, prompt_tokens_of, tokenized
from sternpost_core.errors import OperatingError
from sternpost_core.hint import HINT_FIELD, Reason, parse_report
from sternpost_gateway.bench.machine import Machine

SAMPLE = Sample(requests=900, failed=0, seconds=3.0, p50=0.0006, p99=0.002, cpu_seconds=0.5)
FAST = replace(SAMPLE, cpu_seconds=0.0, p50=0.0001, p99=0.0002)


def rows_of(ours: Sample, litellm: Sample, smg: Sample) -> list[Row]:
    """Return the figures of a run in which every round went alike."""
    arms = {DIRECT: FAST, OURS: ours, LITELLM: litellm, SMG: smg, SILENT: SAMPLE}
    samples = {arm: [sample] * 3 for arm, sample in arms.items()}
    return summarize({"hop_5k_1": samples, "hop_5k_16": samples}, {OURS: 4096.0})


@pytest.mark.parametrize("size", [SMALL_BYTES, LARGE_BYTES])
def test_bodies_have_their_size_and_one_prefix_and_tail(size: int) -> None:
    """They are alike at both ends but for what the gateway mends: the order of tools, and a clock."""
    read = [json.loads(body) for body in bodies(size)]
    tools = {tuple(sorted(json.dumps(tool) for tool in body["tools"])) for body in read}
    systems = {body["messages"][0]["content"].partition("\n")[0] for body in read}
    lengths = [len(body) for body in bodies(size)]

    assert [BODIES, 1, 1, 1] == [
        len(read),
        len(tools),
        len(systems),
        len({body["messages"][-1]["content"] for body in read}),
    ]
    assert size <= min(lengths) and max(lengths) < 1.05 * size
    assert len({json.dumps(body["tools"]) for body in read}) > 1


def test_bodies_are_the_same_in_every_run() -> None:
    """Nothing is drawn but from a seed."""
    state = random.getstate()
    first = bodies(SMALL_BYTES)

    assert first == bodies(SMALL_BYTES)
    assert state == random.getstate()


def test_mock_engine_reports_as_the_plugin_does() -> None:
    """The gateway reads a hit out of the answer, and the counts add up to the prompt's tokens."""
    tokens = prompt_tokens_of(b"x" * SMALL_BYTES)
    answer = json.loads(chat(tokens).partition(b"\r\n\r\n")[2])
    found = parse_report(answer["usage"]["prompt_tokens_details"][HINT_FIELD])

    assert found is not None
    assert (Reason.HIT, SUFFIX_TOKENS) == (found.reason, found.suffix_tokens)
    assert tokens == found.prefix_tokens + found.suffix_tokens + found.computed_tokens


def test_mock_engine_tokenizes_from_the_front() -> None:
    """What comes later changes no token before it, as the gateway's templates need it."""
    system = {"role": "system", "content": "north south"}
    opening = tokenized({"messages": [system], "add_generation_prompt": False})
    whole = tokenized({"messages": [system, {"role": "user", "content": "east"}]})
    first, both = (json.loads(raw.partition(b"\r\n\r\n")[2])["tokens"] for raw in (opening, whole))

    assert first == both[: len(first)]
    assert len(first) < len(both)


def test_generators_figures_are_read() -> None:
    """What was not answered does not count as a request."""
    output = 'Running\n{"requests":1000,"seconds":2.5,"p50":0.001,"p99":0.01,"failed":100}\n'
    found = sample_of(output, 1.5)

    assert (900, 100, 360.0, 600.0) == (found.requests, found.failed, found.rate, found.rate_per_core)


@pytest.mark.parametrize("output", ["", "wrk: not a number\n"], ids=["nothing", "words"])
def test_generator_without_figures_is_an_error(output: str) -> None:
    """A run that says nothing is never taken for a run of nothing."""
    with pytest.raises(OperatingError, match="printed no figures"):
        sample_of(output, 1.0)


async def test_missing_generator_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lacks the load generator is told its name."""
    monkeypatch.setenv("PATH", str(tmp_path))
    cell = Cell(name="hop", bodies=tmp_path / "none", connections=1)

    with pytest.raises(OperatingError, match="wrk is not installed"):
        await measure("http://127.0.0.1:1", cell, 1, lambda: 0.0)


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        pytest.param(SAMPLE, [True, True, True, True, True], id="all"),
        pytest.param(replace(SAMPLE, p50=0.0009), [False, True, True, True, True], id="too late"),
        pytest.param(replace(SAMPLE, cpu_seconds=1.0), [True, False, False, False, False], id="too much"),
    ],
)
def test_bounds_hold_or_not(ours: Sample, expected: list[bool]) -> None:
    """Each bound looks at its own figure."""
    peers = replace(SAMPLE, requests=100, cpu_seconds=1.0), replace(SAMPLE, requests=3700, cpu_seconds=0.55)

    assert expected == [item.holds for item in judge(rows_of(ours, *peers))]


def test_bound_without_its_figure_does_not_hold() -> None:
    """A peer that is not there is no peer that was beaten."""
    assert [False] * len(BOUNDS) == [item.holds for item in judge([])]


def test_added_latency_is_the_difference_within_a_round() -> None:
    """A slow round is slow with and without the gateway."""
    slow = [replace(SAMPLE, p50=one) for one in (0.0006, 0.0106, 0.0206)]
    direct = [replace(FAST, p50=one) for one in (0.0001, 0.0101, 0.0201)]
    rows = summarize({"hop_5k_1": {DIRECT: direct, OURS: slow}}, {})
    found = find_row(rows, "hop_5k_1", "sternpost_added_p50_ms")

    assert found is not None
    assert pytest.approx(0.5) == found.value


def test_report_names_what_was_not_compared() -> None:
    """A reader sees every figure, every bound, and who is missing and why."""
    rows = rows_of(SAMPLE, SAMPLE, SAMPLE)
    machine = Machine(
        cores=2, cpu="a CPU", memory_gib=8, system="Linux", python="3.11", versions={"smg": "1"}, commit="abc"
    )
    text = report(rows, judge(rows), {"vllm_router": "no command"}, machine, datetime(2026, 1, 1, tzinfo=UTC))

    assert "`vllm_router` is not compared: no command." in text
    assert "## hop_5k_16" in text and "| sternpost |" in text and "passed" in text
    assert "| gateway   | KiB |" in text


@pytest.mark.parametrize(
    ("core", "expected"),
    [
        pytest.param(0, ["taskset", "--cpu-list", "0", "run", MODEL], id="one of several"),
        pytest.param(None, ["run", MODEL], id="the only one"),
    ],
)
def test_gateways_run_on_one_core(core: int | None, expected: list[str]) -> None:
    """Rates per core mean the same for gateways with many threads and with one."""
    assert expected == pinned(["run", MODEL], core)
