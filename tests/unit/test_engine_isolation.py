"""A tail of another tenant or session is not read, whatever the index hands out, and it is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sternpost_core.hint import Reason
from sternpost_core.keys import owner_of
from sternpost_engine.figures import counters_of
from sternpost_engine.index import Found, Lookup, SuffixIndex
from sternpost_engine.keys import TailKey
from sternpost_engine.planner import TailPlanner
from sternpost_engine.tracks import Room
from sternpost_fakes.tail_requests import WIDE, admit, build, build_facts, make_planner, read_facts

NARROW = Room(tokens=5, rows=8, tokens_max=5, rows_max=8)
"""Too narrow for the middle, which is computed in chunks first."""


class ConfusedIndex(SuffixIndex):
    """Hands out whatever tail it holds, whoever asks: what must never be."""

    def look_up(self, key: TailKey) -> Lookup:
        """Return the first tail."""
        record = next(self.records(), None)
        return Lookup(Found.ABSENT) if record is None else Lookup(Found.LIVE, record)


def confused_planner() -> TailPlanner:
    """Return a planner over such an index, in which one tenant's tail is live."""
    planner = make_planner(index_type=ConfusedIndex)
    build(planner, build_facts("build", salt="acme"))
    return planner


def asked_to_wait(planner: TailPlanner) -> object:
    """Ask for a read that waits."""
    return planner.match("read", 0, WIDE)


def asked_in_a_narrow_step(planner: TailPlanner) -> object:
    """Ask for a read whose middle does not fit into a step."""
    return planner.match("read", 0, NARROW)


@pytest.mark.parametrize("ask", [asked_to_wait, asked_in_a_narrow_step])
def test_anothers_tail_is_computed_exactly_and_counted(ask: Callable[[TailPlanner], object]) -> None:
    """No reference is taken, no step copies it, and the request says why."""
    planner = confused_planner()
    planner.add(read_facts("read", salt="globex"))

    assert 0 == ask(planner)
    assert None is planner.admit("read", 0)
    assert (Reason.FOREIGN_TAIL, "", ()) == (
        planner.reason("read"),
        planner.owner("read"),
        planner.take_splices(),
    )
    assert {"": 1} == counters_of(planner, {})["isolation_violations"]
    assert [0] == [record.references for record in planner.index.records()]


def test_a_read_that_runs_is_not_spliced_with_anothers_tail() -> None:
    """Its owner is looked at anew when its middle is computed: the tail may be another by then."""
    planner = make_planner(index_type=ConfusedIndex)
    entry = build(planner, build_facts("build", salt="acme"))
    planner.add(read_facts("read", salt="acme"))
    planner.match("read", 0, NARROW)
    is_chunked = planner.chunk_end("read") is not None
    record = planner.index.record(entry)
    assert record is not None
    record.key = replace(record.key, identity=replace(record.key.identity, salt="globex"))

    assert is_chunked
    assert None is planner.resume("read", 18, WIDE)
    assert Reason.FOREIGN_TAIL is planner.reason("read")
    assert {"": 1} == counters_of(planner, {})["isolation_violations"]


def test_anothers_approximate_blocks_are_not_looked_up() -> None:
    """There is no namespace to look them up in."""
    planner = confused_planner()
    planner.add(read_facts("read", salt="globex"))

    assert None is planner.open_space("read", 0)
    assert 0 == planner.pending_middle("read", 99)


def test_a_read_of_ones_own_tail_names_its_owner() -> None:
    """By a name that does not tell the salt; without a salt there is nobody to name."""
    owners = {}
    for salt in ("acme", "globex", ""):
        planner = make_planner()
        build(planner, build_facts("build", salt=salt))
        admit(planner, read_facts("read", salt=salt))
        owners[salt] = planner.owner("read")

    assert {"acme": owner_of("acme"), "globex": owner_of("globex"), "": ""} == owners
    assert 3 == len(set(owners.values()))


def test_a_read_that_was_not_a_hit_names_nobody() -> None:
    """It has read no tail, whatever it asked for."""
    planner = make_planner()
    planner.add(read_facts("read", salt="acme"))
    planner.match("read", 0, WIDE)

    assert (Reason.NOT_BUILT, "") == (planner.reason("read"), planner.owner("read"))
