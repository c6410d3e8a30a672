"""The scheduler's adapter: copies that succeed or fail, and middles longer than a step."""

from types import SimpleNamespace
from typing import Any

import pytest

from sternpost_core.hint import Reason
from sternpost_engine.operations import Operations
from sternpost_engine.tracks import Room
from sternpost_fakes.tail_requests import (
    OTHER_TAIL,
    WIDE,
    admitted,
    build_facts,
    read_facts,
)
from sternpost_fakes.vllm_modules import import_object
from sternpost_fakes.vllm_scheduler import (
    FULL_ROWS,
    MIDDLE,
    make_scheduler,
    planned_splice,
    planner_of,
    running_request,
    step_output,
)

pytestmark = pytest.mark.engine

# -- copies ------------------------------------------------------------------------------------------------


def end_copying_step(scheduler: Any, failed: set[str]) -> None:
    """Plan the step that splices `read`, and let the workers answer."""
    outcome = import_object("sternpost_engine.connector:OutcomeMetadata")({}, set(), failed)
    output = step_output({"read": 1}, Operations())
    scheduler._build_kv_connector_meta(None, output)
    scheduler.update_from_output(
        output,
        SimpleNamespace(kv_connector_output=SimpleNamespace(kv_connector_worker_meta=outcome), answers={}),
    )


def test_blocks_of_a_copy_that_succeeded_may_be_found() -> None:
    """Before vLLM processes the step, for it registers blocks then."""
    planner = planner_of()
    planner.add(read_facts("read", middle=MIDDLE))
    planner.open_space("read", 0)
    planner.match("read", 4, WIDE)
    admitted(planner, "read")
    scheduler = make_scheduler(planner, requests={"read": running_request("read", 28)})

    end_copying_step(scheduler, set())

    assert None is planner.register_max("read")
    assert Reason.HIT is planner.reason("read")


@pytest.mark.parametrize("running", [True, False], ids=["running", "preempted"])
def test_request_whose_copy_failed_begins_anew(running: bool) -> None:
    """What it has in flight is thrown away; it is computed exactly."""
    planner = planner_of()
    planned_splice(planner)
    request = running_request("read", 28)
    scheduler = make_scheduler(planner, requests={"read": request}, running=[request] if running else [])
    if not running:
        request.status = import_object("vllm.v1.request:RequestStatus").PREEMPTED

    end_copying_step(scheduler, {"read"})

    assert Reason.COPY_FAILED is planner.reason("read")
    assert request.drop_stale_output
    assert [] == scheduler.running
    assert (["read"] if running else []) == scheduler.preempted
    assert 0 == planner.match("read", 4, WIDE)


def test_copy_that_failed_for_a_request_that_is_gone_is_let_go() -> None:
    """It was aborted while the step ran."""
    planner = planner_of()
    planned_splice(planner)
    scheduler = make_scheduler(planner)

    end_copying_step(scheduler, {"read"})

    assert [] == scheduler.preempted


# -- long middles ------------------------------------------------------------------------------------------


def chunking_scheduler(computed: int, **state: Any) -> tuple[Any, Any]:
    """Return a scheduler that runs a read whose middle no step has room for, and the read."""
    planner = planner_of()
    planner.add(read_facts("read", middle=MIDDLE))
    assert 0 == planner.match("read", 0, Room(11, 8, 11, 8))
    assert None is planner.admit("read", 1)
    request = running_request("read", 28, computed)
    return make_scheduler(planner, running=[request], requests={"read": request}, **state), request


@pytest.mark.parametrize(
    ("computed", "new", "expected"),
    [
        pytest.param(0, 28, 12, id="up-to-the-tail"),
        pytest.param(4, 5, 5, id="inside-the-middle"),
        pytest.param(12, 16, 0, id="at-the-tail"),
    ],
)
def test_chunks_of_a_long_middle_end_where_the_tail_begins(computed: int, new: int, expected: int) -> None:
    """Another request's do not."""
    scheduler, request = chunking_scheduler(computed)

    assert expected == scheduler._reserve_prefill_lookahead(request, computed, new)
    plain = running_request("plain", 28, computed)
    assert new == scheduler._reserve_prefill_lookahead(plain, computed, new)


@pytest.mark.parametrize(
    ("build", "new", "expected"),
    [
        pytest.param(True, 23, 22, id="one-token-left"),
        pytest.param(True, 22, 22, id="two-tokens-left"),
        pytest.param(True, 24, 24, id="all"),
        pytest.param(True, 1, 1, id="one-by-one"),
        pytest.param(False, 23, 23, id="no-build"),
    ],
)
def test_last_chunk_of_a_build_is_not_one_token(build: bool, new: int, expected: int) -> None:
    """A step of single tokens may be replayed as a graph, and what it computes could not be kept."""
    planner = planner_of()
    request = running_request("new", 24)
    if build:
        assert planner.add(build_facts("new", OTHER_TAIL))
    scheduler = make_scheduler(planner)

    computed = 22 if new == 1 else 0
    assert expected == scheduler._reserve_prefill_lookahead(request, computed, new)
    assert build is planner.builds("new")


@pytest.mark.parametrize(
    ("computed", "rows"),
    [
        pytest.param(8, ((8, 12),), id="the-middles-end-rides-along"),
        pytest.param(12, (), id="all-of-it-is-computed"),
    ],
)
def test_running_read_is_spliced_when_the_rest_of_its_middle_fits(
    computed: int, rows: tuple[tuple[int, int], ...]
) -> None:
    """For vLLM its tail is computed from then on; the workers begin with the copy."""
    scheduler, request = chunking_scheduler(computed)

    scheduler.schedule()
    (splice,) = scheduler.connector.scheduler_side.planner.take_splices()
    output = step_output({"read": 2}, Operations())
    scheduler._build_kv_connector_meta(None, output)

    assert 26 == request.num_computed_tokens == splice.copied
    assert (computed, 12, rows) == (splice.hit, splice.exact, splice.rows)
    assert FULL_ROWS - 1 - len(rows) == scheduler.room().rows
    assert output.has_sync_kv_loads
    assert None is scheduler.connector.scheduler_side.planner.chunk_end("read")


def test_running_read_that_got_no_place_is_asked_again() -> None:
    """It stands where it stood, and holds no reference to the tail."""
    scheduler, request = chunking_scheduler(8)
    planner = scheduler.connector.scheduler_side.planner
    scheduler.schedule()
    output = step_output({}, Operations())

    scheduler._build_kv_connector_meta(None, output)

    assert 8 == request.num_computed_tokens
    assert 12 == planner.chunk_end("read")
    assert () == planner.take_splices()
    assert [(0, 0)] == [(record.references, record.hits) for record in planner.index.records()]
    assert not output.has_sync_kv_loads

    scheduler.schedule()

    assert 26 == request.num_computed_tokens


def test_tokens_of_a_read_that_got_no_place_are_not_counted_as_copied() -> None:
    """Its tail may be gone when it is asked again: then all that was not found is computed."""
    scheduler, request = chunking_scheduler(8)
    request.prefill_stats.set(28, 4, 0)
    side = scheduler.connector.scheduler_side
    resume = side.resume

    def resume_and_count(request: Any, room: Room) -> Any:
        splice = resume(request, room)
        request.prefill_stats.set(28, 4, splice.suffix_tokens)
        return splice

    side.resume = resume_and_count
    scheduler.schedule()
    assert 14 == request.prefill_stats.num_external_cached_tokens

    scheduler._build_kv_connector_meta(None, step_output({}, Operations()))

    stats = request.prefill_stats
    assert (4, 0) == (stats.num_local_cached_tokens, stats.num_external_cached_tokens)
    assert 28 - 4 == stats.num_computed_tokens


def test_running_read_that_was_preempted_stands_at_its_beginning() -> None:
    """In the very step that was to splice it."""
    scheduler, request = chunking_scheduler(8)
    scheduler.schedule()
    request.status, request.num_computed_tokens = (
        import_object("vllm.v1.request:RequestStatus").PREEMPTED,
        0,
    )

    scheduler._build_kv_connector_meta(None, step_output({}, Operations()))

    assert 0 == request.num_computed_tokens


def test_room_is_kept_for_the_rest_of_a_long_middle() -> None:
    """Once a step may have that much; before, its chunks are ordinary rows."""
    scheduler, _ = chunking_scheduler(8, max_num_scheduled_tokens=100)
    narrow, _ = chunking_scheduler(0, max_num_scheduled_tokens=70)

    scheduler.schedule()
    narrow.schedule()

    assert [100 - 4] == [step.tokens for step in scheduler.steps]
    assert [70] == [step.tokens for step in narrow.steps]
