"""The scheduler's adapter: room and rows for splices, samples that yield, and reports."""

from types import SimpleNamespace
from typing import Any

import pytest

from sternpost_core.hint import Correction, Reason
from sternpost_engine.operations import Capture, Operations, Span, Splice
from sternpost_engine.planner import SAMPLE_PREFIX, TailPlanner
from sternpost_engine.tracks import Room
from sternpost_fakes.middles import make_calibrator, make_marker
from sternpost_fakes.tail_requests import (
    TAIL,
    WIDE,
    admitted,
    build,
    build_facts,
    make_planner,
    read_facts,
)
from sternpost_fakes.vllm_modules import import_object
from sternpost_fakes.vllm_scheduler import end_step, make_scheduler, request_named, step_output

pytestmark = pytest.mark.engine

MIDDLE = (900, TAIL[9], TAIL[1], 901)
"""Twelve tokens with the scaffold; two of them point at runs of four tokens."""

FULL_TOKENS, FULL_ROWS = 1000, 8
"""What a step has."""


def planner_of(*, calibrated: bool = False) -> TailPlanner:
    """Return a planner that holds a tail."""
    planner = make_planner(calibrator=make_calibrator(), marker=make_marker())
    correction = Correction.CALIBRATED if calibrated else Correction.NONE
    build(planner, build_facts("build", correction=correction))
    return planner


def planned_splice(planner: TailPlanner, request_id: str = "read", *, match: int = 16) -> Splice:
    """Plan a read's splice into the step."""
    planner.add(read_facts(request_id, middle=MIDDLE, match=match))
    assert planner.match(request_id, 4, WIDE)
    return admitted(planner, request_id)


# -- room --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "running", "room"),
    [
        pytest.param([], 0, Room(0, 8, 750, 8), id="nobody-waits"),
        pytest.param(["plain"], 0, Room(0, 8, 750, 8), id="who-waits-reads-nothing"),
        pytest.param(["read"], 0, Room(28, 8, 750, 8), id="one-read"),
        pytest.param(["plain", "read"], 3, Room(28, 5, 750, 8), id="beside-running-ones"),
        pytest.param(["read"], 6, Room(28, 2, 750, 8), id="just-enough-rows"),
        pytest.param(["read"], 7, Room(0, 1, 750, 8), id="a-row-short"),
    ],
)
def test_room_is_kept_for_what_waits(waiting: list[str], running: int, room: Room) -> None:
    """For as many tokens as waiting reads may want, and for no more rows than the engine has."""
    planner = planner_of()
    planner.add(read_facts("read", middle=MIDDLE, match=16))
    scheduler = make_scheduler(
        planner,
        waiting=[request_named(name) for name in waiting],
        running=[request_named(f"running-{number}") for number in range(running)],
    )

    scheduler.schedule()

    assert room == scheduler.room()
    assert [FULL_TOKENS - room.tokens] == [step.tokens for step in scheduler.steps]
    assert FULL_TOKENS == scheduler.max_num_scheduled_tokens


def test_ordinary_rows_keep_their_share() -> None:
    """However much rides along, a quarter of the step, or one token per running row and some, is theirs."""
    scheduler = make_scheduler(planner_of(), max_num_scheduled_tokens=100, running=[request_named("a")])

    scheduler.schedule()

    assert 100 - (1 + 64) == scheduler.room().tokens_max


def test_taken_room_is_taken_from_others_in_this_step() -> None:
    """The next read sees what is left; vLLM must not give the rows to other requests."""
    planner = planner_of()
    scheduler = make_scheduler(planner, waiting=[request_named("read")])
    planner.add(read_facts("read", middle=MIDDLE, match=16))
    scheduler.schedule()
    splice = planned_splice(planner)

    scheduler.take_room(splice)

    assert (8, 8, 3) == (splice.middle_tokens, splice.matched_tokens, len(splice.rows))
    assert Room(28 - 16, FULL_ROWS - 3, 750, FULL_ROWS) == scheduler.room()
    assert FULL_ROWS - 3 == scheduler.max_num_active_reqs

    scheduler.schedule()

    assert FULL_ROWS == scheduler.max_num_active_reqs
    assert FULL_ROWS == scheduler.room().rows


# -- rows --------------------------------------------------------------------------------------------------


def running_request(request_id: str, tokens: int, computed: int = 0) -> Any:
    """Return vLLM's own request of so many tokens."""
    request = import_object("vllm.v1.request:Request")(
        request_id=request_id,
        prompt_token_ids=list(range(tokens)),
        sampling_params=import_object("vllm.sampling_params:SamplingParams")(max_tokens=1),
        pooling_params=None,
    )
    request.num_computed_tokens = computed
    request.status = import_object("vllm.v1.request:RequestStatus").RUNNING
    return request


def test_each_row_is_a_partial_prefill_over_the_requests_blocks() -> None:
    """The middle's and each run's: never sampled, and finished with the next step."""
    planner = planner_of()
    splice = planned_splice(planner)
    scheduler = make_scheduler(planner, requests={"read": running_request("read", splice.total)})
    output = step_output({"read": 1}, Operations())

    scheduler._build_kv_connector_meta(None, output)
    scheduler._update_after_schedule(output)

    rows = sorted(output.scheduled_new_reqs, key=lambda new: new.num_computed_tokens)
    assert [(4, 12), (13, 17), (21, 25)] == list(splice.rows)
    assert [(4, 13), (13, 18), (21, 26)] == [
        (row.num_computed_tokens, len(row.prompt_token_ids)) for row in rows
    ]
    assert [8, 4, 4] == [output.num_scheduled_tokens[row.req_id] for row in rows]
    assert 1 + 16 == output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())
    assert [([1, 2, 3],)] * 3 == [row.block_ids for row in rows]
    assert {row.req_id for row in rows} == scheduler.finished_req_ids
    assert 3 == len({new.req_id for new in output.scheduled_new_reqs})


def test_step_that_captures_starts_before_its_forward() -> None:
    """The workers hook the cache update; without captures vLLM may start the step when it likes."""
    scheduler = make_scheduler(planner_of())
    capture = Capture(1, Span((1,), 0, 0, 4), final=True)
    outputs = [step_output({}, operations) for operations in (Operations(captures=(capture,)), Operations())]

    for output in outputs:
        scheduler._build_kv_connector_meta(None, output)

    assert [True, False] == [output.has_sync_kv_loads for output in outputs]


def test_blocks_are_registered_as_far_as_they_may_be_found() -> None:
    """Another request would take approximate ones for the prefix that they are not."""
    planner = planner_of(calibrated=True)
    planner.add(read_facts("read", middle=MIDDLE, correction=Correction.CALIBRATED))
    planner.open_space("read", 0)
    assert planner.match("read", 4, WIDE)
    taken = planner.next_sample(idle=True)
    assert taken is not None
    scheduler = make_scheduler(planner)
    cache_blocks = scheduler.kv_cache_manager.coordinator.cache_blocks

    for name, computed in (("read", 28), ("read", 8), ("plain", 28), (taken[0], 28)):
        cache_blocks(request_named(name), computed)
    planner.copied("read")
    cache_blocks(request_named("read"), 28)

    assert [("read", 12), ("read", 8), ("plain", 28), (taken[0], 0), ("read", 28)] == scheduler.registered


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
    assert None is planner.admit("read")
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
    assert new == scheduler._reserve_prefill_lookahead(request_named("plain"), computed, new)


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
    assert 0 == sum(record.references for record in planner.index.records())
    assert not output.has_sync_kv_loads

    scheduler.schedule()

    assert 26 == request.num_computed_tokens


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


# -- lookups -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reads", "lookups"),
    [pytest.param(True, 2, id="read"), pytest.param(False, 1, id="other")],
)
def test_exact_blocks_are_looked_up_first(reads: bool, lookups: int) -> None:
    """A request that may read nothing looks up nothing else."""
    planner = planner_of()
    planner.add(read_facts("read", middle=MIDDLE, epoch=0 if reads else 1))
    scheduler = make_scheduler(planner)

    found = scheduler._get_local_prefix_cache_hit(request_named("read"))

    assert (None, lookups, 0, False) == found
    assert [True] * (lookups - 1) == [opened == 1 for opened in scheduler.connector.scheduler_side.opened]


# -- calibration -------------------------------------------------------------------------------------------


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


# -- reports -----------------------------------------------------------------------------------------------


def answered(request_id: str, prompt: int, prefix: int, suffix: int) -> Any:
    """Return one request's first output, as vLLM counted it."""
    stats = SimpleNamespace(
        num_prompt_tokens=prompt, num_local_cached_tokens=prefix, num_external_cached_tokens=suffix
    )
    return SimpleNamespace(request_id=request_id, prefill_stats=stats, kv_transfer_params=None)


def test_requests_are_reported_and_samples_are_not() -> None:
    """The figures are those of the engine's users."""
    planner = planner_of(calibrated=True)
    scheduler = make_scheduler(planner)
    planner.add(read_facts("read", middle=MIDDLE, epoch=1))
    planner.match("read", 4, WIDE)
    scheduler.requests["read"] = request_named("read")
    answers = [
        answered("read", 28, 4, 14),
        answered(f"{SAMPLE_PREFIX}-1-0-0", 80, 0, 0),
        SimpleNamespace(request_id="later", prefill_stats=None, kv_transfer_params=None),
    ]

    end_step(scheduler, {0: SimpleNamespace(outputs=answers)}, {"read": 1})

    assert [(4, 14, 10)] == scheduler.connector.scheduler_side.counted
    assert [True, False, False] == [answer.kv_transfer_params is not None for answer in answers]
    report = answers[0].kv_transfer_params["sternpost"]
    assert (4, 14, 10, Reason.NOT_BUILT.value, "engine") == tuple(
        report[key] for key in ("prefix_tokens", "suffix_tokens", "computed_tokens", "reason", "engine")
    )
