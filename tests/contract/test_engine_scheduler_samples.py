"""The scheduler's adapter: samples for calibration, which yield to everybody."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sternpost_core.hint import Correction
from sternpost_engine.adapters import AdapterDigests
from sternpost_engine.calibration import ATTEMPTS_MAX
from sternpost_engine.planner import SAMPLE_PREFIX
from sternpost_fakes.middles import make_calibrator
from sternpost_fakes.tail_requests import TAIL, build, build_facts, make_planner
from sternpost_fakes.vllm_modules import import_object
from sternpost_fakes.vllm_scheduler import (
    FULL_TOKENS,
    end_step,
    make_scheduler,
    planner_of,
    request_named,
)

pytestmark = pytest.mark.engine


def calibrating_scheduler(**state: Any) -> Any:
    """Return a scheduler to which a sample was just added while the engine was idle."""
    scheduler = make_scheduler(planner_of(calibrated=True), **state)
    end_step(scheduler)
    assert [True] == [request.request_id.startswith(SAMPLE_PREFIX) for request in scheduler.waiting]
    return scheduler


def admit_sample(scheduler: Any) -> str:
    """Let the sample run, and return its id."""
    sample = scheduler.waiting.pop()
    scheduler.running.append(sample)
    request_id: str = sample.request_id
    return request_id


def test_sample_is_a_request_of_vllm() -> None:
    """With the sample's own prompt, one token to sample, and nothing for the prefix store."""
    scheduler = calibrating_scheduler()
    request = scheduler.waiting[0]

    assert tuple(TAIL) == tuple(request.prompt_token_ids[-len(TAIL) :])
    assert (1, None, None) == (request.max_tokens, request.kv_transfer_params, request.lora_request)
    assert 0 == scheduler.connector.scheduler_side.planner.register_max(request.request_id)


def test_busy_engine_is_not_calibrated() -> None:
    """Not twice in a row, at least."""
    scheduler = calibrating_scheduler()
    request_id = admit_sample(scheduler)
    scheduler.running = [request_named("other")]
    scheduler.connector.scheduler_side.planner.finish(request_id)

    end_step(scheduler)

    assert [] == scheduler.waiting


def test_sample_alone_is_computed_in_short_steps() -> None:
    """Whoever arrives meanwhile waits for the step's end; that holds for its first step too."""
    scheduler = calibrating_scheduler()

    scheduler.schedule()
    request_id = admit_sample(scheduler)
    scheduler.schedule()

    assert [512, 512] == [step.tokens for step in scheduler.steps]
    assert [[], [request_id]] == [step.running for step in scheduler.steps]


@pytest.mark.parametrize(
    ("running", "waiting"),
    [
        pytest.param(["other"], [], id="another-runs"),
        pytest.param([], ["other"], id="another-waits"),
    ],
)
def test_sample_yields_to_others(running: list[str], waiting: list[str]) -> None:
    """It is left out of their steps, keeps its blocks, and goes on when they are done."""
    scheduler = calibrating_scheduler()
    request_id = admit_sample(scheduler)
    scheduler.running += [request_named(name) for name in running]
    scheduler.waiting += [request_named(name) for name in waiting]

    scheduler.schedule()

    assert [running] == [step.running for step in scheduler.steps]
    assert [*running, request_id] == [request.request_id for request in scheduler.running]
    assert [] == scheduler.given_up
    assert FULL_TOKENS == scheduler.steps[0].tokens


def test_sample_of_a_busy_engine_is_computed_beside_others() -> None:
    """An engine that is never idle calibrates too."""
    scheduler = make_scheduler(planner_of(calibrated=True), running=[request_named("other")])
    end_step(scheduler)
    request_id = admit_sample(scheduler)

    scheduler.schedule()

    assert [["other", request_id]] == [step.running for step in scheduler.steps]


@pytest.mark.parametrize(
    ("usage", "scheduled_tokens"),
    [
        pytest.param(0.81, 1, id="blocks-are-scarce"),
        pytest.param(0.5, 0, id="nobody-else-was-admitted"),
    ],
)
def test_sample_whose_blocks_others_need_is_given_up(usage: float, scheduled_tokens: int) -> None:
    """A request that waits for the sample's blocks, while the sample waits for the request, waits forever."""
    aborted = import_object("vllm.v1.request:RequestStatus").FINISHED_ABORTED
    scheduler = calibrating_scheduler(scheduled_tokens=scheduled_tokens)
    request_id = admit_sample(scheduler)
    scheduler.kv_cache_manager.usage = usage
    scheduler.waiting.append(request_named("other"))

    scheduler.schedule()

    assert [(request_id, aborted)] == scheduler.given_up
    assert [] == scheduler.running


@pytest.mark.parametrize("runs", [True, False], ids=["runs", "waits"])
def test_engine_that_ends_gives_its_sample_up_and_makes_no_more(runs: bool) -> None:
    """It waits for its requests, and would wait for as long as there are tails to calibrate."""
    aborted = import_object("vllm.v1.request:RequestStatus").FINISHED_ABORTED
    scheduler = calibrating_scheduler()
    request_id = scheduler.waiting[0].request_id
    if runs:
        admit_sample(scheduler)

    scheduler.end_samples()
    scheduler.end_samples()
    scheduler.waiting = []
    scheduler.connector.scheduler_side.planner.finish(request_id)
    end_step(scheduler)

    assert [(request_id, aborted)] == scheduler.given_up
    assert ([], []) == (scheduler.running, scheduler.waiting)


@pytest.mark.parametrize(
    ("change", "samples"),
    [
        pytest.param(lambda folder: None, 1, id="as-it-was"),
        pytest.param(lambda folder: (folder / "weights").unlink(), 0, id="gone"),
        pytest.param(lambda folder: (folder / "weights").write_text("v2"), 0, id="replaced"),
    ],
)
def test_tail_of_an_adapter_that_is_gone_is_not_calibrated(
    tmp_path: Path, change: Callable[[Path], Any], samples: int
) -> None:
    """vLLM loads an adapter that it has evicted from its files, and ends where they are not there."""
    (tmp_path / "weights").write_text("v1")
    adapter = SimpleNamespace(lora_name="a", lora_int_id=1, lora_path=str(tmp_path))
    identity = AdapterDigests().identify(adapter)
    assert identity is not None
    planner = make_planner(calibrator=make_calibrator())
    facts = build_facts("build", correction=Correction.CALIBRATED)
    build(planner, replace(facts, lora=identity, adapter=adapter))
    change(tmp_path)
    scheduler = make_scheduler(planner)

    for _ in range(2 * ATTEMPTS_MAX):
        end_step(scheduler)

    assert samples == len(scheduler.waiting)
    assert None is planner.next_sample(idle=True)


def test_empty_step_gives_up_no_sample_that_runs() -> None:
    """Steps of an engine that runs ahead may be empty."""
    scheduler = calibrating_scheduler(scheduled_tokens=0)
    request_id = admit_sample(scheduler)

    scheduler.schedule()

    assert [] == scheduler.given_up
    assert [request_id] == [request.request_id for request in scheduler.running]


def test_full_cache_gives_up_no_sample_that_is_alone() -> None:
    """Nobody else needs the blocks."""
    scheduler = calibrating_scheduler()
    admit_sample(scheduler)
    scheduler.kv_cache_manager.usage = 0.99

    scheduler.schedule()

    assert [] == scheduler.given_up
