"""What one owner stores no other reads, and nothing of a user's can be stored at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.hint import Correction, Hint, Mode, Operation, Reason
from sternpost_engine.rules import Facts, Limits, read_wish
from sternpost_fakes.tail_requests import (
    MIDDLE,
    SCAFFOLD,
    TAIL,
    WIDE,
    admit,
    build,
    build_facts,
    make_planner,
    read_facts,
    transfer_of,
)

DIFFERENCES = [
    pytest.param({"salt": "other"}, id="salt"),
    pytest.param({"lora": "other"}, id="adapter"),
    pytest.param({"scaffold": "other"}, id="scaffold"),
    pytest.param({"epoch": 8}, id="epoch"),
    pytest.param({"kind": "other"}, id="kind"),
    pytest.param({"correction": Correction.CALIBRATED}, id="correction"),
]


def test_tenants_with_equal_tails_and_their_own_salts_share_nothing() -> None:
    """Each builds its own; neither reads, evicts or is told of the other's."""
    planner = make_planner()

    first, second = (build(planner, build_facts(salt, salt=salt)) for salt in ("a", "b"))

    assert first != second
    assert [first, second] == [
        admit(planner, read_facts(f"read-{salt}", salt=salt))[0].entry for salt in ("a", "b")
    ]
    planner.add(read_facts("stranger", salt="c"))
    assert 0 == planner.match("stranger", 0, WIDE)
    assert Reason.NOT_BUILT is planner.reason("stranger")


def test_tenants_with_a_shared_salt_share_a_tail() -> None:
    """Where the policy says so, one build serves them all."""
    planner = make_planner()
    entry = build(planner, build_facts("build", salt="shared"))

    assert not planner.add(build_facts("again", salt="shared"))
    assert Reason.HIT is planner.reason("again")
    assert [entry, entry] == [
        admit(planner, read_facts(name, salt="shared"))[0].entry for name in ("one", "other")
    ]


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_each_part_of_the_identity_keeps_tails_apart(difference: dict[str, Any]) -> None:
    """A read that differs in one of them finds nothing."""
    planner = make_planner()
    build(planner, build_facts("build"))

    planner.add(read_facts("read", **difference))

    assert 0 == planner.match("read", 0, WIDE)
    assert Reason.NOT_BUILT is planner.reason("read")


HINTS = st.builds(
    Hint,
    op=st.just(Operation.BUILD),
    prefix_tokens=st.integers(0, 60),
    tail_tokens=st.integers(0, 60),
    epoch=st.integers(0, 9),
    mode=st.sampled_from(Mode),
    anchor=st.integers(0, 99),
    head=st.integers(0, 9),
    last=st.integers(0, 9),
    match=st.integers(0, 9),
    kind=st.sampled_from(["", "chat", "code"]),
    correction=st.sampled_from(Correction),
    insert=st.integers(0, 60),
)


@given(hint=HINTS, middle=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20))
def test_no_hint_makes_a_tail_of_a_private_middle(hint: Hint, middle: list[int]) -> None:
    """
    Whatever its mode, kind, anchor or correction says, a build that is taken names every token of its prompt.

    So a prompt that a user's words stand in is one whose hint lies about what is fixed; an honest one, with
    scaffold and tail as they are, is refused.
    """
    honest = replace(hint, prefix_tokens=len(SCAFFOLD), tail_tokens=len(TAIL))
    facts = Facts(request_id="build", prompt=(*SCAFFOLD, *middle, *TAIL), transfer=transfer_of(honest))
    limits = Limits(tail_tokens_min=1, tail_tokens_max=200, positions_max=10**6)
    planner = make_planner(limits=limits)

    assert (None, Reason.BAD_HINT) == _decision(read_wish(facts, limits))
    assert not planner.add(facts)
    assert [] == list(planner.index.records())

    taken = read_wish(replace(facts, transfer=transfer_of(hint)), limits)
    assert taken.hint is None or hint.prefix_tokens + hint.tail_tokens == len(facts.prompt)


def _decision(wish: Any) -> tuple[Hint | None, Reason]:
    return wish.hint, wish.reason


@pytest.mark.parametrize(
    ("built", "read"),
    [
        pytest.param({}, {"mode": Mode.ANCHOR, "anchor": 64}, id="turned-and-anchored"),
        pytest.param({"mode": Mode.ANCHOR, "anchor": 64}, {}, id="anchored-and-turned"),
        pytest.param(
            {"mode": Mode.ANCHOR, "anchor": 64}, {"mode": Mode.ANCHOR, "anchor": 80}, id="two-anchors"
        ),
    ],
)
def test_modes_and_anchors_share_nothing(built: dict[str, Any], read: dict[str, Any]) -> None:
    """Keys at an anchor would be read as if they were turned, or stand elsewhere than their tokens."""
    planner = make_planner(limits=Limits(tail_tokens_min=4, tail_tokens_max=32, positions_max=1000))
    build(planner, build_facts("build", **built))

    planner.add(read_facts("read", **read))

    assert 0 == planner.match("read", 0, WIDE)
    assert Reason.NOT_BUILT is planner.reason("read")


def test_middle_of_a_read_never_reaches_the_store() -> None:
    """A read captures nothing: what it computes stays in its own blocks."""
    planner = make_planner()
    build(planner, build_facts("build"))

    _, operations = admit(planner, read_facts("read", middle=MIDDLE))

    assert ((), ()) == (tuple(operations.captures), tuple(operations.begins))
