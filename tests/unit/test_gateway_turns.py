"""Where a conversation's request departs from the one before it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.jsonspan import scan
from sternpost_gateway.receive import CHAT_PATH, RESPONSES_PATH
from sternpost_gateway.segment import chat_of
from sternpost_gateway.turns import AGENTS_MAX, BODY_BYTES_MAX, Departure, DepartureKind, Turns

SYSTEM = {"role": "system", "content": "Be kind."}
RULES = {"role": "system", "content": "Answer in one line."}


def user(content: Any) -> dict[str, Any]:
    """Return a user's message."""
    return {"role": "user", "content": content}


def assistant(content: Any, **fields: Any) -> dict[str, Any]:
    """Return an assistant's message."""
    return {"role": "assistant", "content": content, **fields}


def call(name: str) -> dict[str, Any]:
    """Return an assistant's message with a tool call of this id."""
    function = {"name": "search", "arguments": '{"q": "17"}'}
    return assistant(None, tool_calls=[{"id": name, "type": "function", "function": function}])


def take(turns: Turns, body: dict[str, Any] | list[Any], path: str = CHAT_PATH) -> Departure | None:
    """Take one turn of a conversation."""
    whole = {"messages": body} if isinstance(body, list) else body
    document = scan(json.dumps(whole, ensure_ascii=False).encode())
    chat = chat_of(document, path=path)
    assert chat is not None
    return turns.take("conversation", document, chat)


def departed(*bodies: dict[str, Any] | list[Any]) -> Departure | None:
    """Return how the last of some turns departs."""
    turns = Turns()
    return [take(turns, body) for body in bodies][-1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([user("a")], [user("a"), assistant("b"), user("c")], id="next-turn"),
        pytest.param([user("a"), assistant("b"), user("c")], [user("a")], id="shorter"),
        pytest.param([SYSTEM, user("a")], [SYSTEM, user("a")], id="again"),
        pytest.param(
            [SYSTEM, user("a"), RULES],
            [SYSTEM, user("a"), assistant("b"), user("c"), RULES],
            id="tail-behind",
        ),
        pytest.param(
            [SYSTEM, user("a"), RULES, user("b")],
            [SYSTEM, user("a"), assistant("b"), RULES, user("c")],
            id="tail-in-the-middle",
        ),
        pytest.param(
            {"messages": [user("a")], "temperature": 1},
            {"messages": [user("a")], "temperature": 0},
            id="options",
        ),
    ],
)
def test_turn_that_goes_on_departs_from_nothing(before: Any, after: Any) -> None:
    """What only follows, or is only left out at the end, costs nothing; and the tail is always last."""
    assert departed(before, after) is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(
            [user("a"), assistant("4", reasoning_content="2 and 2", x_note=7), user("b")],
            [user("a"), assistant("4"), user("b")],
            (DepartureKind.HISTORY_DIVERGED, "messages[1]", 0),
            id="reasoning-dropped",
        ),
        pytest.param(
            [user("a"), assistant("4"), user("b")],
            [user("a"), assistant("four"), user("b")],
            (DepartureKind.HISTORY_DIVERGED, "messages[1]", 0),
            id="answer-changed",
        ),
        pytest.param(
            [SYSTEM, user("hello there")],
            [SYSTEM, user([{"type": "text", "text": "hello there"}])],
            (DepartureKind.CONTENT_FORM_FLIP, "messages[1]", 0),
            id="string-to-part",
        ),
        pytest.param(
            [user([{"type": "text", "text": "hello there"}])],
            [user([{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}])],
            (DepartureKind.CONTENT_FORM_FLIP, "messages[0]", 0),
            id="parts-to-parts",
        ),
        pytest.param(
            [user("a"), assistant("b"), user("c")],
            [user("a"), assistant([{"type": "text", "text": "b"}]), user("c")],
            (DepartureKind.CONTENT_FORM_FLIP, "messages[1]", 0),
            id="form-of-an-answer",
        ),
        pytest.param(
            [user("a"), call("call_5f0c"), user("b")],
            [user("a"), call("call_77aa"), user("b")],
            (DepartureKind.MISS, "messages[1].tool_calls[0].id", 14),
            id="call-id",
        ),
        pytest.param(
            [{"role": "tool", "tool_call_id": "c1", "content": "r"}, user("b")],
            [{"role": "tool", "tool_call_id": "c2", "content": "r"}, user("b")],
            (DepartureKind.MISS, "messages[0].tool_call_id", 2),
            id="id-of-a-result",
        ),
        pytest.param(
            [user("at 09:00:01"), assistant("b")],
            [user("at 09:00:02"), assistant("b")],
            (DepartureKind.MISS, "messages[0]", 10),
            id="words",
        ),
        pytest.param(
            {"messages": [user("a"), user("b")], "tools": [{"name": "x"}]},
            {"messages": [user("a"), user("b")], "tools": [{"name": "y"}]},
            (DepartureKind.MISS, "tools", 11),
            id="tools",
        ),
    ],
)
def test_departures_are_told_apart(before: Any, after: Any, expected: tuple[DepartureKind, str, int]) -> None:
    """Each is named by its place and its kind."""
    found = departed(before, after)

    assert found is not None
    assert expected == (found.kind, found.path, found.offset)


def test_guess_and_loss_are_told() -> None:
    """A clock is known by its looks, a call's id by its place; what is lost begins with the message."""
    clock = departed([user("at 09:00:01"), user("b")], [user("at 09:00:02"), user("b")])
    ids = departed([user("a"), call("call_5f0c")], [user("a"), call("call_77aa")])

    assert clock is not None and ids is not None
    assert ("Timestamp", "ToolCallId") == (clock.guess, ids.guess)
    assert len(json.dumps([user("at 09:00:02"), user("b")])) - 2 == clock.lost_bytes
    assert len(json.dumps(call("call_77aa"))) == ids.lost_bytes


def test_departure_is_told_of_once_each_time() -> None:
    """A turn is compared with the one right before it."""
    turns = Turns()
    found = [take(turns, [user(text), user("b")]) for text in ("a", "x", "x")]

    assert [None, DepartureKind.MISS, None] == [one and one.kind for one in found]


MAIN = [SYSTEM, user("mend the sail"), assistant("aye"), user("and the mast")]
HELPER = [RULES, user("look for needles"), assistant("found 3"), user("any more?")]


def test_agents_of_a_session_depart_from_their_own_turns_only() -> None:
    """While others have their turns, what an agent has said is cached; a change of it is still told."""
    turns = Turns()
    quiet = [MAIN[:2], HELPER[:2], MAIN, HELPER, [RULES, user("look for thread")], [*MAIN, assistant("done")]]
    found = [take(turns, messages) for messages in quiet]
    changed = take(turns, [*MAIN[:2], assistant("no"), *MAIN[3:]])

    assert [None] * len(quiet) == found
    assert changed is not None and DepartureKind.HISTORY_DIVERGED is changed.kind


def test_agents_that_are_remembered_are_bounded() -> None:
    """What an agent has said is forgotten when so many others had their turns since."""
    turns = Turns()
    for number in range(AGENTS_MAX + 1):
        take(turns, task(number, "b"))
    found = [take(turns, task(number, "c")) for number in (0, AGENTS_MAX)]

    assert [False, True] == [one is not None for one in found]


def task(number: int, answer: str) -> list[dict[str, Any]]:
    """Return a turn of an agent of this number."""
    return [{"role": "system", "content": f"{number}"}, user(f"task {number}"), user(answer)]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        pytest.param({"messages": [user("x" * BODY_BYTES_MAX)]}, CHAT_PATH, id="too-long"),
        pytest.param({"messages": []}, CHAT_PATH, id="no-messages"),
        pytest.param({"input": "a"}, RESPONSES_PATH, id="text"),
        pytest.param(
            {"input": [user("a")], "previous_response_id": "r"}, RESPONSES_PATH, id="history-elsewhere"
        ),
    ],
)
def test_what_cannot_be_compared_is_not_kept(body: dict[str, Any], path: str) -> None:
    """Nothing is held of a turn that says nothing about the next."""
    turns = Turns()

    assert take(turns, body, path) is None
    assert 0 == len(turns)


def test_turns_are_bounded() -> None:
    """The conversation that was silent for longest is forgotten."""
    turns = Turns(bytes_max=5000)
    document = scan(json.dumps({"messages": [user("x" * 600)]}).encode())
    chat = chat_of(document)
    assert chat is not None
    for number in range(9):
        turns.take(f"conversation {number}", document, chat)

    assert 2 == len(turns)


MESSAGES = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "user", "assistant", "tool"]),
        st.text(max_size=5)
        | st.lists(st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=3))),
    ),
    min_size=1,
    max_size=5,
)


@given(before=MESSAGES, after=MESSAGES)
def test_any_two_turns_compare(before: list[Any], after: list[Any]) -> None:
    """Whatever clients send, a departure has a place; and what is appended to a history is none."""
    found = departed([SYSTEM, *before], [SYSTEM, *after])
    appended = departed([user("a"), *before], [user("a"), *before, user("z")])

    assert found is None or found.path.startswith("messages[")
    assert appended is None
