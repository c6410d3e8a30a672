"""The planner: how requests build tails, read them, or go on exactly."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sternpost_core.hint import Operation, Reason
from sternpost_engine.index import Eviction, Found
from sternpost_engine.operations import Begin, Capture, Load, Operations, Span, Splice
from sternpost_engine.planner import Room, TailPlanner
from sternpost_engine.rules import Facts, Limits
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
    make_planner,
    read_facts,
)

BUILD_TOKENS = len(SCAFFOLD) + len(TAIL)
TAIL_START = len(SCAFFOLD) + len(MIDDLE)
BLOCKS = tuple(range(20))


def references(planner: TailPlanner) -> int:
    """All references that the index holds."""
    return sum(record.references for record in planner.index.records())


def capture(entry: int, position: int, count: int, *, final: bool = False) -> Capture:
    """Return the capture of a build's tokens from prompt position `position` on."""
    return Capture(entry, Span(BLOCKS, position, position - len(SCAFFOLD), count), final)


# -- builds -------------------------------------------------------------------------------------------------


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
    assert 0 == planner.pending_middle("read")

    planner.completed(1)

    assert Reason.BUILT is planner.reason("build")
    assert TAIL_START == planner.pending_middle("read")


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
    planner.completed(1)

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
    planner.completed(1)
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

    planner.failed(1)

    assert Reason.UNSUPPORTED is planner.reason("build")
    assert {Eviction.FAILED: 1} == planner.index.evictions
    assert () == planner.close_step([("build", 0, BUILD_TOKENS)], block_table).captures


@pytest.mark.parametrize(
    ("complete", "reason"),
    [pytest.param(True, Reason.HIT, id="live"), pytest.param(False, Reason.BUILDING, id="building")],
)
def test_second_build_of_a_tail_computes_and_keeps_nothing(complete: bool, reason: Reason) -> None:
    """One build per tail; the other request is served like any other."""
    planner = make_planner()
    planner.add(build_facts("first"))
    if complete:
        planner.completed(1)
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


# -- reads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hit", "head", "last", "splice"),
    [
        pytest.param(0, 0, 2, Splice("read", 1, 0, 18, 32, 34), id="cold"),
        pytest.param(8, 0, 2, Splice("read", 1, 8, 18, 32, 34), id="after-a-prefix-hit"),
        pytest.param(8, 3, 2, Splice("read", 1, 8, 21, 32, 34), id="with-a-head"),
        pytest.param(8, 0, 0, Splice("read", 1, 8, 18, 33, 34), id="last-token-is-always-computed"),
        pytest.param(16, 5, 10, Splice("read", 1, 16, 23, 24, 34), id="one-token-copied"),
    ],
)
def test_admitted_read_is_spliced(hit: int, head: int, last: int, splice: Splice) -> None:
    """
    What is computed is the middle, the head and the last tokens, and nothing else.

    A hit that computes everything is the classic silent failure.
    """
    planner = make_planner()
    build(planner, build_facts("build"))
    planner.add(read_facts("read", head=head, last=last))

    assert splice.copied - hit == planner.match("read", hit, WIDE, resumed=False)
    assert splice.exact == planner.exact_tokens("read")
    assert splice == planner.admit("read", hit)
    assert (splice,) == planner.take_splices()
    assert Reason.HIT is planner.reason("read")

    middle = TAIL_START - hit
    computed = splice.middle_tokens + (splice.total - splice.copied)
    assert middle + head + max(last, 1) == computed
    assert splice.total == hit + computed + splice.suffix_tokens


def test_load_covers_what_is_copied() -> None:
    """From the end of the head on, to the blocks of that request."""
    planner = make_planner()
    build(planner, build_facts("build"))

    _, operations = admit(planner, read_facts("read", head=3), hit=8)

    assert (Load("read", 1, Span(BLOCKS, position=21, offset=3, count=11)),) == operations.loads


def test_splice_belongs_to_one_step() -> None:
    """It is planned, closed and forgotten."""
    planner = make_planner()
    build(planner, build_facts("build"))
    admit(planner, read_facts("read"))

    assert () == planner.take_splices()
    assert Operations() == planner.close_step([("read", 32, 2)], block_table)
    assert 0 == planner.pending_middle("read")


def test_reference_lasts_until_the_steps_output_is_processed() -> None:
    """A tail that is retired under its reader goes only then."""
    planner = make_planner()
    entry = build(planner, build_facts("build"))
    splice, _ = admit(planner, read_facts("read"))
    planner.reset()
    planner.finish("read")
    assert () == planner.close_step([], block_table).drops

    planner.step_done([splice])

    assert (entry,) == planner.close_step([], block_table).drops
    assert 0 == references(planner)


@pytest.mark.parametrize(
    ("facts", "hit", "room", "reason"),
    [
        pytest.param(read_facts("read", OTHER_TAIL), 0, WIDE, Reason.NOT_BUILT, id="other-tail"),
        pytest.param(read_facts("read", last=16), 0, WIDE, Reason.TAIL_TOO_SHORT, id="rules"),
        pytest.param(read_facts("read"), 18, WIDE, Reason.PREFIX_COVERS, id="prefix-store-has-the-middle"),
        pytest.param(read_facts("read"), 28, WIDE, Reason.PREFIX_COVERS, id="prefix-store-has-the-tail"),
        pytest.param(read_facts("read", middle=()), 8, WIDE, Reason.PREFIX_COVERS, id="no-middle"),
        pytest.param(read_facts("read"), 4, Room(13, 9, 13, 9), Reason.MIDDLE_TOO_LONG, id="never-room"),
        pytest.param(read_facts("read"), 0, Room(99, 0, 99, 0), Reason.BUSY, id="never-two-rows"),
        pytest.param(replace(read_facts("read"), transfer=None), 0, WIDE, Reason.NOT_ASKED, id="no-hint"),
    ],
)
def test_read_goes_on_exactly(facts: Facts, hit: int, room: Room, reason: Reason) -> None:
    """With the reason, with all its tokens exact, and for good."""
    planner = make_planner()
    build(planner, build_facts("build"))
    planner.add(facts)

    assert 0 == planner.match("read", hit, room, resumed=False)
    assert reason is planner.reason("read")
    assert None is planner.exact_tokens("read")
    assert 0 == planner.pending_middle("read")
    assert 0 == planner.match("read", 0, WIDE, resumed=False)
    assert 0 == references(planner)


@pytest.mark.parametrize(
    "room",
    [pytest.param(Room(17, 9, 99, 9), id="tokens"), pytest.param(Room(99, 0, 99, 9), id="rows")],
)
def test_read_waits_for_room_so_many_steps_and_no_more(room: Room) -> None:
    """Then it is computed like any other request."""
    planner = make_planner(limits=Limits(tail_tokens_min=4, tail_tokens_max=32, deferrals_max=3))
    build(planner, build_facts("build"))
    planner.add(read_facts("read"))

    answers = [planner.match("read", 0, room, resumed=False) for _ in range(4)]

    assert [None, None, None, 0] == answers
    assert Reason.BUSY is planner.reason("read")


def test_read_that_waited_is_spliced_when_there_is_room() -> None:
    """Room for the middle alone is enough: the prefix hit need not ride along."""
    planner = make_planner()
    build(planner, build_facts("build"))
    planner.add(read_facts("read"))

    assert None is planner.match("read", 8, Room(9, 1, 99, 9), resumed=False)
    assert 24 == planner.match("read", 8, Room(10, 1, 99, 9), resumed=False)


def test_follower_of_a_build_goes_on_exactly() -> None:
    """It does not wait for the build, and stays exact when the build has ended."""
    planner = make_planner()
    planner.add(build_facts("build"))
    planner.add(read_facts("follower"))

    assert 0 == planner.match("follower", 0, WIDE, resumed=False)
    planner.completed(1)

    assert Reason.BUILDING is planner.reason("follower")
    assert 0 == planner.match("follower", 0, WIDE, resumed=False)


def test_unadmitted_match_takes_no_reference() -> None:
    """vLLM may find no blocks after it asked; the tail may even be evicted until it asks again."""
    planner = make_planner(budget_tokens=16)
    build(planner, build_facts("build"))
    planner.add(read_facts("read"))
    planner.match("read", 0, WIDE, resumed=False)
    assert 0 == references(planner)

    build(planner, build_facts("evicting", OTHER_TAIL))

    assert 0 == planner.match("read", 0, WIDE, resumed=False)
    assert Reason.NOT_BUILT is planner.reason("read")
    assert None is planner.exact_tokens("read")


def test_preempted_read_is_computed_exactly() -> None:
    """Its blocks are gone; all of its tokens are exact from now on, and may be cached."""
    planner = make_planner()
    build(planner, build_facts("build"))
    splice, _ = admit(planner, read_facts("read"))
    planner.step_done([splice])

    assert 0 == planner.match("read", 0, WIDE, resumed=True)
    assert Reason.PREEMPTED is planner.reason("read")
    assert None is planner.exact_tokens("read")


def test_failed_copy_makes_all_tokens_exact() -> None:
    """vLLM computes them anew, so their blocks may be cached."""
    planner = make_planner()
    build(planner, build_facts("build"))
    splice, _ = admit(planner, read_facts("read"))

    planner.copy_failed("read")
    planner.step_done([splice])

    assert Reason.COPY_FAILED is planner.reason("read")
    assert None is planner.exact_tokens("read")
    assert 0 == references(planner)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(read_facts("read", salt="other"), id="tenant"),
        pytest.param(read_facts("read", lora="adapter"), id="adapter"),
        pytest.param(read_facts("read", epoch=1), id="epoch"),
        pytest.param(read_facts("read", scaffold="other"), id="scaffold"),
        pytest.param(read_facts("read", kind="code"), id="kind"),
        pytest.param(read_facts("read", (*TAIL[:-1], 0)), id="one-token"),
        pytest.param(read_facts("read", TAIL[1:], tail_tokens=15), id="one-token-less"),
    ],
)
def test_tail_of_another_is_not_read(facts: Facts) -> None:
    """What belongs to another tenant, adapter, epoch, scaffold or kind is as if it were not there."""
    planner = make_planner()
    build(planner, build_facts("build"))
    planner.add(facts)

    assert 0 == planner.match("read", 0, WIDE, resumed=False)
    assert Reason.NOT_BUILT is planner.reason("read")


def test_tail_follows_any_middle() -> None:
    """The same tail is read after a short middle and after a long one."""
    planner = make_planner()
    build(planner, build_facts("build"))

    short, _ = admit(planner, read_facts("short", middle=range(1)))
    long, _ = admit(planner, read_facts("long", middle=range(40)))

    assert short.entry == long.entry
    assert (9, 48) == (short.exact, long.exact)


# -- collisions, switches, counts ---------------------------------------------------------------------------


def test_false_hit_falls_back_and_is_counted() -> None:
    """An equal hash over other tokens is never read, and does not keep the tail from being built."""
    planner = make_planner(hash_function=lambda identity, tokens: 7)
    build(planner, build_facts("build"))
    planner.add(read_facts("read", OTHER_TAIL))

    assert 0 == planner.match("read", 0, WIDE, resumed=False)
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
    assert 0 == planner.match("request", 0, WIDE, resumed=False)
    assert Reason.UNSUPPORTED is planner.reason("request")
    assert Operations() == planner.close_step([("request", 0, len(facts.prompt))], block_table)


def test_killed_request_neither_builds_nor_reads() -> None:
    """The kill level travels with each request."""
    planner = make_planner()
    build(planner, build_facts("build"))

    assert not planner.add(build_facts("no-build", OTHER_TAIL, op=Operation.OFF))
    assert not planner.add(read_facts("no-read", op=Operation.OFF))

    assert 0 == planner.match("no-read", 0, WIDE, resumed=False)
    assert [Reason.OFF, Reason.OFF] == [planner.reason("no-build"), planner.reason("no-read")]
    assert Operations() == planner.close_step([("no-build", 0, BUILD_TOKENS)], block_table)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        pytest.param(lambda planner: None, Reason.BUILDING, id="unfinished"),
        pytest.param(lambda planner: planner.completed(1), Reason.BUILT, id="built"),
        pytest.param(lambda planner: planner.failed(1), Reason.UNSUPPORTED, id="failed"),
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
    planner.completed(2)
    planner.add(read_facts("read"))

    assert Operations(drops=(1, 2)) == operations
    assert Reason.NOT_BUILT is planner.reason("running")
    assert 0 == planner.match("read", 0, WIDE, resumed=False)
    assert 0 == planner.index.used_bytes


def test_request_that_the_planner_never_saw_is_left_alone() -> None:
    """vLLM may ask about any request, and workers may answer late."""
    planner = make_planner()

    planner.finish("unknown")
    planner.copy_failed("unknown")

    assert 0 == planner.match("unknown", 0, WIDE, resumed=False)
    assert 0 == planner.pending_middle("unknown")
    assert None is planner.exact_tokens("unknown")
    assert Operations() == planner.close_step([("unknown", 0, 4)], block_table)
