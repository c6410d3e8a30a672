"""What is learned about a policy's prompts: the template, its tail, and which prefixes are warm."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.content import ContentId
from sternpost_core.divergence import Part, PartKind
from sternpost_core.template import STABLE_PROMPTS_MIN, FixedRun, run_id
from sternpost_gateway.learning import EXAMPLE_CHARS_MAX, JUDGED_EVERY, MISSES_MAX, WINDOW, Learning, Miss

POLICY = "agents/support"
SYSTEM = ContentId("system")
RULES = (ContentId("rules"), ContentId("format"))
OTHER = ContentId("other")

ENOUGH = STABLE_PROMPTS_MIN + JUDGED_EVERY


def observe(learning: Learning, count: int, *tail: ContentId, front: ContentId = SYSTEM) -> None:
    """Let so many prompts with this tail pass."""
    for _ in range(count):
        learning.observe(POLICY, [front], tail)


def part(text: str) -> list[Part]:
    """Return a prefix of one part."""
    return [Part("messages[0]", PartKind.TEXT, 0, text)]


def test_tail_is_used_once_enough_prompts_have_it() -> None:
    """One prompt fewer than enough is not enough, however alike they are."""
    learning = Learning()
    observe(learning, STABLE_PROMPTS_MIN - 1, *RULES)
    before = learning.tail(POLICY)
    observe(learning, JUDGED_EVERY, *RULES)
    learned = learning.tail(POLICY)

    assert before is None and learned is not None
    assert (2, run_id(RULES[::-1]), 1.0) == (learned.length, learned.run_id, learned.share)
    assert learning.tail("agents/other") is None


@pytest.mark.parametrize(
    ("others_of_hundred", "is_used"),
    [pytest.param(4, True, id="96-percent"), pytest.param(6, False, id="94-percent")],
)
def test_tail_is_taken_up_at_95_percent(others_of_hundred: int, is_used: bool) -> None:
    """Below, what most prompts end with is shown and not used."""
    learning = Learning()
    for _ in range(4):
        observe(learning, others_of_hundred, OTHER)
        observe(learning, 100 - others_of_hundred, *RULES)

    assert is_used is (learning.tail(POLICY) is not None)


def test_tail_is_given_up_below_90_percent_only() -> None:
    """A share that wavers between the two bounds changes nothing; one that falls lower does."""
    learning = Learning()
    observe(learning, 400, *RULES)
    kept: list[bool] = []
    for others in (30, 30):
        observe(learning, others, OTHER)
        observe(learning, JUDGED_EVERY, *RULES)
        kept.append(learning.tail(POLICY) is not None)
    template = learning.observe(POLICY, [SYSTEM], RULES)

    assert 0.85 < template.tail.share < 0.90
    assert [True, False] == kept


def test_unstable_prefix_withdraws_the_tail() -> None:
    """What stands in front has to hold, too: the tail's KV is encoded after it."""
    learning = Learning()
    observe(learning, ENOUGH, *RULES)
    for number in range(ENOUGH):
        observe(learning, 1, *RULES, front=ContentId(f"clock {number}"))

    assert learning.tail(POLICY) is None


def test_changed_tail_takes_the_place_of_the_old() -> None:
    """After a change of the rules the new ones are learned, because what was counted before weighs less."""
    learning = Learning()
    observe(learning, 2 * WINDOW, *RULES)
    observe(learning, 8 * WINDOW, OTHER)
    learned = learning.tail(POLICY)

    assert learned is not None and run_id([OTHER]) == learned.run_id


@given(st.lists(st.booleans(), max_size=600))
def test_used_tail_always_had_its_share(ends: list[bool]) -> None:
    """Whatever the order of prompts, a tail is used only after 95%, and never while it is below 90%."""
    learning, was_used = Learning(), False
    for count, has_tail in enumerate(ends, start=1):
        template = learning.observe(POLICY, [SYSTEM], RULES if has_tail else [OTHER])
        is_used = learning.tail(POLICY) is not None
        if is_used:
            assert count >= STABLE_PROMPTS_MIN and template.stability >= 0.90
            assert was_used or template.stability >= 0.95
        was_used = is_used


def test_only_a_new_prefix_departs() -> None:
    """The first prefix has nothing to depart from; one that came before is warm when it comes again."""
    learning = Learning()
    ids = [ContentId(name) for name in ("a", "b", "a", "b", "c")]
    found = [learning.departs(POLICY, one, partial(part, one)) for one in ids]

    assert [None, "a", None, None, "b"] == [example and example[0].text for example in found]


def test_long_prefix_is_not_kept() -> None:
    """What is kept of a policy's prompts is bounded."""
    learning = Learning()
    learning.departs(POLICY, ContentId("a"), lambda: part("x" * (EXAMPLE_CHARS_MAX + 1)))

    assert learning.departs(POLICY, ContentId("b"), lambda: part("y")) is None


def test_departures_are_counted_by_place_and_bounded() -> None:
    """Equal places add up; the places that were not seen for longest go."""
    learning = Learning()
    for number in range(MISSES_MAX + 1):
        learning.missed(POLICY, ("miss", f"messages[{number}]", "Timestamp"), 5, 100)
    learning.missed(POLICY, ("miss", "messages[1]", "Timestamp"), 7, 50)
    ((_, known),) = learning.policies()
    misses = dict(known.misses.items())

    assert MISSES_MAX == len(misses)
    assert ("miss", "messages[0]", "Timestamp") not in misses
    assert Miss(2, 150, 7) == misses["miss", "messages[1]", "Timestamp"]


def test_policies_are_bounded() -> None:
    """The policy that was not used for longest is forgotten."""
    learning = Learning(policies_max=1)
    observe(learning, ENOUGH, *RULES)
    learning.observe("agents/other", [SYSTEM], RULES)

    assert ["agents/other"] == [name for name, _ in learning.policies()]
    assert learning.tail(POLICY) is None


def test_learned_tail_is_a_value() -> None:
    """What a request is compared with does not change under it."""
    learning = Learning()
    observe(learning, ENOUGH, *RULES)
    before = learning.tail(POLICY)
    observe(learning, ENOUGH, OTHER)

    assert isinstance(before, FixedRun) and run_id(RULES[::-1]) == before.run_id
