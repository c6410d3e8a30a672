"""The planner: reads that compute afresh what their middle points at, each run as a row of its own."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.hint import Reason
from sternpost_engine.matching import Run
from sternpost_engine.operations import Load, Span
from sternpost_engine.planner import TailPlanner
from sternpost_engine.reads import OWN_ROWS
from sternpost_engine.rules import Limits
from sternpost_engine.tracks import Room
from sternpost_fakes.middles import make_marker
from sternpost_fakes.tail_requests import (
    OTHER_TAIL,
    SCAFFOLD,
    TAIL,
    WIDE,
    admit,
    admitted,
    block_table,
    build,
    build_facts,
    make_planner,
    read_facts,
)

NEAR, FAR = TAIL[1], TAIL[9]
"""Two tokens of the tail whose runs of four are apart."""

BOTH = (900, FAR, NEAR, 901)
"""A middle that points at both."""

BLOCKS = tuple(range(20))


def planner_with_tail(tail: Sequence[int] = TAIL, *, deferrals_max: int = 3) -> TailPlanner:
    """Return a planner that matches, and holds the tail."""
    limits = Limits(tail_tokens_min=4, tail_tokens_max=32, deferrals_max=deferrals_max)
    planner = make_planner(limits=limits, marker=make_marker())
    build(planner, build_facts("build", tail))
    return planner


@pytest.mark.parametrize(
    ("middle", "hint", "expected"),
    [
        pytest.param((900, 901), {"match": 16}, [], id="nothing-in-common"),
        pytest.param(BOTH, {"match": 0}, [], id="not-asked"),
        pytest.param((NEAR,), {"match": 16}, [Run(1, 4)], id="one-word"),
        pytest.param(BOTH, {"match": 16}, [Run(1, 4), Run(9, 4)], id="two-words"),
        pytest.param(BOTH, {"match": 7}, [Run(1, 4)], id="capped"),
        pytest.param(BOTH, {"match": 3}, [], id="capped-under-a-run"),
        pytest.param(BOTH, {"match": 16, "head": 3}, [Run(3, 2), Run(9, 4)], id="behind-the-head"),
        pytest.param(BOTH, {"match": 16, "head": 5}, [Run(9, 4)], id="in-the-head"),
        pytest.param(BOTH, {"match": 16, "last": 5}, [Run(1, 4), Run(9, 2)], id="before-the-last"),
        pytest.param(BOTH, {"match": 16, "last": 0}, [Run(1, 4), Run(9, 4)], id="last-token"),
        pytest.param((TAIL[13],), {"match": 16, "last": 0}, [Run(13, 2)], id="up-to-the-last-token"),
        pytest.param(TAIL[:6], {"match": 16}, [Run(0, 9)], id="joined"),
    ],
)
def test_runs_of_a_read(middle: Sequence[int], hint: dict[str, Any], expected: list[Run]) -> None:
    """
    What is computed is the middle, the head, the matched and the last tokens, and nothing else.

    A hit that computes everything is the classic silent failure.
    """
    splice, operations = admit(planner_with_tail(), read_facts("read", middle=middle, **hint), hit=4)

    tail = len(SCAFFOLD) + len(middle)
    head, last = hint.get("head", 0), max(hint.get("last", 2), 1)
    matched = sum(run.count for run in expected)
    assert expected == list(splice.runs)
    assert ((4, tail + head), *((tail + run.offset, tail + run.end) for run in expected)) == splice.rows
    assert matched == splice.matched_tokens
    assert (tail - 4) + head == splice.middle_tokens
    computed = splice.middle_tokens + splice.matched_tokens + splice.total - splice.copied
    assert (tail - 4) + head + matched + last == computed
    assert len(TAIL) - head - matched - last == splice.suffix_tokens
    span = Span(BLOCKS, tail + head, head, len(TAIL) - head - last)
    assert (Load("read", 1, span),) == operations.loads


def test_copy_covers_the_runs_too() -> None:
    """One copy writes all tokens up to the last ones; the runs' rows write over it in the forward."""
    splice, operations = admit(planner_with_tail(), read_facts("read", middle=BOTH, match=16))

    span = operations.loads[0].span
    assert (splice.exact, splice.copied) == (span.position, span.position + span.count)


def test_words_of_the_prefix_point_at_nothing() -> None:
    """It is the same for every request; what differs is the middle."""
    tail = (*TAIL[:8], SCAFFOLD[3], *TAIL[9:])

    splice, _ = admit(planner_with_tail(tail), read_facts("read", tail, match=16))

    assert () == splice.runs


def test_without_a_marker_nothing_is_matched() -> None:
    """An engine without a tokenizer serves as well as it can."""
    planner = make_planner()
    build(planner, build_facts("build"))

    splice, _ = admit(planner, read_facts("read", middle=BOTH, match=16))

    assert () == splice.runs
    assert 0 == splice.matched_tokens


def test_each_tail_has_its_own_words() -> None:
    """A word of one tail is no word of another."""
    planner = planner_with_tail()
    build(planner, build_facts("other", OTHER_TAIL))

    first, _ = admit(planner, read_facts("first", middle=BOTH, match=16))
    second, _ = admit(planner, read_facts("second", OTHER_TAIL, middle=(*BOTH, OTHER_TAIL[2]), match=16))

    assert ((Run(1, 4), Run(9, 4)), (Run(2, 4),)) == (first.runs, second.runs)


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        pytest.param(WIDE, [Run(0, 5), Run(8, 4)], id="for-all"),
        pytest.param(Room(99, 9, 99, OWN_ROWS + 1), [Run(0, 5)], id="for-one-row-more"),
        pytest.param(Room(99, 9, 99, OWN_ROWS), [], id="for-the-own-rows-alone"),
        pytest.param(Room(20, 9, 20, 9), [Run(0, 5)], id="for-the-middle-and-five-tokens"),
        pytest.param(Room(15, 9, 15, 9), [], id="for-the-middle-alone"),
    ],
)
def test_runs_that_no_step_has_room_for_are_left_out(room: Room, expected: list[Run]) -> None:
    """The longest rows are kept: the tail is read all the same."""
    planner = planner_with_tail()
    middle = (900, 901, 902, 903, TAIL[0], TAIL[8], TAIL[1])
    planner.add(read_facts("read", middle=middle, match=16))

    assert planner.match("read", 0, room)
    assert expected == list(admitted(planner, "read").runs)


@pytest.mark.parametrize(
    ("room", "waits"),
    [
        pytest.param(Room(12 + 8, OWN_ROWS + 2, 99, 9), False, id="exactly-enough"),
        pytest.param(Room(12 + 7, OWN_ROWS + 2, 99, 9), True, id="one-token-short"),
        pytest.param(Room(12 + 8, OWN_ROWS + 1, 99, 9), True, id="one-row-short"),
    ],
)
def test_read_waits_for_the_room_of_its_runs(room: Room, waits: bool) -> None:
    """A run left out for want of room in this step could be the answer."""
    planner = planner_with_tail()
    planner.add(read_facts("read", middle=BOTH, match=16))

    assert waits == (planner.match("read", 0, room) is None)
    assert planner.match("read", 0, WIDE)
    assert 2 == len(admitted(planner, "read").runs)


def test_read_whose_runs_find_no_room_goes_on_exactly() -> None:
    """After so many steps, like any other read."""
    planner = planner_with_tail(deferrals_max=2)
    planner.add(read_facts("read", middle=BOTH, match=16))
    room = Room(12 + 8, OWN_ROWS + 1, 99, 9)

    assert [None, None, 0] == [planner.match("read", 0, room) for _ in range(3)]
    assert Reason.BUSY is planner.reason("read")


def test_waiting_read_asks_for_the_room_of_its_match() -> None:
    """Before its runs are known, as much as they may take."""
    planner = planner_with_tail()
    planner.add(read_facts("read", middle=BOTH, match=5, head=3))

    assert len(SCAFFOLD) + len(BOTH) + 3 + 5 == planner.pending_middle("read", 99)


@pytest.mark.parametrize(
    ("most", "pending"),
    [
        pytest.param(12 + 16, 12 + 16, id="room-for-all"),
        pytest.param(12 + 15, 12 + 15, id="a-token-of-the-match-short"),
        pytest.param(12, 12, id="room-for-the-middle-alone"),
        pytest.param(11, 0, id="chunks-first"),
    ],
)
def test_match_takes_what_the_middle_leaves(most: int, pending: int) -> None:
    """What a step has room for is what the read asks for, and gets: it need not wait for more."""
    planner = planner_with_tail()
    planner.add(read_facts("read", middle=BOTH, match=16))

    assert pending == planner.pending_middle("read", most)
    assert (pending > 0) == bool(planner.match("read", 0, Room(pending, 9, most, 9)))


def test_tail_that_was_built_anew_is_marked_like_the_old_one() -> None:
    """A read that waits may see its tail evicted and built again."""
    planner = planner_with_tail()
    planner.add(read_facts("read", middle=BOTH, match=16))
    assert None is planner.match("read", 0, Room(1, 9, 99, 9))
    planner.reset()
    entry = build(planner, build_facts("again"))

    assert planner.match("read", 0, WIDE)
    splice = admitted(planner, "read")

    assert (entry, (Run(1, 4), Run(9, 4))) == (splice.entry, splice.runs)


def test_words_of_a_tail_that_is_gone_are_forgotten() -> None:
    """With its tensors, in the step that drops them."""
    marker = make_marker()
    planner = make_planner(marker=marker)
    entry = build(planner, build_facts("build"))
    assert marker.mark(entry, BOTH, first=0, end=14, tokens_max=16)

    planner.reset()
    planner.close_step([], block_table)

    assert () == marker.mark(entry, BOTH, first=0, end=14, tokens_max=16)


@given(
    middle=st.lists(st.sampled_from((*TAIL, 900, 901)), min_size=1, max_size=20),
    head=st.integers(0, 6),
    last=st.integers(0, 8),
    match=st.integers(0, 20),
    hit=st.sampled_from((0, 4, 8)),
    rows=st.integers(OWN_ROWS, 6),
    tokens=st.integers(26, 60),
)
def test_every_token_is_computed_or_copied_once(
    middle: list[int], head: int, last: int, match: int, hit: int, rows: int, tokens: int
) -> None:
    """Whatever the middle says, and whatever room there is; no more tokens are matched than asked."""
    planner = planner_with_tail()
    planner.add(read_facts("read", middle=middle, head=head, last=last, match=match))
    room = Room(tokens, rows, tokens, rows)
    wanted = len(SCAFFOLD) + len(middle) + head - hit
    if wanted > tokens:
        assert 0 == planner.match("read", hit, room)
        return
    assert planner.match("read", hit, room)
    splice = admitted(planner, "read")

    covered = [at for first, end in splice.rows for at in range(first, end)]
    own = range(splice.copied, splice.total)
    assert sorted(set(covered)) == covered
    assert splice.total - hit == len(covered) + splice.suffix_tokens + len(own)
    assert splice.matched_tokens <= match
    assert len(covered) <= tokens
    assert 1 + len(splice.rows) <= rows
