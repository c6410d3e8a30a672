"""The planner: tails that stand at an anchor, whatever is in front of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sternpost_core.hint import Correction, Mode, Reason
from sternpost_engine.operations import Span
from sternpost_engine.planner import TailPlanner
from sternpost_engine.rules import Facts, Limits
from sternpost_engine.tracks import Room
from sternpost_fakes.middles import make_calibrator
from sternpost_fakes.tail_requests import (
    MIDDLE,
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

ANCHOR = 40
TAIL_START = len(SCAFFOLD) + len(MIDDLE)
BLOCKS = tuple(range(20))
LIMITS = Limits(tail_tokens_min=4, tail_tokens_max=32, positions_max=64)


def anchored_read(request_id: str, *, anchor: int = ANCHOR, **hint: Any) -> Facts:
    """Return a read of the tail at its anchor."""
    return read_facts(request_id, mode=Mode.ANCHOR, anchor=anchor, **hint)


def anchored_build(request_id: str, **hint: Any) -> Facts:
    """Return a build of the tail at its anchor."""
    return build_facts(request_id, mode=Mode.ANCHOR, anchor=ANCHOR, **hint)


def planner_with_tail() -> TailPlanner:
    """Return a planner that holds the anchored tail."""
    planner = make_planner(limits=LIMITS)
    build(planner, anchored_build("build"))
    return planner


def shifted(position: int, count: int, *, start: int = TAIL_START, anchor: int = ANCHOR) -> Span:
    """Return the run of a request's tail from `position` on, at the anchor."""
    return Span(BLOCKS, position, position - start, count, anchor - start)


def test_build_computes_its_tail_at_the_anchor() -> None:
    """The scaffold stays where it is; blocks with the tail in them are nobody else's."""
    planner = make_planner(limits=LIMITS)
    planner.add(anchored_build("build"))

    operations = planner.close_step([("build", 0, len(SCAFFOLD) + len(TAIL))], block_table)

    span = shifted(len(SCAFFOLD), len(TAIL), start=len(SCAFFOLD))
    assert (span,) == tuple(operations.shifts)
    assert [span] == [capture.span for capture in operations.captures]
    assert len(SCAFFOLD) == planner.register_max("build")


@pytest.mark.parametrize("head", [0, 3])
def test_read_has_its_tail_at_the_anchor(head: int) -> None:
    """What is copied and what is computed of it; not the middle."""
    splice, operations = admit(planner_with_tail(), anchored_read("read", head=head), hit=8)

    load = operations.loads[0].span
    assert (TAIL_START + head, head, 14 - head, ANCHOR - TAIL_START) == (
        load.position,
        load.offset,
        load.count,
        load.shift,
    )
    rows = [shifted(TAIL_START, head)] if head else []
    assert [shifted(32, 2), *rows] == list(operations.shifts)
    assert (8, TAIL_START + head) == splice.rows[0]


def test_answer_goes_on_behind_the_anchored_tail() -> None:
    """Each of its tokens, for as long as the request runs."""
    planner = planner_with_tail()
    admit(planner, anchored_read("read"))

    steps = [planner.close_step([("read", first, 1)], block_table).shifts for first in (34, 35)]

    assert [(shifted(34, 1),), (shifted(35, 1),)] == [tuple(shifts) for shifts in steps]


def test_tail_at_its_own_place_is_not_shifted() -> None:
    """The middle ends just there."""
    planner = make_planner(limits=LIMITS)
    build(planner, build_facts("build", mode=Mode.ANCHOR, anchor=TAIL_START))

    _, operations = admit(planner, anchored_read("read", anchor=TAIL_START))

    assert () == tuple(operations.shifts)


def test_request_without_an_anchor_is_not_shifted() -> None:
    """Nor does it read an anchored tail."""
    planner = planner_with_tail()
    planner.add(read_facts("read"))

    assert 0 == planner.match("read", 0, WIDE)
    assert Reason.NOT_BUILT is planner.reason("read")
    assert () == tuple(planner.close_step([("read", 0, 34)], block_table).shifts)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param(anchored_read("read", anchor=TAIL_START - 1), Reason.MIDDLE_OVER_ANCHOR, id="middle"),
        pytest.param(anchored_read("read", anchor=49), Reason.ANCHOR_UNSUPPORTED, id="over-the-end"),
        pytest.param(anchored_read("read", anchor=48), Reason.NOT_BUILT, id="at-the-end"),
        pytest.param(
            replace(anchored_read("read"), answer_tokens=9),
            Reason.ANCHOR_UNSUPPORTED,
            id="answer-over-the-end",
        ),
        pytest.param(replace(anchored_read("read"), answer_tokens=8), Reason.NOT_BUILT, id="answer-fits"),
        pytest.param(
            build_facts("read", mode=Mode.ANCHOR, anchor=7), Reason.MIDDLE_OVER_ANCHOR, id="scaffold"
        ),
    ],
)
def test_what_the_anchor_has_no_room_for_is_computed_exactly(facts: Facts, reason: Reason) -> None:
    """Without a shift, for its positions would otherwise run backwards or out of the model."""
    planner = make_planner(limits=LIMITS)
    planner.add(facts)

    assert 0 == planner.match("read", 0, WIDE)
    assert reason is planner.reason("read")
    assert () == tuple(planner.close_step([("read", 0, 34)], block_table).shifts)


def test_engine_that_cannot_shift_says_so() -> None:
    """A policy that asks for an anchor is served, and learns why nothing is reused."""
    planner = planner_with_tail()
    planner.refuse_anchors()
    planner.add(anchored_read("read"))

    assert Reason.ANCHOR_UNSUPPORTED is planner.reason("read")


@pytest.mark.parametrize("hit", [TAIL_START + 1, 28])
def test_exact_blocks_of_the_tail_stand_elsewhere(hit: int) -> None:
    """They are read, and the rest is computed exactly: the two cannot be mixed."""
    planner = planner_with_tail()
    planner.add(anchored_read("read"))
    space = planner.open_space("read", hit)

    assert None is space
    assert 0 == planner.match("read", hit, WIDE)
    assert Reason.PREFIX_COVERS is planner.reason("read")
    assert () == tuple(planner.close_step([("read", hit, 2)], block_table).shifts)


def test_head_of_an_anchored_tail_is_in_the_namespace() -> None:
    """It is computed, but at other positions than any other request would."""
    planner = planner_with_tail()
    planner.add(anchored_read("read", head=3))

    space = planner.open_space("read", 8)
    planner.match("read", 8, WIDE)

    assert space is not None and TAIL_START == space.first
    assert TAIL_START == planner.register_max("read")


def test_read_that_finds_its_blocks_is_shifted_all_the_same() -> None:
    """Its last tokens, and its answer."""
    planner = planner_with_tail()
    planner.add(anchored_read("read"))
    planner.open_space("read", 8)
    assert 0 == planner.match("read", 32, WIDE)
    planner.admit("read", 1)

    assert (shifted(32, 2),) == tuple(planner.close_step([("read", 32, 2)], block_table).shifts)


def test_long_middle_is_computed_up_to_the_anchored_tail() -> None:
    """Its head is not part of an ordinary chunk."""
    planner = planner_with_tail()
    planner.add(anchored_read("read", head=3))
    assert 0 == planner.match("read", 0, Room(17, 9, 17, 9))
    assert TAIL_START == planner.chunk_end("read")
    assert () == tuple(planner.close_step([("read", 0, TAIL_START)], block_table).shifts)

    admission = planner.resume("read", TAIL_START, WIDE)

    assert admission is not None and admission.splice is not None
    assert ((TAIL_START, TAIL_START + 3),) == admission.splice.rows


@pytest.mark.parametrize("hit", [0, TAIL_START])
def test_head_that_no_step_has_room_for_is_computed_exactly(hit: int) -> None:
    """It would ride along whole, and where chunks end at the tail nothing is left to schedule."""
    planner = planner_with_tail()
    planner.add(anchored_read("read", head=9))

    assert 0 == planner.match("read", hit, Room(8, 9, 8, 9))
    assert None is planner.chunk_end("read")
    assert Reason.MIDDLE_TOO_LONG is planner.reason("read")


def test_head_is_computed_behind_what_an_earlier_read_left_of_it() -> None:
    """Approximate blocks are read at their anchor, so it goes on there."""
    planner = planner_with_tail()
    planner.add(anchored_read("read", head=12))
    assert planner.open_space("read", TAIL_START) is not None

    assert 0 == planner.match("read", TAIL_START + 2, Room(8, 9, 8, 9))
    assert planner.admit("read", 0) is not None
    assert Reason.HIT is planner.reason("read")
    first = TAIL_START + 2
    assert (shifted(first, 3),) == tuple(planner.close_step([("read", first, 3)], block_table).shifts)


def test_anchored_tail_is_not_calibrated() -> None:
    """Its means would need middles that end at the anchor; it is read as it was built."""
    planner = make_planner(limits=LIMITS, calibrator=make_calibrator())
    build(planner, anchored_build("build", correction=Correction.CALIBRATED))

    assert None is planner.next_sample(idle=True)
