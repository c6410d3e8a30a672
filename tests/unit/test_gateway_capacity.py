"""`sternpost plan`: demand from a log, an engine's speed, waiting, and how many engines it takes."""

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.errors import OperatingError, SettingsError, SternpostError
from sternpost_gateway.bench.agents import agent_bodies
from sternpost_gateway.bench.records import append_unit, write_head
from sternpost_gateway.bench.sample import Sample, Unit
from sternpost_gateway.capacity.command import COMMAND
from sternpost_gateway.capacity.demand import Demand
from sternpost_gateway.capacity.queueing import simulate
from sternpost_gateway.capacity.sizing import HOURS_PER_MONTH, Prices, Promise, plan
from sternpost_gateway.capacity.speed import Point, Speed, Work, fit

SPEED = Speed(prefill_rate=1000.0, fixed_seconds=0.05)
WORK = Work(computed_tokens=450, prompt_tokens=1000)
PROMISE = Promise(requests_per_second=10.0, answer_tokens=0.0, ttft_p95_seconds=2.0, utilisation_max=0.8)
PRICES = Prices(engine_hour=2.0, kv_bytes_per_token=1024.0)


def demand(computed: int) -> Demand:
    """Return requests of 1,000 tokens, of which so many are computed."""
    return Demand(
        prompt_tokens=(1000,) * 4, computed_tokens=(computed,) * 4, prefix_tokens=64, tail_tokens=500
    )


def parsed(*argv: str) -> argparse.Namespace:
    """Return the flags as the command takes them."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    return parser.parse_args(argv)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of agents whose requests are full of what breaks a prefix cache."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join(agent_bodies(60, 3)))
    return path


@pytest.mark.parametrize(
    "busy",
    [pytest.param(0.3, id="mostly idle"), pytest.param(0.6, id="busy"), pytest.param(0.8, id="very busy")],
)
def test_waiting_for_one_engine_is_as_the_theory_has_it(busy: float) -> None:
    """With requests of one size the mean wait is busy / (2 (1 - busy)) times what one takes."""
    held = SPEED.first_token_seconds(WORK)
    waiting = simulate((WORK,), 0.0, SPEED, busy / held, 1, requests=60_000)

    assert held + held * busy / (2 * (1 - busy)) == pytest.approx(waiting.ttft_mean, rel=0.1)
    assert busy == pytest.approx(waiting.utilisation, rel=0.05)


def test_answers_keep_an_engine_busy_but_come_after_the_first_token() -> None:
    """They make others wait, not their own first token."""
    idle = simulate((WORK,), 100.0, Speed(1000.0, 0.05, decode_rate=100.0), 0.001, 1, requests=200)

    assert 0.5 == pytest.approx(idle.ttft_p50)
    assert 1.5 == pytest.approx(Speed(1000.0, 0.05, decode_rate=100.0).busy_seconds(WORK, 100.0))


@pytest.mark.parametrize(
    "speed",
    [
        pytest.param(Speed(1000.0), id="tokens alone"),
        pytest.param(Speed(1000.0, 0.05), id="and something for each prompt"),
        pytest.param(Speed(1000.0, pair_seconds=1e-6), id="and attention"),
        pytest.param(Speed(1000.0, 0.05, pair_seconds=1e-6), id="all three"),
    ],
)
def test_a_speed_is_found_again_in_what_it_made(speed: Speed) -> None:
    """Exactly, where the points lie on it; what is not in them is zero."""
    works = [Work(computed, computed + cached) for computed in range(100, 1300, 100) for cached in (0, 700)]
    found = fit([Point(work, speed.first_token_seconds(work)) for work in works])

    assert speed.prefill_rate == pytest.approx(found.prefill_rate)
    assert speed.fixed_seconds == pytest.approx(found.fixed_seconds)
    assert speed.pair_seconds == pytest.approx(found.pair_seconds)


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.integers(0, 5000), st.floats(0.001, 60.0)), min_size=8, max_size=40
    )
)
def test_no_cost_of_a_fitted_speed_is_below_zero(drawn: list[tuple[int, int, float]]) -> None:
    """Whatever was measured: a plan on negative times would be nonsense."""
    points = [Point(Work(computed, computed + cached), ttft) for computed, cached, ttft in drawn]
    try:
        found = fit(points)
    except OperatingError as error:
        assert "no speed fits" in str(error)
        return

    assert found.prefill_rate > 0
    assert min(found.fixed_seconds, found.pair_seconds) >= 0


def test_few_tokens_behind_a_long_cached_prefix_take_longer_than_few_alone() -> None:
    """Attention looks at all that stands before them."""
    speed = Speed(1000.0, pair_seconds=1e-6)

    assert 0.1 + 0.005 == pytest.approx(speed.first_token_seconds(Work(100, 100)))
    assert 0.1 + 0.195 == pytest.approx(speed.first_token_seconds(Work(100, 2000)))


@pytest.mark.parametrize(
    ("points", "fault"),
    [
        pytest.param([Point(Work(100, 100), 0.1)] * 3, "3 requests are too few", id="few"),
        pytest.param(
            [Point(Work(100 * n, 100 * n), 1.0 / n) for n in range(1, 10)],
            "no speed fits",
            id="faster with more",
        ),
    ],
)
def test_what_gives_no_speed_is_said(points: list[Point], fault: str) -> None:
    """Rather than a plan that rests on nothing."""
    with pytest.raises(OperatingError, match=fault):
        fit(points)


def test_less_to_compute_takes_fewer_engines_and_less_money() -> None:
    """In the proportion of what an engine is busy with, whole engines at a time."""
    today, fixed = (plan(demand(computed), SPEED, PROMISE, PRICES) for computed in (1000, 100))

    assert (14, 2) == (today.engines, fixed.engines)
    assert 14 * 2.0 * HOURS_PER_MONTH == today.cost
    assert 0.0 == pytest.approx(today.reuse)
    assert 0.9 == pytest.approx(fixed.reuse)
    assert (64 * 1024.0, 500 * 1024.0) == (fixed.prefix_bytes, fixed.suffix_bytes)
    assert today.waiting.ttft_p95 <= PROMISE.ttft_p95_seconds


def test_a_tighter_promise_takes_more_engines_and_an_impossible_one_is_refused() -> None:
    """No number of engines makes one prompt quicker than it is alone."""
    tight = Promise(requests_per_second=10.0, answer_tokens=0.0, ttft_p95_seconds=1.1, utilisation_max=0.8)

    assert (
        plan(demand(1000), SPEED, PROMISE, PRICES).engines < plan(demand(1000), SPEED, tight, PRICES).engines
    )
    with pytest.raises(OperatingError, match=r"without any waiting it is 1.05 s"):
        plan(
            demand(1000),
            SPEED,
            Promise(requests_per_second=1, answer_tokens=0, ttft_p95_seconds=0.5, utilisation_max=0.8),
            PRICES,
        )


@pytest.mark.parametrize("rate", [1e9, 1e308])
def test_what_no_pool_can_serve_is_refused(rate: float) -> None:
    """However far beyond all engines it is."""
    promise = Promise(requests_per_second=rate, answer_tokens=0, ttft_p95_seconds=99, utilisation_max=0.8)
    with pytest.raises(OperatingError, match=r"more than 4096 engines"):
        plan(demand(10_000), SPEED, promise, PRICES)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param("plan.unknown", None, id="another-ending"),
        pytest.param("", "Is a directory", id="directory"),
        pytest.param("missing/plan.png", "No such file or directory", id="no-directory"),
    ],
)
def test_a_plot_is_where_it_was_asked_for(name: str, fault: str | None, log: Path, tmp_path: Path) -> None:
    """A PNG at that very place, or the reason."""
    flags = [
        str(log),
        "--requests-per-second",
        "5",
        "--prefill-rate",
        "10000",
        "--plot",
        str(tmp_path / name),
    ]
    if fault is None:
        assert 0 == COMMAND.run(parsed(*flags))
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        return
    with pytest.raises(OperatingError, match=rf"--plot: .* cannot be written: {fault}"):
        COMMAND.run(parsed(*flags))


def test_a_log_is_planned_with_the_policy_that_lint_proposes(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agents' unstable bytes cost engines, and the policy saves them."""
    flags = [str(log), "--requests-per-second", "50", "--prefill-rate", "10000", "--price-per-hour", "2"]

    assert 0 == COMMAND.run(parsed(*flags, "--output", "json", "--plot", str(tmp_path / "plan.png")))

    found = json.loads(capsys.readouterr().out)
    assert found["with"]["engines"] < found["without"]["engines"]
    assert found["without"]["reuse"] < found["with"]["reuse"]
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_a_column_for_each_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    And one for the ratio; its rows are engines, times, memory and money.

    A tail is proposed from 200 prompts on that follow a template.
    """
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join(agent_bodies(210, 3)))
    flags = [str(log), "--requests-per-second", "5", "--prefill-rate", "10000", "--price-per-hour", "2"]

    assert 0 == COMMAND.run(parsed(*flags))

    lines = [line.split(" | ") for line in capsys.readouterr().out.split("\n") if line.startswith("| ")]
    assert ["|", "without", "with", "with / without |"] == [cell.strip() for cell in lines[0]]
    assert [
        *("engines", "prompt tokens reused", "TTFT p50, ms", "TTFT p95, ms", "busy"),
        *("prefixes held, GiB", "suffix store each, GiB", "cost per month"),
    ] == [cells[0].removeprefix("| ") for cells in lines[2:]]
    (store,) = (cells for cells in lines if "suffix store" in cells[0])
    assert 0.0 == float(store[1]) < float(store[2])


def test_a_speed_is_taken_from_a_bench_s_run(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the target that is named, else of the baseline."""
    samples = tuple(
        Sample(
            session=f"s{number}",
            turn=0,
            measured=True,
            started=0.0,
            ttft=SPEED.first_token_seconds(Work(100 * number, 100 * number)),
            total=1.0,
            prompt_tokens=100 * number,
            computed_tokens=100 * number,
        )
        for number in range(1, 12)
    )
    run = tmp_path / "units.jsonl"
    write_head(run, {"baseline": "plain", "targets": {"plain": []}})
    append_unit(
        run,
        Unit(workload="w", target="plain", repeat=0, seconds=1, samples=samples, counted={}, peak={}),
    )
    flags = [str(log), "--requests-per-second", "5", "--speed-from", str(run)]

    assert 0 == COMMAND.run(parsed(*flags))
    assert "computes 1000 prompt tokens per second, and takes 50 ms" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="--speed-target: 'other' is not allowed; allowed: plain"):
        COMMAND.run(parsed(*flags, "--speed-target", "other"))


def test_without_a_speed_there_is_no_plan(log: Path) -> None:
    """Both ways to give one are named."""
    with pytest.raises(SettingsError, match=r"--prefill-rate: nothing .* or a bench's run by --speed-from"):
        COMMAND.run(parsed(str(log), "--requests-per-second", "5"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("kind: [", "cannot be read as YAML", id="no YAML"),
        pytest.param("a: " + "[" * 10_000, "cannot be read as YAML", id="deep"),
        pytest.param("kind: a\nkind: b\n", "the key 'kind' stands twice", id="key-twice"),
        pytest.param("# nothing\n", "holds 0 objects; allowed: one CachePolicy", id="nothing"),
        pytest.param("kind: a\n---\nkind: b\n", "holds 2 objects; allowed: one CachePolicy", id="two"),
        pytest.param(
            "apiVersion: sternpost.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: a, namespace: b}\n"
            "spec: {selector: {matchLabels: {app: vllm}}}\n",
            "kind: 'EnginePool' is not allowed; allowed: CachePolicy",
            id="another object",
        ),
    ],
)
def test_a_policy_file_that_is_none_is_refused(text: str, fault: str, log: Path, tmp_path: Path) -> None:
    """The file is named."""
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(SternpostError, match=fault):
        COMMAND.run(
            parsed(str(log), "--requests-per-second", "5", "--prefill-rate", "9", "--policy-file", str(path))
        )


@pytest.mark.parametrize(
    "flags",
    [["--requests-per-second", "0"], ["--busy-max", "100"], ["--prefill-rate", "inf"], ["--kv-kib", "-1"]],
)
def test_numbers_out_of_range_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With what is allowed."""
    with pytest.raises(SystemExit):
        parsed("log", *flags)
    assert "is not allowed; allowed: above 0" in capsys.readouterr().err
