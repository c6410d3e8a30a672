"""The planner: which reads share approximate blocks, and reads that find their blocks already written."""

from __future__ import annotations

from typing import Any

import pytest

from sternpost_core.hint import Correction, Operation, Reason
from sternpost_engine.index import Found
from sternpost_engine.planner import TailPlanner
from sternpost_engine.reads import Admission
from sternpost_engine.rules import Facts
from sternpost_engine.tracks import Room, Space
from sternpost_fakes.tail_requests import (
    MIDDLE,
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

TAIL_START = len(SCAFFOLD) + len(MIDDLE)


def planner_with_tail() -> TailPlanner:
    """Return a planner that holds the tail."""
    planner = make_planner()
    build(planner, build_facts("build"))
    return planner


def space_of(planner: TailPlanner, facts: Facts, exact_hit: int = 0) -> Space | None:
    """Add a request and open its namespace."""
    planner.add(facts)
    return planner.open_space(facts.request_id, exact_hit)


@pytest.mark.parametrize(
    ("exact_hit", "head", "first"),
    [
        pytest.param(0, 0, TAIL_START, id="cold"),
        pytest.param(16, 0, TAIL_START, id="after-a-prefix-hit"),
        pytest.param(16, 3, TAIL_START + 3, id="behind-the-head"),
        pytest.param(24, 3, 24, id="behind-what-is-exact-of-the-tail"),
    ],
)
def test_namespace_begins_with_the_first_approximate_token(exact_hit: int, head: int, first: int) -> None:
    """What is exact, or computed exactly, is shared with everybody."""
    space = space_of(planner_with_tail(), read_facts("read", head=head), exact_hit)

    assert space is not None and first == space.first


@pytest.mark.parametrize(
    ("facts", "hit"),
    [
        pytest.param(read_facts("read", op=Operation.OFF), 0, id="switched-off"),
        pytest.param(read_facts("read", epoch=1), 0, id="other-epoch"),
        pytest.param(read_facts("read", salt="other"), 0, id="other-tenant"),
        pytest.param(read_facts("read", correction=Correction.CALIBRATED), 0, id="other-correction"),
        pytest.param(read_facts("read", scaffold="other"), 0, id="other-scaffold"),
        pytest.param(read_facts("read", lora="adapter"), 0, id="other-adapter"),
        pytest.param(read_facts("read", (*TAIL[:-1], 0)), 0, id="other-tail"),
        pytest.param(read_facts("read"), 29, id="prefix-store-has-nearly-all"),
        pytest.param(build_facts("read"), 0, id="build"),
        pytest.param(Facts(request_id="read", prompt=TAIL), 0, id="no-hint"),
    ],
)
def test_request_that_reads_nothing_has_no_namespace(facts: Facts, hit: int) -> None:
    """It looks up exact blocks alone."""
    planner = planner_with_tail()

    assert None is space_of(planner, facts, hit)
    assert not planner.in_space("read")


def test_unknown_request_has_no_namespace() -> None:
    """The planner is asked about every request."""
    planner = planner_with_tail()

    assert None is planner.open_space("unknown", 0)
    assert not planner.in_space("unknown")


def test_reads_of_one_tail_share_their_namespace() -> None:
    """The middle is not part of the seed, for the hashes are chained over it."""
    planner = planner_with_tail()

    seeds = {space_of(planner, read_facts(name, middle=range(n))) for name, n in (("one", 10), ("two", 10))}

    assert 1 == len(seeds)


@pytest.mark.parametrize("hint", [{"head": 1}, {"last": 3}, {"match": 4}, {"prefix_tokens": 4}], ids=str)
def test_reads_with_other_settings_have_another_namespace(hint: dict[str, Any]) -> None:
    """They compute other tokens afresh."""
    planner = planner_with_tail()

    plain, other = space_of(planner, read_facts("plain")), space_of(planner, read_facts("other", **hint))

    assert plain is not None and other is not None
    assert plain.seed != other.seed


def test_tail_that_was_built_anew_has_another_namespace() -> None:
    """And while it is not there, there is none: the request is exact."""
    planner = planner_with_tail()
    first = space_of(planner, read_facts("read"))
    planner.reset()
    without = planner.open_space("read", 0)
    build(planner, build_facts("again"))

    again = planner.open_space("read", 0)

    assert None is without
    assert first is not None and again is not None and first.seed != again.seed


def test_tail_whose_means_have_changed_has_another_namespace() -> None:
    """Blocks from before the calibration are not as good as those from after it."""
    planner = planner_with_tail()
    before = space_of(planner, read_facts("read"))
    record = next(planner.index.records())
    record.variants.add(0)

    after = planner.open_space("read", 0)

    assert before is not None and after is not None and before.seed != after.seed


def test_each_start_of_the_engine_has_its_own_namespaces() -> None:
    """Whoever listens to the engine's cache events would take the one's blocks for the other's."""
    planners = [make_planner(start=start) for start in ("monday", "tuesday")]
    for planner in planners:
        build(planner, build_facts("build"))

    assert 2 == len({space_of(planner, read_facts("read")) for planner in planners})


# -- registration ------------------------------------------------------------------------------------------


def test_blocks_are_registered_when_their_copy_has_succeeded() -> None:
    """Until then, what lies in them may be anything."""
    planner = planner_with_tail()
    space_of(planner, read_facts("read"))
    planner.match("read", 8, WIDE)
    splice = admitted(planner, "read")
    before = planner.register_max("read")

    planner.copied(splice)

    assert (TAIL_START, None) == (before, planner.register_max("read"))


def test_blocks_wait_for_their_own_copy() -> None:
    """Not for the one of an earlier admission: what came of that is told when the request began anew."""
    planner = planner_with_tail()
    space_of(planner, read_facts("read"))
    planner.match("read", 8, WIDE)
    earlier = admitted(planner, "read")
    planner.open_space("read", 8)
    planner.match("read", 8, WIDE)
    later = admitted(planner, "read")

    planner.copied(earlier)
    before = planner.register_max("read")
    planner.copied(later)

    assert (TAIL_START, None) == (before, planner.register_max("read"))


def test_without_a_whole_block_nothing_approximate_is_registered() -> None:
    """A block that is filled while the answer is generated would have an ordinary hash."""
    planner = planner_with_tail()
    space_of(planner, read_facts("read"))
    planner.close_space("read")
    planner.match("read", 8, WIDE)

    planner.copied(admitted(planner, "read"))

    assert TAIL_START == planner.register_max("read")


def test_failed_copy_ends_the_namespace() -> None:
    """All is exact then, and has the ordinary hashes."""
    planner = planner_with_tail()
    space_of(planner, read_facts("read"))
    planner.match("read", 8, WIDE)
    planner.admit("read", 1)

    planner.copy_failed("read")

    assert not planner.in_space("read")
    assert None is planner.register_max("read")


# -- blocks that are there already -------------------------------------------------------------------------


def test_read_whose_blocks_are_all_there_copies_nothing() -> None:
    """It counts as a hit, and its tail as read; approximate blocks count for the suffix store."""
    planner = planner_with_tail()
    space_of(planner, read_facts("read"))

    assert 0 == planner.match("read", 32, WIDE)
    assert None is planner.register_max("read")
    assert Admission(prefix_tokens=TAIL_START, suffix_tokens=32 - TAIL_START) == planner.admit("read", 1)
    assert () == planner.take_splices()
    assert Reason.HIT is planner.reason("read")
    assert {Found.LIVE: 1} == planner.lookups
    assert [1] == [record.hits for record in planner.index.records()]
    assert [0] == [record.references for record in planner.index.records()]


def test_read_that_lacks_its_last_blocks_has_them_copied_again() -> None:
    """A prefix store drops a request's last blocks first."""
    planner = planner_with_tail()
    space_of(planner, read_facts("read"))

    assert 32 - 24 == planner.match("read", 24, WIDE)
    admission = planner.admit("read", 1)
    assert admission is not None and admission.splice is not None
    splice = admission.splice

    assert (TAIL_START, 32 - TAIL_START) == (admission.prefix_tokens, admission.suffix_tokens)
    assert (24, 24, 32, 6, ()) == (
        splice.hit,
        splice.exact,
        splice.copied,
        splice.approximate,
        splice.rows,
    )
    load = planner.close_step([("read", 32, 2)], block_table).loads[0]
    assert (24, 24 - TAIL_START, 8) == (load.span.position, load.span.offset, load.span.count)


def test_read_without_room_goes_on_behind_its_approximate_blocks() -> None:
    """They cannot be taken back: vLLM has looked them up. The rest is computed."""
    planner = planner_with_tail()
    space_of(planner, read_facts("read"))

    assert 0 == planner.match("read", 24, Room(99, 1, 99, 1))
    assert Admission(prefix_tokens=TAIL_START, suffix_tokens=6) == planner.admit("read", 1)
    assert planner.in_space("read")


def test_preempted_read_that_finds_its_blocks_goes_on() -> None:
    """It has been spliced once, and is not again."""
    planner = planner_with_tail()
    first, _ = admit(planner, read_facts("read"))
    planner.copied(first)
    planner.step_done([first])
    planner.open_space("read", 0)

    assert 0 == planner.match("read", 32, WIDE)
    assert planner.admit("read", 1) is not None


def test_read_that_is_admitted_later_may_be_spliced_after_all() -> None:
    """Between two questions its blocks may be dropped."""
    planner = planner_with_tail()
    space_of(planner, read_facts("read"))
    planner.match("read", 32, WIDE)
    planner.open_space("read", 0)

    assert 24 == planner.match("read", 8, WIDE)
    assert 0 == admitted(planner, "read").approximate
