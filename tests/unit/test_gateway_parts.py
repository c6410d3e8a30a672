"""A body as the parts that prompts are compared by."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sternpost_core.jsonspan import Document, scan
from sternpost_gateway.dialogue import HOLDERS, Dialogue, dialogue_of
from sternpost_gateway.parts import fixed_elements, parts_of, prefix_length

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Where is north?"}
RULES = {"role": "developer", "content": "Answer in one line."}


def seen(body: Any) -> list[tuple[str, str, int | None, str]]:
    """Return the parts of a body."""
    document, dialogue = read(body)
    return [(part.path, part.kind.value, part.message, part.text) for part in parts_of(document, dialogue)]


def read(body: Any) -> tuple[Document, Dialogue]:
    """Return a body and its prompt; the member that holds it says where it was sent to."""
    document = scan(json.dumps(body).encode())
    path = next(path for path, holder in HOLDERS.items() if holder in body)
    dialogue = dialogue_of(document, path)
    assert dialogue is not None
    return document, dialogue


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
            {"input": "b", "instructions": "a"},
            [("instructions", "text", None, "a"), ("input", "text", None, "b")],
            id="responses",
        ),
        pytest.param({"messages": [3]}, [("messages[0]", "json", 0, "3")], id="no-message"),
        pytest.param(
            {"input": [{"role": "user", "content": "b"}], "instructions": "a"},
            [
                ("instructions", "text", None, "a"),
                ("input[0].role", "json", 0, '"user"'),
                ("input[0]", "text", 0, "b"),
            ],
            id="responses-of-messages",
        ),
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
        pytest.param({"prompt": "a"}, 0, 0, id="completions"),
        pytest.param({"input": "a", "instructions": "b", "tools": []}, 2, 0, id="responses"),
    ],
)
def test_fixed_elements_are_the_tools_and_the_systems(body: Any, front: int, end: int) -> None:
    """What users say is never among them."""
    found = fixed_elements(*read(body))

    assert (front, end) == tuple(map(len, found))


def test_the_order_of_members_is_no_difference() -> None:
    """A message is what its members are."""
    swapped = {"content": SYSTEM["content"], "role": "system"}
    ids = [fixed_elements(*read({"messages": [message, USER]})) for message in (SYSTEM, swapped)]

    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"tools": [], "messages": [SYSTEM, USER]}, 3, id="tools-and-system"),
        pytest.param({"messages": [USER, SYSTEM]}, 0, id="nothing-in-front"),
        pytest.param({"messages": [SYSTEM]}, 2, id="nothing-else"),
        pytest.param({"instructions": "a", "input": "b"}, 1, id="instructions"),
        pytest.param({"prompt": "a"}, 0, id="completions"),
    ],
)
def test_the_prefix_ends_where_the_user_begins(body: Any, expected: int) -> None:
    """Role and content are a part each."""
    document, dialogue = read(body)

    assert expected == prefix_length(parts_of(document, dialogue), dialogue)
