"""The marker: where it counts, what it makes the tail, and how such a tail is reused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.jsonspan import scan
from sternpost_core.policy import Policy, TailSource
from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import SUPPORT_POLICY, eventually, running_gateway
from sternpost_fakes.gateway_scene import SYSTEM, USER, Scene, body_of, policy
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.marker import MARKER, MARKERS_MAX, marker_start
from sternpost_gateway.segment import Chat, chat_of
from sternpost_gateway.tokens import FIRST_TEXT, tokenize_body

RULES = f"{MARKER}\nBe brief ."
ASSISTANT = {"role": "assistant", "content": "aye"}


def user(text: str) -> dict[str, str]:
    """Return a user's message."""
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    """Return a system message."""
    return {"role": "system", "content": text}


def marked_policy(layout: str = "FixedTail", **changes: Any) -> Policy:
    """Return a policy whose tails are marked."""
    return policy(prompt={"layout": layout, "tail": {"source": "Marker", "minTokens": 256}}, **changes)


def marked_chat(*messages: object) -> Chat:
    """Return the segments of a chat whose tail is marked."""
    chat = chat_of(scan(json.dumps({"messages": messages}).encode()), TailSource.MARKER)
    assert chat is not None
    return chat


def tail_text(text: str, *, escape: bool = False) -> str | None:
    """Return what the marker makes the tail of a text, None if it marks nothing."""
    raw = json.dumps(text)[1:-1].encode()
    if escape:
        raw = raw.replace(b"<", rb"\u003c").replace(b">", rb"\u003E")
    start = marker_start(raw, 0, len(raw))
    return None if start is None else str(json.loads(b'"' + raw[start:] + b'"'))


@pytest.mark.parametrize("escape", [False, True], ids=["plain", "escaped"])
@pytest.mark.parametrize(
    ("before", "counts"),
    [
        pytest.param("", True, id="at-the-beginning"),
        pytest.param("Where ?\n", True, id="on-a-line"),
        pytest.param("Where ?\r\n\n", True, id="behind-an-empty-line"),
        pytest.param("C:\\\n", True, id="behind-a-backslash-and-a-new-line"),
        pytest.param("Where ? ", False, id="in-a-line"),
        pytest.param("C:\\n", False, id="behind-a-backslash-and-an-n"),
        pytest.param("\\", False, id="behind-a-backslash"),
        pytest.param("> ", False, id="quoted"),
    ],
)
def test_marker_counts_where_a_line_begins(before: str, counts: bool, escape: bool) -> None:
    """The tail is all from the marker on; elsewhere the marker is a text like any other."""
    assert (RULES if counts else None) == tail_text(before + RULES, escape=escape)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sternpost:tail",
        "<!--sternpost:tail-->",
        "<!-- sternpost:tail --",
        "!-- sternpost:tail -->",
        "<!-- Sternpost:Tail -->",
    ],
)
def test_what_is_no_marker_marks_nothing(text: str) -> None:
    """Only the marker itself counts."""
    assert None is tail_text(text)


def test_last_marker_counts() -> None:
    """A marker in what a user wrote does not make the tail begin there."""
    assert RULES == tail_text(f"{MARKER}\nmine\n{RULES}")


def test_marker_in_a_later_sentence_is_passed_over() -> None:
    """Rules may speak of the marker."""
    assert f"{RULES} Do not write {MARKER} ." == tail_text(f"x\n{RULES} Do not write {MARKER} .")


def test_search_is_bounded() -> None:
    """A text full of markers within its lines is not searched to its beginning."""
    assert None is tail_text(f"{RULES}\n" + f"x {MARKER}" * MARKERS_MAX)
    assert tail_text(f"{RULES}\n" + f"x {MARKER}" * (MARKERS_MAX - 1))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 1001])
def test_backslashes_before_a_line_s_end_are_told_apart(count: int) -> None:
    """Only a real new line begins a line, however many backslashes stand before it."""
    run = "\\" * count

    assert (RULES, None) == (tail_text(f"{run}\n{RULES}"), tail_text(f"{run}n{RULES}"))


texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(texts, texts.filter(lambda text: MARKER not in text), st.booleans())
def test_any_text_may_stand_around_the_marker(before: str, after: str, escape: bool) -> None:
    """Whatever is written before the marker's line and behind the marker, the tail is the rest."""
    assert MARKER + after == tail_text(f"{before}\n{MARKER}{after}", escape=escape)


@pytest.mark.parametrize(
    ("messages", "tail", "is_part"),
    [
        pytest.param([SYSTEM, user(f"Where ?\n{RULES}")], 1, True, id="user"),
        pytest.param([SYSTEM, user(RULES)], 1, True, id="user-from-the-beginning"),
        pytest.param([SYSTEM, USER, system(RULES)], 2, False, id="system-from-the-beginning"),
        pytest.param([SYSTEM, USER, system(f"Clock: 7\n{RULES}")], 2, True, id="system"),
        pytest.param([SYSTEM, USER, system(RULES), USER], 2, False, id="system-before-a-user"),
        pytest.param([SYSTEM, user(RULES), ASSISTANT, user(RULES)], 3, True, id="last-of-two"),
        pytest.param([system(RULES), USER], None, False, id="in-the-prefix"),
        pytest.param([SYSTEM, USER, system("rules")], None, False, id="unmarked"),
        pytest.param([SYSTEM, {"role": "assistant", "content": RULES}], None, False, id="assistant"),
        pytest.param(
            [SYSTEM, {"role": "user", "content": [{"type": "text", "text": RULES}]}], None, False, id="parts"
        ),
        pytest.param([SYSTEM, {"role": "user"}, {"content": RULES}, 3, None], None, False, id="odd"),
    ],
)
def test_message_with_the_marker_is_found(messages: list[Any], tail: int | None, is_part: bool) -> None:
    """The last user's or system message behind the prefix that holds the marker has the tail."""
    chat = marked_chat(*messages)

    assert (tail, is_part) == (chat.place.first if chat.place else None, chat.tail_is_part)
    assert (tail is None) is (chat.tail_id is None)


def test_id_of_a_tail_does_not_depend_on_what_stands_before_it() -> None:
    """Two questions with the same rules have the same tail; other rules, another."""
    one, two, other = (
        marked_chat(SYSTEM, user(text)).tail_id
        for text in (f"Where ?\n{RULES}", f"Why ?\n{RULES}", f"Where ?\n{RULES} Or not .")
    )

    assert one == two != other


@pytest.mark.parametrize(
    ("layout", "messages", "expected", "moved"),
    [
        pytest.param("FixedTail", [SYSTEM, user(f"?\n{RULES}")], None, None, id="fixed-last"),
        pytest.param("Preserve", [SYSTEM, user(f"?\n{RULES}")], None, None, id="preserve-last"),
        pytest.param("TailFirst", [SYSTEM, user(f"?\n{RULES}")], Bypass.TAIL_NOT_MOVABLE, None, id="first"),
        pytest.param(
            "FixedTail", [SYSTEM, user(f"?\n{RULES}"), ASSISTANT], Bypass.TAIL_NOT_MOVABLE, None, id="fixed"
        ),
        pytest.param(
            "Preserve", [SYSTEM, user(f"?\n{RULES}"), ASSISTANT], Bypass.TAIL_NOT_LAST, None, id="preserve"
        ),
        pytest.param("FixedTail", [SYSTEM, system(RULES), USER], Bypass.NO_TAIL, None, id="in-the-prefix"),
        pytest.param("FixedTail", [USER, system(RULES), USER], None, [0, 2, 1], id="message-fixed"),
        pytest.param("TailFirst", [USER, system(RULES)], Bypass.TAIL_FIRST, [1, 0], id="message-first"),
    ],
)
def test_only_a_whole_message_moves(
    layout: str, messages: list[Any], expected: Bypass | None, moved: list[int] | None
) -> None:
    """A tail within a message is reused where it is last, and stays where it is otherwise."""
    composed = Scene(body={"model": "qwen", "messages": messages}, policy=marked_policy(layout)).compose()
    order = moved or range(len(messages))

    assert expected is composed.planned.bypass
    assert [messages[index] for index in order] == body_of(composed)["messages"]


def test_made_up_text_stands_in_the_message_of_the_tail() -> None:
    """What is rendered is the message with a made-up text in front of the tail, and no word of the user."""
    message = {"name": "n", "role": "user", "content": f"Secret ?\n{RULES}"}
    wish = Scene(body={"model": "qwen", "messages": [SYSTEM, message]}, policy=marked_policy()).plan().wish
    assert wish is not None
    rendered = tokenize_body(wish.template, FIRST_TEXT, with_tail=True)

    assert [SYSTEM, {**message, "content": FIRST_TEXT + RULES}] == json.loads(rendered)["messages"]
    assert b"Secret" not in rendered + tokenize_body(wish.template, FIRST_TEXT, with_tail=False)


async def test_marked_tail_is_built_and_read(tmp_path: Path) -> None:
    """Any question in front of the same rules finds them, and the messages arrive as they were sent."""
    marked = SUPPORT_POLICY.replace("LastSystemMessage", "Marker")
    rules = f"{MARKER}\n" + " ".join(f"rule{number}" for number in range(300))
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=marked) as gateway:

        async def ask(question: str) -> Any:
            messages = [SYSTEM, user(f"{question}\n\n{rules}")]
            response = await gateway.client.post(
                "/v1/chat/completions",
                json={"model": "qwen", "messages": messages},
                headers={"x-tenant-id": "acme"},
            )
            assert messages == json.loads(engine.chats[-1].body)["messages"]
            return response.json()["usage"]["prompt_tokens_details"]

        await ask("Where is north ?")
        await eventually(lambda: bool(engine.built))
        details = [await ask(question) for question in ("Where is south ?", "And why ? Tell me .")]
        sent = b"".join(seen.body for seen in (*engine.builds, *engine.posts("/tokenize")))

    assert ["hit", "hit"] == [item["sternpost"]["reason"] for item in details]
    assert b"north" not in sent and 1 == len(engine.builds)
