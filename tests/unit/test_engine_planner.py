"""The planner: how requests build tails, and what all requests have in common."""

from collections.abc import Callable

import pytest

from sternpost_core.hint import Operation, Reason
from sternpost_engine.index import Eviction, Found
from sternpost_engine.operations import Begin, Capture, Operations, Span
from sternpost_engine.planner import TailPlanner
from sternpost_engine.rules import Facts
from sternpost_fakes.tail_requests import (
    MIDDLE,
    OTHER_TAIL,
    SCAFFOLD,
    TAIL,
    WIDE,
    admit,
    block_table,
    build,
    build_facts,
    complete,
    fail,
    make_planner,
    read_facts,
)

BUILD_TOKENS = len(SCAFFOLD) + len(TAIL)
TAIL_START = len(SCAFFOLD) + len(MIDDLE)
BLOCKS = tuple(range(20))


def capture(entry: int, position: int, count: int, *, final: bool = False) -> Capture:
    """Return the capture of a build's tokens from prompt position `position` on."""
    return Capture(entry, Span(BLOCKS, position, position - len(SCAFFOLD), count), final)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param([24], [capture(1, 8, 16, final=True)], id="one-step"),
        pytest.param([8, 16], [None, capture(1, 8, 16, final=True)], id="scaffold-then-tail"),
        pytest.param(
            [10, 10, 4],
            [capture(1, 8, 2), capture(1, 10, 10), capture(1, 20, 4, final=True)],
            id="cut-inside-the-tail",
        ),
        pytest.param(
            [5, 18, 1, 1],
            [None, capture(1, 8, 15), capture(1, 23, 1, final=True), None],
            id="last-token-alone-then-decode",
        ),
    ],
)
def test_build_captures_the_tail_in_the_chunks_of_its_prefill(
    chunks: list[int], expected: list[Capture | None]
) -> None:
    """The runs join exactly, begin where the tail begins, and the one that ends it says so."""
    planner, first, captures = make_planner(), 0, []
    planner.add(build_facts("build"))

    for count in chunks:
        operations = planner.close_step([("build", first, count)], block_table)
        captures.append(next(iter(operations.captures), None))
        first += count

    assert expected == captures


def test_build_begins_in_the_step_that_follows_its_arrival() -> None:
    """The worker makes room before the first capture, once."""
    planner = make_planner()

    assert planner.add(build_facts("build"))
    assert (Begin(1, TAIL),) == planner.close_step([], block_table).begins
    assert () == planner.close_step([("build", 0, 8)], block_table).begins


def test_completed_build_is_read() -> None:
    """Not before all workers have said so."""
    planner = make_planner()
    planner.add(build_facts("build"))
    planner.add(read_facts("read"))
    assert 0 == planner.pending_middle("read", 99)

    complete(planner, 1)

    assert Reason.BUILT is planner.reason("build")
    assert TAIL_START == planner.pending_middle("read", 99)


def test_preempted_build_starts_over() -> None:
    """Its captures begin at the tail's beginning again, for the same entry."""
    planner = make_planner()
    planner.add(build_facts("build"))
    planner.close_step([("build", 0, 12)], block_table)

    again = planner.close_step([("build", 0, BUILD_TOKENS)], block_table)

    assert (capture(1, 8, 16, final=True),) == again.captures
    assert () == again.begins


def test_build_preempted_after_its_last_capture_is_not_written_again() -> None:
    """Under async scheduling the tail may become live before the build has computed it a second time."""
    planner = make_planner()
    planner.add(build_facts("build"))
    planner.close_step([("build", 0, BUILD_TOKENS)], block_table)

    again = planner.close_step([("build", 0, 12)], block_table)
    complete(planner, 1)

    assert Operations() == again
    assert Reason.BUILT is planner.reason("build")


def test_aborted_build_is_retired() -> None:
    """The tail can be built by another request, as another entry."""
    planner = make_planner()
    planner.add(build_facts("first"))
    planner.close_step([("first", 0, 12)], block_table)

    planner.finish("first")

    assert {Eviction.ABORTED: 1} == planner.index.evictions
    assert (1,) == planner.close_step([], block_table).drops
    assert planner.add(build_facts("second"))
    complete(planner, 1)
    assert Found.BUILDING is planner.index.look_up(next(planner.index.records()).key).found


def test_build_given_up_before_its_first_step_is_never_begun() -> None:
    """The worker drops before it begins: room made for a dropped entry would never be given back."""
    planner = make_planner()
    planner.add(build_facts("build"))

    planner.finish("build")

    assert Operations(drops=(1,)) == planner.close_step([], block_table)


def test_failed_build_is_retired_and_says_so() -> None:
    """A worker that does not trust what it built keeps it from everybody."""
    planner = make_planner()
    planner.add(build_facts("build"))

    fail(planner, 1)

    assert Reason.UNSUPPORTED is planner.reason("build")
    assert {Eviction.FAILED: 1} == planner.index.evictions
    assert () == planner.close_step([("build", 0, BUILD_TOKENS)], block_table).captures


@pytest.mark.parametrize(
    ("built", "reason"),
    [pytest.param(True, Reason.HIT, id="live"), pytest.param(False, Reason.BUILDING, id="building")],
)
def test_second_build_of_a_tail_computes_and_keeps_nothing(built: bool, reason: Reason) -> None:
    """One build per tail; the other request is served like any other."""
    planner = make_planner()
    planner.add(build_facts("first"))
    if built:
        complete(planner, 1)
    planner.close_step([], block_table)

    assert not planner.add(build_facts("second"))
    assert reason is planner.reason("second")
    assert Operations() == planner.close_step([("second", 0, BUILD_TOKENS)], block_table)

    planner.finish("second")

    assert {} == planner.index.evictions


def test_build_without_room_is_served_exactly() -> None:
    """It waits for nobody, and begins nothing."""
    planner = make_planner(budget_tokens=15)

    assert not planner.add(build_facts("build"))
    assert Reason.POOL_FULL is planner.reason("build")
    assert Operations() == planner.close_step([("build", 0, BUILD_TOKENS)], block_table)


def test_false_hit_falls_back_and_is_counted() -> None:
    """An equal hash over other tokens is never read, and does not keep the tail from being built."""
    planner = make_planner(hash_function=lambda identity, tokens: 7)
    build(planner, build_facts("build"))
    planner.add(read_facts("read", OTHER_TAIL))

    assert 0 == planner.match("read", 0, WIDE)
    assert Reason.FALSE_HIT is planner.reason("read")
    assert {Found.FALSE_HIT: 1} == planner.lookups

    other = build(planner, build_facts("other", OTHER_TAIL))

    assert 1 == admit(planner, read_facts("first"))[0].entry
    assert other == admit(planner, read_facts("second", OTHER_TAIL))[0].entry


@pytest.mark.parametrize("facts", [build_facts("request"), read_facts("request")], ids=["build", "read"])
def test_unsupported_engine_serves_exactly(facts: Facts) -> None:
    """Hinted requests learn why; nothing is built or read."""
    planner = make_planner(supported=False)

    assert not planner.add(facts)
    assert 0 == planner.match("request", 0, WIDE)
    assert Reason.UNSUPPORTED is planner.reason("request")
    assert Operations() == planner.close_step([("request", 0, len(facts.prompt))], block_table)


def test_killed_request_neither_builds_nor_reads() -> None:
    """The kill level travels with each request."""
    planner = make_planner()
    build(planner, build_facts("build"))

    assert not planner.add(build_facts("no-build", OTHER_TAIL, op=Operation.OFF))
    assert not planner.add(read_facts("no-read", op=Operation.OFF))

    assert 0 == planner.match("no-read", 0, WIDE)
    assert [Reason.OFF, Reason.OFF] == [planner.reason("no-build"), planner.reason("no-read")]
    assert Operations() == planner.close_step([("no-build", 0, BUILD_TOKENS)], block_table)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        pytest.param(lambda planner: None, Reason.BUILDING, id="unfinished"),
        pytest.param(lambda planner: complete(planner, 1), Reason.BUILT, id="built"),
        pytest.param(lambda planner: fail(planner, 1), Reason.UNSUPPORTED, id="failed"),
        pytest.param(lambda planner: planner.reset(), Reason.NOT_BUILT, id="reset"),
    ],
)
def test_finished_request_is_counted_by_its_reason(
    act: Callable[[TailPlanner], None], reason: Reason
) -> None:
    """Once, and it is unknown from then on."""
    planner = make_planner()
    planner.add(build_facts("build"))
    act(planner)

    planner.finish("build")
    planner.finish("build")

    assert {reason: 1} == planner.requests
    assert Reason.NOT_ASKED is planner.reason("build")


def test_reset_ends_builds_and_hides_tails() -> None:
    """What was computed with the old weights is neither kept nor read."""
    planner = make_planner()
    build(planner, build_facts("build"))
    planner.add(build_facts("running", OTHER_TAIL))
    planner.close_step([("running", 0, 12)], block_table)

    planner.reset()
    operations = planner.close_step([("running", 12, 12)], block_table)
    complete(planner, 2)
    planner.add(read_facts("read"))

    assert Operations(drops=(1, 2)) == operations
    assert Reason.NOT_BUILT is planner.reason("running")
    assert 0 == planner.match("read", 0, WIDE)
    assert 0 == planner.index.used_bytes


def test_request_that_the_planner_never_saw_is_left_alone() -> None:
    """vLLM may ask about any request, and workers may answer late."""
    planner = make_planner()

    planner.finish("unknown")
    planner.copy_failed("unknown")

    assert 0 == planner.match("unknown", 0, WIDE)
    assert 0 == planner.pending_middle("unknown", 99)
    assert None is planner.register_max("unknown")
    assert Operations() == planner.close_step([("unknown", 0, 4)], block_table)
