"""Where two prompts part, and what that looks like."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.divergence import (
    Difference,
    Divergence,
    Guess,
    Part,
    PartKind,
    common_length,
    first_divergence,
)
from sternpost_core.policy import Detector


def text(content: str, path: str = "messages[0]", message: int = 0) -> Part:
    """Return a part that is text."""
    return Part(path, PartKind.TEXT, message, content)


def tools(*listed: object) -> Part:
    """Return a part that is a list of tools."""
    return Part("tools", PartKind.TOOLS, None, json.dumps(listed))


def tool(name: str, description: str = "d", **more: object) -> dict[str, object]:
    """Return a tool."""
    return {"type": "function", "function": {"name": name, "description": description, **more}}


@pytest.mark.parametrize(
    ("left", "right", "offset", "guess"),
    [
        pytest.param(
            "Now: 2026-11-29 09:00:01\nRules", "Now: 2026-11-29 09:00:07\nRules", 23, "Timestamp", id="clock"
        ),
        pytest.param("On 2026-11-29 we", "On 2026-11-30 we", 11, "Date", id="date"),
        pytest.param(
            "Rules.\nTurn: 9\nMore", "Rules.\nTurn: 10\nMore", 13, "Counter", id="counter-grows-longer"
        ),
        pytest.param("Turn: 1", "Turn: 12", 7, "Counter", id="counter-goes-on"),
        pytest.param("cwd: /home/a\nx", "cwd: /home/b\nx", 11, "WorkingDirectory", id="directory"),
        pytest.param("Be brief.", "Be short.", 3, "Text", id="words"),
        pytest.param("Rules at 9", "Rules at 9\nmore", 10, "Text", id="one-goes-on"),
        pytest.param(
            "x" * 5000 + " 2026-11-29 y", "x" * 5000 + " 2026-11-28 y", 5010, "Date", id="a-long-line"
        ),
    ],
)
def test_text_is_guessed_by_its_looks(left: str, right: str, offset: int, guess: str) -> None:
    """The line about the first difference says what it may be."""
    found = first_divergence([text(left)], [text(right)])

    assert found is not None
    assert ("messages[0]", offset, guess) == (found.path, found.offset, found.guess.value)


@pytest.mark.parametrize(
    ("left", "right", "guess"),
    [
        pytest.param([tool("a"), tool("b")], [tool("b"), tool("a")], Difference.TOOL_ORDER, id="order"),
        pytest.param(
            [tool("a")],
            [{"function": {"description": "d", "name": "a"}, "type": "function"}],
            Difference.KEY_ORDER,
            id="keys",
        ),
        pytest.param(
            [tool("a")],
            [tool("a")],
            None,
            id="equal",
        ),
        pytest.param([tool("a")], [tool("a"), tool("b")], Difference.TOOL_SET, id="one-more"),
        pytest.param([tool("a")], [tool("c")], Difference.TOOL_SET, id="another"),
        pytest.param([tool("a")], [tool("a", "e")], Difference.TOOL_TEXT, id="description"),
        pytest.param([tool("a")], [7], Difference.TOOL_SET, id="no-tools"),
    ],
)
def test_tools_are_told_apart_as_pins_do(
    left: list[object], right: list[object], guess: Guess | None
) -> None:
    """Equivalent lists differ by order only, others by what is in them."""
    found = first_divergence([tools(*left)], [tools(*right)])

    assert (guess is None) == (found is None)
    if found is None:
        return
    assert ("tools", None, guess) == (found.path, found.message, found.guess)


def test_space_between_tools_is_no_difference_of_tools() -> None:
    """What is written into a list is spaced by whoever writes it."""
    left, right = [tool("a"), tool("b")], json.dumps([tool("a"), tool("b")]).replace("}, {", "},{")
    found = first_divergence([tools(*left)], [Part("tools", PartKind.TOOLS, None, right)])

    assert found is not None
    assert Difference.SPACING is found.guess


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        pytest.param([text("a")], [text("a")], None, id="equal"),
        pytest.param([], [], None, id="nothing"),
        pytest.param(
            [text("a")],
            [text("a"), text("b", "messages[1]", 1)],
            Divergence(1, "messages[1]", 1, 0, Difference.MESSAGES),
            id="another-turn",
        ),
        pytest.param(
            [text("a"), text("b", "messages[1]", 1)],
            [text("a")],
            Divergence(1, "messages[1]", 1, 0, Difference.MESSAGES),
            id="a-turn-less",
        ),
        pytest.param(
            [tools(tool("a")), text("a")],
            [text("a")],
            Divergence(0, "messages[0]", 0, 0, Difference.MESSAGES),
            id="no-tools",
        ),
        pytest.param(
            [Part("messages[0].role", PartKind.JSON, 0, '"user"')],
            [Part("messages[0].role", PartKind.JSON, 0, '"tool"')],
            Divergence(0, "messages[0].role", 0, 1, Difference.JSON),
            id="another-role",
        ),
    ],
)
def test_the_first_part_that_differs_is_named(
    left: list[Part], right: list[Part], expected: Divergence | None
) -> None:
    """What comes behind it does not count."""
    assert expected == first_divergence(left, right)


@given(st.text("ab\n", max_size=40), st.text("ab\n", max_size=40))
def test_the_common_length_is_the_first_difference(left: str, right: str) -> None:
    """Up to there the texts are equal, and not one character further."""
    length = common_length(left, right)

    assert left[:length] == right[:length]
    assert length in (len(left), len(right)) or left[length] != right[length]


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_divergence_shows_no_text(left: str, right: str) -> None:
    """A place and a guess: nothing of what was written."""
    found = first_divergence([text(left)], [text(right)])

    assert (found is None) == (left == right)
    if found is not None:
        assert {Detector, Difference} >= {type(found.guess)}
