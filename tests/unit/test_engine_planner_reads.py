"""The planner: how requests read tails, or go on exactly."""

from dataclasses import replace

import pytest

from sternpost_core.hint import Correction, Reason
from sternpost_engine.operations import Load, Operations, Span, Splice
from sternpost_engine.planner import TailPlanner
from sternpost_engine.rules import Facts, Limits
from sternpost_engine.tracks import Room
from sternpost_fakes.tail_requests import (
    MIDDLE,
    OTHER_TAIL,
    SCAFFOLD,
    TAIL,
    WIDE,
    admit,
    admitted,
    block_table,
    build,
    build_facts,
    complete,
    make_planner,
    read_facts,
)

TAIL_START = len(SCAFFOLD) + len(MIDDLE)
BLOCKS = tuple(range(20))


def references(planner: TailPlanner) -> int:
    """All references that the index holds."""
    return sum(record.references for record in planner.index.records())


@pytest.mark.parametrize(
    ("hit", "head", "last", "splice"),
    [
        pytest.param(0, 0, 2, Splice("read", 1, 0, 18, 32, 34, 18), id="cold"),
        pytest.param(8, 0, 2, Splice("read", 1, 8, 18, 32, 34, 18), id="after-a-prefix-hit"),
        pytest.param(8, 3, 2, Splice("read", 1, 8, 21, 32, 34, 18), id="with-a-head"),
        pytest.param(8, 0, 0, Splice("read", 1, 8, 18, 33, 34, 18), id="last-token-is-always-computed"),
        pytest.param(16, 5, 10, Splice("read", 1, 16, 23, 24, 34, 18), id="one-token-copied"),
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

    assert splice.copied - hit == planner.match("read", hit, WIDE)
    assert splice.exact == planner.register_max("read")
    assert splice == admitted(planner, "read")
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
        pytest.param(read_facts("read"), 29, WIDE, Reason.PREFIX_COVERS, id="the-rest-is-too-short"),
        pytest.param(read_facts("read"), 32, WIDE, Reason.PREFIX_COVERS, id="prefix-store-has-the-prompt"),
        pytest.param(read_facts("read"), 0, Room(99, 1, 99, 1), Reason.BUSY, id="never-two-rows"),
        pytest.param(replace(read_facts("read"), transfer=None), 0, WIDE, Reason.NOT_ASKED, id="no-hint"),
    ],
)
def test_read_goes_on_exactly(facts: Facts, hit: int, room: Room, reason: Reason) -> None:
    """With the reason, with all its tokens exact, and for good."""
    planner = make_planner()
    build(planner, build_facts("build"))
    planner.add(facts)

    assert 0 == planner.match("read", hit, room)
    assert reason is planner.reason("read")
    assert None is planner.register_max("read")
    assert 0 == planner.pending_middle("read", 99)
    assert 0 == planner.match("read", 0, WIDE)
    assert 0 == references(planner)


@pytest.mark.parametrize(
    "room",
    [pytest.param(Room(17, 9, 99, 9), id="tokens"), pytest.param(Room(99, 1, 99, 9), id="rows")],
)
def test_read_waits_for_room_so_many_steps_and_no_more(room: Room) -> None:
    """Then it is computed like any other request."""
    planner = make_planner(limits=Limits(tail_tokens_min=4, tail_tokens_max=32, deferrals_max=3))
    build(planner, build_facts("build"))
    planner.add(read_facts("read"))

    answers = [planner.match("read", 0, room) for _ in range(4)]

    assert [None, None, None, 0] == answers
    assert Reason.BUSY is planner.reason("read")


def test_read_that_waited_is_spliced_when_there_is_room() -> None:
    """Room for the middle alone is enough: the prefix hit need not ride along."""
    planner = make_planner()
    build(planner, build_facts("build"))
    planner.add(read_facts("read"))

    assert None is planner.match("read", 8, Room(9, 2, 99, 9))
    assert 24 == planner.match("read", 8, Room(10, 2, 10, 2))


def test_follower_of_a_build_goes_on_exactly() -> None:
    """It does not wait for the build, and stays exact when the build has ended."""
    planner = make_planner()
    planner.add(build_facts("build"))
    planner.add(read_facts("follower"))

    assert 0 == planner.match("follower", 0, WIDE)
    complete(planner, 1)

    assert Reason.BUILDING is planner.reason("follower")
    assert 0 == planner.match("follower", 0, WIDE)


def test_unadmitted_match_takes_no_reference() -> None:
    """vLLM may find no blocks after it asked; the tail may even be evicted until it asks again."""
    planner = make_planner(budget_tokens=16)
    build(planner, build_facts("build"))
    planner.add(read_facts("read"))
    planner.match("read", 0, WIDE)
    assert 0 == references(planner)

    build(planner, build_facts("evicting", OTHER_TAIL))

    assert 0 == planner.match("read", 0, WIDE)
    assert Reason.NOT_BUILT is planner.reason("read")
    assert None is planner.register_max("read")


def test_preempted_read_is_spliced_again() -> None:
    """Its blocks are gone, and with them what it had; the tail is still there."""
    planner = make_planner()
    build(planner, build_facts("build"))
    first, _ = admit(planner, read_facts("read"), hit=8)
    planner.copied(first)
    planner.step_done([first])

    assert 32 == planner.match("read", 0, WIDE)
    assert replace(first, hit=0) == admitted(planner, "read")
    assert Reason.HIT is planner.reason("read")


@pytest.mark.parametrize(
    ("hit", "head", "splice"),
    [
        pytest.param(18, 0, Splice("read", 1, 18, 18, 32, 34, 18), id="just-the-middle"),
        pytest.param(18, 2, Splice("read", 1, 18, 20, 32, 34, 18), id="head-left"),
        pytest.param(28, 0, Splice("read", 1, 28, 28, 32, 34, 18), id="part-of-the-tail"),
    ],
)
def test_what_the_prefix_store_has_of_the_tail_is_not_copied(hit: int, head: int, splice: Splice) -> None:
    """Exact blocks are better than stored ones; no row is needed for a middle that is there."""
    planner = make_planner()
    build(planner, build_facts("build"))

    found, operations = admit(planner, read_facts("read", head=head), hit=hit)

    assert splice == found
    assert max(18 + head - hit, 0) == splice.middle_tokens
    assert (() if hit >= 18 + head else ((hit, 18 + head),)) == splice.rows
    assert [(splice.exact, splice.exact - 18, 32 - splice.exact)] == [
        (load.span.position, load.span.offset, load.span.count) for load in operations.loads
    ]


def test_failed_copy_makes_all_tokens_exact() -> None:
    """vLLM computes them anew, so their blocks may be cached."""
    planner = make_planner()
    build(planner, build_facts("build"))
    splice, _ = admit(planner, read_facts("read"))

    planner.copy_failed("read")
    planner.step_done([splice])

    assert Reason.COPY_FAILED is planner.reason("read")
    assert None is planner.register_max("read")
    assert 0 == references(planner)


def test_read_whose_tokens_vllm_would_not_have_is_exact() -> None:
    """A request may be told not to read the prefix store: then nothing is copied to it, either."""
    planner = make_planner()
    build(planner, build_facts("build"))
    planner.add(read_facts("read"))
    assert planner.match("read", 0, WIDE)

    assert None is planner.admit("read", 0)

    assert () == planner.take_splices()
    assert Reason.OFF is planner.reason("read")
    assert None is planner.register_max("read")
    assert 0 == references(planner)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(read_facts("read", salt="other"), id="tenant"),
        pytest.param(read_facts("read", lora="adapter"), id="adapter"),
        pytest.param(read_facts("read", epoch=1), id="epoch"),
        pytest.param(read_facts("read", scaffold="other"), id="scaffold"),
        pytest.param(read_facts("read", kind="code"), id="kind"),
        pytest.param(read_facts("read", correction=Correction.CALIBRATED), id="correction"),
        pytest.param(read_facts("read", (*TAIL[:-1], 0)), id="one-token"),
        pytest.param(read_facts("read", TAIL[1:], tail_tokens=15), id="one-token-less"),
    ],
)
def test_tail_of_another_is_not_read(facts: Facts) -> None:
    """What belongs to another owner, or was computed in another way, is as if it were not there."""
    planner = make_planner()
    build(planner, build_facts("build"))
    planner.add(facts)

    assert 0 == planner.match("read", 0, WIDE)
    assert Reason.NOT_BUILT is planner.reason("read")


def test_tail_follows_any_middle() -> None:
    """The same tail is read after a short middle and after a long one."""
    planner = make_planner()
    build(planner, build_facts("build"))

    short, _ = admit(planner, read_facts("short", middle=range(1)))
    long, _ = admit(planner, read_facts("long", middle=range(40)))

    assert short.entry == long.entry
    assert (9, 48) == (short.exact, long.exact)


@pytest.mark.parametrize(
    ("long_middles", "reason"),
    [
        pytest.param(True, Reason.NOT_BUILT, id="computed-in-chunks-first"),
        pytest.param(False, Reason.MIDDLE_TOO_LONG, id="computed-exactly"),
    ],
)
def test_middle_that_no_step_has_room_for(long_middles: bool, reason: Reason) -> None:
    """Where the engine's runner takes no jump of a running request, the read goes on exactly."""
    limits = Limits(tail_tokens_min=4, tail_tokens_max=32, long_middles=long_middles)
    planner = make_planner(limits=limits)
    build(planner, build_facts("build"))
    planner.add(read_facts("read"))

    assert 0 == planner.match("read", 0, Room(tokens=10, rows=8, tokens_max=10, rows_max=8))
    assert reason is planner.reason("read")
    assert long_middles is (planner.chunk_end("read") is not None)
