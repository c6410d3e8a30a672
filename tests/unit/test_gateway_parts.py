"""A body as the parts that prompts are compared by."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sternpost_core.jsonspan import scan
from sternpost_gateway.parts import fixed_elements, parts_of

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Where is north?"}
RULES = {"role": "developer", "content": "Answer in one line."}


def seen(body: Any) -> list[tuple[str, str, int | None, str]]:
    """Return the parts of a body."""
    return [
        (part.path, part.kind.value, part.message, part.text)
        for part in parts_of(scan(json.dumps(body).encode()))
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            {"messages": [{"content": "a\n", "name": "n", "role": "user"}], "tools": []},
            [
                ("tools", "tools", None, "[]"),
                ("messages[0].role", "json", 0, '"user"'),
                ("messages[0]", "text", 0, "a\n"),
                ("messages[0].name", "json", 0, '"n"'),
            ],
            id="chat",
        ),
        pytest.param(
            {"messages": [{"content": [{"type": "text", "text": "a"}, {"type": "image_url"}, 1]}]},
            [
                ("messages[0].content[0]", "text", 0, "a"),
                ("messages[0].content[1]", "json", 0, '{"type": "image_url"}'),
                ("messages[0].content[2]", "json", 0, "1"),
            ],
            id="content-parts",
        ),
        pytest.param({"prompt": "a"}, [("prompt", "text", None, "a")], id="completions"),
        pytest.param(
            {"prompt": ["a", [1, 2]]},
            [("prompt[0]", "text", None, "a"), ("prompt[1]", "json", None, "[1, 2]")],
            id="prompts",
        ),
        pytest.param(
            {"input": "b", "instructions": "a"},
            [("instructions", "text", None, "a"), ("input", "text", None, "b")],
            id="responses",
        ),
        pytest.param({"messages": [3]}, [("messages[0]", "json", 0, "3")], id="no-message"),
        pytest.param({"messages": "a"}, [], id="no-list"),
    ],
)
def test_parts_come_in_the_order_of_rendering(
    body: Any, expected: list[tuple[str, str, int | None, str]]
) -> None:
    """Tools first, then each message with role and content before everything else."""
    assert expected == seen(body)


@pytest.mark.parametrize(
    ("body", "front", "end"),
    [
        pytest.param({"tools": [], "messages": [SYSTEM, USER]}, 2, 0, id="tools-and-system"),
        pytest.param({"messages": [SYSTEM, RULES, USER, RULES]}, 2, 1, id="both-ends"),
        pytest.param({"messages": [USER, SYSTEM, RULES]}, 0, 2, id="two-at-the-end"),
        pytest.param({"messages": [SYSTEM]}, 1, 0, id="nothing-twice"),
        pytest.param({"prompt": "a"}, 0, 0, id="no-chat"),
    ],
)
def test_fixed_elements_are_the_tools_and_the_systems(body: Any, front: int, end: int) -> None:
    """What users say is never among them."""
    found = fixed_elements(scan(json.dumps(body).encode()))

    assert (front, end) == tuple(map(len, found))


def test_the_order_of_members_is_no_difference() -> None:
    """A message is what its members are."""
    swapped = {"content": SYSTEM["content"], "role": "system"}
    ids = [
        fixed_elements(scan(json.dumps({"messages": [message, USER]}).encode()))
        for message in (SYSTEM, swapped)
    ]

    assert ids[0] == ids[1]
