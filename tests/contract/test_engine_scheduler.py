"""The scheduler's adapter: room and rows for splices, samples that yield, and reports."""

from types import SimpleNamespace
from typing import Any

import pytest

from sternpost_core.hint import Correction, Reason
from sternpost_core.keys import owner_of
from sternpost_engine.operations import Capture, Operations, Span
from sternpost_engine.planner import SAMPLE_PREFIX
from sternpost_engine.self_test import Probe
from sternpost_engine.tracks import Room
from sternpost_fakes.tail_requests import WIDE, admit, admitted, build, build_facts, read_facts
from sternpost_fakes.vllm_scheduler import (
    FULL_ROWS,
    FULL_TOKENS,
    MIDDLE,
    end_step,
    make_scheduler,
    planned_splice,
    planner_of,
    request_named,
    running_request,
    step_output,
)

pytestmark = pytest.mark.engine

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


def test_read_whose_match_leaves_no_room_for_more_is_spliced() -> None:
    """It asks for what a step has, and does not wait for more, which would never come."""
    planner = planner_of()
    planner.add(read_facts("read", middle=MIDDLE, match=16))
    scheduler = make_scheduler(planner, waiting=[request_named("read")], max_num_scheduled_tokens=64 + 21)

    scheduler.schedule()

    assert Room(21, 8, 21, 8) == scheduler.room()
    assert planner.match("read", 0, scheduler.room())


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
    splice = admitted(planner, "read")
    taken = planner.next_sample(idle=True)
    assert taken is not None
    scheduler = make_scheduler(planner)
    cache_blocks = scheduler.kv_cache_manager.coordinator.cache_blocks

    for name, computed in (("read", 28), ("read", 8), ("plain", 28), (taken[0], 28)):
        cache_blocks(request_named(name), computed)
    planner.copied(splice)
    cache_blocks(request_named("read"), 28)

    assert [("read", 12), ("read", 8), ("plain", 28), (taken[0], 0), ("read", 28)] == scheduler.registered


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
        answered("sternpost-self-test-read", 80, 0, 64),
        SimpleNamespace(request_id="later", prefill_stats=None, kv_transfer_params=None),
    ]

    end_step(scheduler, {0: SimpleNamespace(outputs=answers)}, {"read": 1})

    assert [(4, 14, 10)] == scheduler.connector.scheduler_side.counted
    assert [True, False, False, False] == [answer.kv_transfer_params is not None for answer in answers]
    report = answers[0].kv_transfer_params["sternpost"]
    assert (4, 14, 10, Reason.NOT_BUILT.value, "engine") == tuple(
        report[key] for key in ("prefix_tokens", "suffix_tokens", "computed_tokens", "reason", "engine")
    )


def test_a_hits_report_names_whose_tail_was_read() -> None:
    """The gateway holds it to the salt that it sent; the salt itself is told to nobody."""
    planner = planner_of()
    build(planner, build_facts("build", salt="salt of acme"))
    admit(planner, read_facts("read", salt="salt of acme"))
    scheduler = make_scheduler(planner)
    scheduler.requests["read"] = request_named("read")
    answer = answered("read", 28, 4, 14)

    end_step(scheduler, {0: SimpleNamespace(outputs=[answer])}, {"read": 1})

    report = answer.kv_transfer_params["sternpost"]
    assert ("hit", owner_of("salt of acme")) == (report["reason"], report["owner"])
    assert "salt of acme" not in str(report)


def test_self_test_asks_as_a_request_of_vllm() -> None:
    """With its hint, greedy, one token; none of its blocks is registered in the prefix store."""
    scheduler = make_scheduler(planner_of())
    scheduler._side.probes = [Probe("sternpost-self-test-build", (1, 2, 3), {"sternpost": {"v": 1}})]

    end_step(scheduler)

    request = scheduler.requests["sternpost-self-test-build"]
    assert ([1, 2, 3], {"sternpost": {"v": 1}}, 1) == (
        request.prompt_token_ids,
        request.kv_transfer_params,
        request.max_tokens,
    )
    scheduler.kv_cache_manager.coordinator.cache_blocks(request, 3)
    assert [] == scheduler.registered
