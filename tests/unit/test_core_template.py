"""What most prompts begin and end with: counted in bounded space, and never claimed without being there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.content import ContentId, content_id
from sternpost_core.template import (
    DEPTH_MAX,
    EMPTY_RUN,
    STABLE_PROMPTS_MIN,
    FrequentRuns,
    Template,
    TemplateSummary,
    run_id,
    to_mapping,
)


def ids(text: str) -> list[ContentId]:
    """Return the content ids of elements, one for each letter."""
    return [content_id("element", [("letter", letter.encode())]) for letter in text]


def learned(*prompts: tuple[str, str, int], window: int | None = None) -> Template:
    """Return the template of prompts, given by the letters of their ends and how often each comes."""
    summary = TemplateSummary(window)
    for prefix, tail, count in prompts:
        for _ in range(count):
            summary.observe(ids(prefix), ids(tail))
    template = summary.template()
    assert template is not None
    return template


@pytest.mark.parametrize(
    ("prompts", "prefix", "tail", "stability"),
    [
        pytest.param([("ab", "yz", 200)], "ab", "yz", 1.0, id="always-the-same"),
        pytest.param([("ab", "", 200)], "ab", "", 1.0, id="no-tail"),
        pytest.param([("", "z", 200)], "", "z", 1.0, id="no-prefix"),
        pytest.param([("", "", 200)], "", "", 1.0, id="nothing-fixed"),
        pytest.param([("ab", "z", 100), ("ac", "z", 100)], "a", "z", 1.0, id="the-second-element-varies"),
        pytest.param([("a", "xz", 100), ("a", "yz", 100)], "a", "z", 1.0, id="the-last-but-one-varies"),
        pytest.param([("a", "z", 150), ("b", "z", 50)], "a", "z", 0.75, id="two-prefixes"),
        pytest.param([("a", "z", 97), ("b", "z", 1), ("a", "y", 2)], "a", "z", 0.97, id="a-few-differ"),
        pytest.param([("ab", "z", 96), ("a", "z", 4)], "ab", "z", 0.96, id="nearly-all-go-on"),
        pytest.param([("ab", "z", 94), ("a", "z", 6)], "a", "z", 1.0, id="too-few-go-on"),
    ],
)
def test_the_template_is_the_longest_stable_run(
    prompts: Sequence[tuple[str, str, int]], prefix: str, tail: str, stability: float
) -> None:
    """A run is part of the template as long as at least 95% of prompts have it."""
    template = learned(*prompts)

    assert (run_id(ids(prefix)), len(prefix)) == (template.prefix.run_id, template.prefix.length)
    assert (run_id(ids(tail)[::-1]), len(tail)) == (template.tail.run_id, template.tail.length)
    assert stability == pytest.approx(template.stability)


def test_a_prefix_that_is_never_the_same_is_unstable() -> None:
    """With a clock in the first message, no prompt begins as another does."""
    summary = TemplateSummary()
    for second in range(1000):
        summary.observe([content_id("element", [("clock", str(second).encode())])], ids("z"))
    template = summary.template()

    assert template is not None
    assert template.stability < 0.01
    assert template.is_unstable


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        pytest.param(STABLE_PROMPTS_MIN, True, id="enough"),
        pytest.param(STABLE_PROMPTS_MIN - 1, False, id="too-few"),
    ],
)
def test_stability_needs_prompts(prompts: int, expected: bool) -> None:
    """A share of a few prompts says nothing."""
    assert expected == learned(("a", "z", prompts)).is_stable


@pytest.mark.parametrize(
    ("prefix", "tail", "expected"),
    [
        pytest.param("ab", "z", True, id="both"),
        pytest.param("abc", "yz", True, id="and-more-in-between"),
        pytest.param("a", "z", False, id="shorter"),
        pytest.param("ba", "z", False, id="another-order"),
        pytest.param("ab", "zy", False, id="something-behind-the-tail"),
        pytest.param("ab", "", False, id="no-tail"),
    ],
)
def test_a_prompt_follows_the_template_at_both_ends(prefix: str, tail: str, expected: bool) -> None:
    """What stands between the ends does not count."""
    assert expected == learned(("ab", "z", 200)).is_followed_by(ids(prefix), ids(tail))


def test_prompts_with_a_tail_do_not_follow_a_template_without() -> None:
    """Nothing at an end is a run of its own."""
    assert not learned(("a", "", 200)).is_followed_by(ids("a"), ids("z"))


def test_a_window_follows_what_comes_now() -> None:
    """Within two windows, a new template takes the old one's place."""
    before, after = ("a", "z", 5000), ("b", "z", 1000)

    assert learned(before).prefix == learned(before, window=None).prefix
    assert learned(before, after).prefix.run_id == run_id(ids("a"))
    assert learned(before, after, window=400).prefix.run_id == run_id(ids("b"))


def test_nothing_is_known_before_the_first_prompt() -> None:
    """There is no template of nothing."""
    assert TemplateSummary().template() is None


@given(st.lists(st.sampled_from("abcdefgh"), max_size=200), st.integers(1, 4))
def test_counts_are_never_too_high_and_hardly_too_low(letters: list[str], runs_max: int) -> None:
    """The bound of the method: too low by at most one in `runs_max + 1`."""
    runs = FrequentRuns(runs_max)
    for run in ids("".join(letters)):
        runs.add(run)
    found = runs.most_frequent()
    true = Counter(ids("".join(letters)))

    assert len(runs) <= runs_max
    assert runs.missed <= len(letters) // (runs_max + 1)
    if found is not None:
        assert true[found[0]] - runs.missed <= found[1] <= true[found[0]]


@given(st.lists(st.tuples(st.text("ab", max_size=6), st.text("yz", max_size=6)), min_size=1, max_size=50))
def test_stability_is_never_claimed_without_being_there(prompts: list[tuple[str, str]]) -> None:
    """At least as many prompts follow the template as its stability says."""
    template = learned(*((prefix, tail, 1) for prefix, tail in prompts))
    following = sum(template.is_followed_by(ids(prefix), ids(tail)) for prefix, tail in prompts)

    assert template.stability <= following / len(prompts) + 1e-9
    assert template.prefix.length <= DEPTH_MAX


def test_the_report_holds_ids_and_figures_only() -> None:
    """What is shown of a template can be shown to anybody."""
    assert {
        "prompts": 200,
        "stability": 1.0,
        "stable": True,
        "prefix": {"id": run_id(ids("a")), "elements": 1, "share": 1.0},
        "tail": {"id": EMPTY_RUN, "elements": 0, "share": 1.0},
    } == to_mapping(learned(("a", "", 200)))
