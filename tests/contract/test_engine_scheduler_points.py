"""vLLM's own scheduler, and a read that is disturbed at each point of its life, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sternpost_core.hint import Operation, Reason
from sternpost_fakes.real_scheduler import ROWS, STEP_TOKENS, make_real_scheduler, request_maker
from sternpost_fakes.scheduler_simulation import TAILS, Asked, Simulation, build_of, read_of

pytestmark = pytest.mark.engine

TAIL = TAILS[2]
ANSWER_TOKENS = 4

Disturbance = Callable[[Simulation, str], None]


def abort(simulation: Simulation, request_id: str) -> None:
    """The client goes away."""
    simulation.abort(request_id)


def preempt(simulation: Simulation, request_id: str) -> None:
    """Another request needs the blocks."""
    scheduler = simulation.scheduler
    request = scheduler.requests[request_id]
    if request in scheduler.running:
        simulation.served[request_id].preempted = True
        scheduler.running.remove(request)
        scheduler._preempt_request(request, time.monotonic())


def preempt_and_forget(simulation: Simulation, request_id: str) -> None:
    """And takes them."""
    preempt(simulation, request_id)
    simulation.scheduler.kv_cache_manager.reset_prefix_cache()


def reset_while_it_runs(simulation: Simulation, request_id: str) -> None:
    """All requests begin anew: the prefix store is emptied, with what a step in flight still writes to."""
    simulation.served[request_id].preempted = True
    assert simulation.scheduler.reset_prefix_cache(reset_running_requests=True)


def reset_tails(simulation: Simulation, request_id: str) -> None:
    """The engine's weights were changed."""
    simulation.side.planner.reset()


def fail_copy(simulation: Simulation, request_id: str) -> None:
    """A worker cannot copy, if a copy comes."""
    simulation.fail_share = 1.0


def prepared(folder: Path, depth: int) -> Simulation:
    """Return a simulation in which nothing has happened."""
    scheduler = make_real_scheduler(folder, blocks=200, async_scheduling=depth > 1)
    return Simulation(scheduler, request_maker(), seed=0, depth=depth, fail_share=0.0)


def begin(simulation: Simulation, asked: Asked) -> str:
    """Build the tail, unless it is there, with an empty prefix store; then ask."""
    simulation.fail_share = 0.0
    simulation.ask(build_of(TAIL))
    simulation.finish()
    assert simulation.scheduler.reset_prefix_cache()
    return simulation.ask(asked)


def assert_nothing_is_left(simulation: Simulation) -> None:
    """No block, no reference, no hashes that are not the request's own."""
    assert 0.0 == simulation.scheduler.kv_cache_manager.usage
    assert 0 == sum(record.references for record in simulation.side.planner.index.records())
    assert 0 == simulation.side.hashes.held


@pytest.mark.parametrize(
    ("middle_tokens", "steps_min"),
    [pytest.param(20, 4, id="short-middle"), pytest.param(250, 6, id="long-middle")],
)
@pytest.mark.parametrize("depth", [1, 2], ids=["sync", "async"])
@pytest.mark.parametrize(
    "disturb",
    [abort, preempt, preempt_and_forget, reset_while_it_runs, reset_tails, fail_copy],
    ids=lambda act: act.__name__,
)
def test_read_may_be_disturbed_at_each_point(
    tmp_path: Path, disturb: Disturbance, depth: int, middle_tokens: int, steps_min: int
) -> None:
    """Its answer is right all the same, or it is gone; and nothing is left of it."""
    simulation = prepared(tmp_path, depth)
    asked = read_of(TAIL, middle_tokens=middle_tokens, answer_tokens=ANSWER_TOKENS)
    begin(simulation, asked)
    steps = simulation.finish()
    assert steps >= steps_min

    for point in range(steps):
        request_id = begin(simulation, asked)
        for _ in range(point):
            simulation.step()
        if request_id in simulation.scheduler.requests:
            disturb(simulation, request_id)
        simulation.finish()

        served = simulation.served[request_id]
        assert served.ended or disturb is abort
        assert_nothing_is_left(simulation)


def test_copy_that_fails_after_a_reset_is_read_by_nobody(tmp_path: Path) -> None:
    """The copy before it, to blocks that the request has no more, succeeded."""
    simulation = prepared(tmp_path, 2)
    asked = read_of(TAIL, middle_tokens=20, answer_tokens=3 * ANSWER_TOKENS)
    first = begin(simulation, asked)
    simulation.step()
    reset_while_it_runs(simulation, first)
    simulation.fail_share = 1.0
    simulation.step()
    simulation.fail_share = 0.0

    second = simulation.ask(asked)
    simulation.finish()

    reports = [simulation.served[request_id].report for request_id in (first, second)]
    assert [Reason.COPY_FAILED, Reason.HIT] == [report and report["reason"] for report in reports]
    assert_nothing_is_left(simulation)


@pytest.mark.parametrize("middle_tokens", [STEP_TOKENS // 2, STEP_TOKENS, 2 * STEP_TOKENS - 10])
def test_long_middle_is_computed_once(tmp_path: Path, middle_tokens: int) -> None:
    """The engine's own count is middle + head + last, in as many steps as that takes."""
    simulation = prepared(tmp_path, 1)
    asked = read_of(TAIL, middle_tokens=middle_tokens, answer_tokens=1, head=5, last=9)

    request_id = begin(simulation, asked)
    steps = simulation.finish()

    report = simulation.served[request_id].report
    computed = len(asked.prompt) - len(TAIL) + 5 + 9
    assert report is not None
    assert (Reason.HIT, 0, computed) == tuple(
        report[key] for key in ("reason", "prefix_tokens", "computed_tokens")
    )
    assert computed == simulation.worker.computed[request_id]
    assert steps <= computed // STEP_TOKENS + 2


def test_long_middles_do_not_keep_others_waiting(tmp_path: Path) -> None:
    """A short request that comes while a long middle is computed has its first token in the next steps."""
    simulation = prepared(tmp_path, 1)
    begin(simulation, read_of(TAIL, middle_tokens=250, answer_tokens=1))
    simulation.step()
    short = simulation.ask(read_of(TAIL, middle_tokens=10, answer_tokens=1, op=Operation.OFF))

    simulation.step()
    simulation.step()

    assert simulation.served[short].ended


def test_reads_that_share_a_step_are_all_spliced(tmp_path: Path) -> None:
    """As many as there are rows for; the others wait, and all are hits."""
    simulation = prepared(tmp_path, 1)
    first = begin(simulation, read_of(TAIL, middle_tokens=20, answer_tokens=ANSWER_TOKENS))
    others = [
        simulation.ask(read_of(TAIL, middle_tokens=20 + number, answer_tokens=ANSWER_TOKENS))
        for number in range(ROWS)
    ]

    simulation.finish()

    reports = [simulation.served[request_id].report for request_id in (first, *others)]
    assert [Reason.HIT] * (ROWS + 1) == [report["reason"] for report in reports if report is not None]
