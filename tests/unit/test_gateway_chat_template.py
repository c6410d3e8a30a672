"""What an engine's chat template does is asked of the engine, once for each model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sternpost_fakes.chat_tokenizer import ChatTokenizer
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway_scene import Scene, policy
from sternpost_gateway.chat_template import FAILED_SECONDS, NOT_KNOWN, ChatTemplate, ChatTemplates
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.fleet import Engine
from sternpost_gateway.settings import Settings

ENGINE = Engine("http://engine")

Render = Callable[[list[dict[str, Any]], bool], str | None]


def chatml(messages: list[dict[str, Any]], prompt: bool) -> str:
    """Render each message in its place, with its tool calls' ids."""
    text = "".join(f"<{one['role']}>{one['content']}{one.get('tool_calls', '')}</>" for one in messages)
    return text + "<assistant>" * prompt


def without_ids(messages: list[dict[str, Any]], prompt: bool) -> str:
    """Render each message in its place, and of a tool call its function only."""
    kept = [
        {**one, "tool_calls": [call["function"] for call in one["tool_calls"]]}
        if "tool_calls" in one
        else one
        for one in messages
    ]
    return chatml(kept, prompt)


def merged(messages: list[dict[str, Any]], prompt: bool) -> str:
    """Render all system messages as one in front."""
    system = "\n".join(one["content"] for one in messages if one["role"] == "system")
    others = [one for one in messages if one["role"] != "system"]
    return f"<system>{system}</>" + chatml(others, prompt)


def first_only(messages: list[dict[str, Any]], prompt: bool) -> str:
    """Render the first system message, and none behind it."""
    return chatml(messages[:1] + [one for one in messages[1:] if one["role"] != "system"], prompt)


def refusing(messages: list[dict[str, Any]], prompt: bool) -> str | None:
    """Refuse a system message that is not the first, and tools."""
    later = {one["role"] for one in messages[1:]}
    return None if later & {"system", "tool"} else chatml(messages, prompt)


def templates(answer: Callable[[httpx.Request], httpx.Response], clock: FakeClock) -> ChatTemplates:
    """Return templates that ask an engine which answers so."""
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    settings = Settings(policies=Path("policies"), engines=(ENGINE.url,))
    return ChatTemplates(EngineApi(client, settings.timeouts), clock)


def engine_of(render: Render, asked: list[str]) -> Callable[[httpx.Request], httpx.Response]:
    """Return an engine that renders so; what it is asked is noted by model."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append(body["model"])
        text = render(body["messages"], body["add_generation_prompt"])
        if text is None:
            return httpx.Response(400, json={"error": {"message": "no"}})
        return httpx.Response(200, json={"tokens": ChatTokenizer().encode(text)})

    return answer


@pytest.mark.parametrize(
    ("render", "expected"),
    [
        pytest.param(chatml, ChatTemplate(True, True), id="in-place-with-ids"),
        pytest.param(without_ids, ChatTemplate(True, False), id="in-place-without-ids"),
        pytest.param(merged, ChatTemplate(False, True), id="merged"),
        pytest.param(first_only, ChatTemplate(False, True), id="first-only"),
        pytest.param(refusing, ChatTemplate(False, None), id="refused"),
    ],
)
async def test_template_is_known_by_what_it_renders(render: Render, expected: ChatTemplate) -> None:
    """A later system message counts only in its own words and place, behind an unchanged first one."""
    asked: list[str] = []
    known = templates(engine_of(render, asked), FakeClock())
    before = known.of("m")
    for _ in range(3):
        known.want(ENGINE, "m")
    await known.idle()
    known.want(ENGINE, "m")
    await known.idle()

    assert (NOT_KNOWN, expected) == (before, known.of("m"))
    assert ["m"] * 5 == asked


async def test_engine_that_does_not_answer_is_asked_again_later() -> None:
    """A failure says nothing about the template, and is not repeated at once."""
    clock = FakeClock()
    asked: list[httpx.Request] = []

    def failing(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(500)

    known = templates(failing, clock)
    for seconds in (0.0, 0.0, FAILED_SECONDS):
        clock.advance(seconds)
        known.want(ENGINE, "m")
        await known.idle()

    assert NOT_KNOWN == known.of("m") == known.of(None)
    assert 2 == len(asked)


async def test_nobody_is_asked_about_no_model() -> None:
    """A request that names no model teaches nothing about one."""
    asked: list[str] = []
    known = templates(engine_of(chatml, asked), FakeClock())
    known.want(ENGINE, None)
    await known.idle()

    assert [] == asked


CLOCK = "Now: 2026-11-29 09:00:01"
RULES = {"role": "system", "content": f"{CLOCK}\nBe kind."}
USER = {"role": "user", "content": "hi"}
MOVED = {"role": "system", "content": f"<system-context>\n{CLOCK}\n</system-context>"}
KIND = {"role": "system", "content": "Be kind."}
TAIL = {"role": "system", "content": "rules"}
MOVE = {"volatile": [{"name": "clock", "detect": "Timestamp", "action": "Relocate"}], "canonicalize": "Pin"}


def relocated(messages: list[Any], **prompt: Any) -> Scene:
    """Return a chat whose clock moves, for an engine whose template takes a later system message."""
    return Scene(
        body={"model": "qwen", "messages": messages},
        policy=policy(prompt={**MOVE, "tail": {"source": "LastSystemMessage"}, **prompt}),
        takes_later_system=True,
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([RULES, USER], [KIND, MOVED, USER], id="behind-the-prefix"),
        pytest.param(
            [RULES, {"role": "user", "content": [{"type": "image_url"}]}],
            [KIND, MOVED, {"role": "user", "content": [{"type": "image_url"}]}],
            id="before-an-image",
        ),
        pytest.param(
            [RULES, {"role": "assistant", "content": "aye"}, USER],
            [
                KIND,
                {"role": "assistant", "content": "aye"},
                {"role": "user", "content": MOVED["content"] + "\n\nhi"},
            ],
            id="no-user-message-right-behind",
        ),
        pytest.param([RULES], [RULES], id="no-user-message"),
    ],
)
def test_line_moves_into_a_system_message(before: list[Any], after: list[Any]) -> None:
    """It stands between prefix and user, whatever the user's message holds."""
    canonicalized = relocated(before).canonicalize()

    assert canonicalized.document is not None
    assert after == json.loads(canonicalized.document.body)["messages"]


def test_moved_message_is_no_part_of_the_prefix() -> None:
    """Two clocks make one prefix and one conversation, and what is canonical stays as it is."""
    later = {**RULES, "content": RULES["content"].replace("09:00:01", "09:00:02")}
    one, two = (relocated([rules, USER, TAIL, USER]) for rules in (RULES, later))
    canonical = one.canonicalize().document
    assert canonical is not None
    again = replace(one, raw=canonical.body)
    plans = [scene.plan() for scene in (one, two, again)]
    chats = [plan.segmented.chat for plan in plans]

    assert 1 == len({chat and chat.prefix_id for chat in chats})
    assert 1 == len({plan.conversation for plan in plans})
    assert [(1, True)] * 3 == [(chat.dialogue.opening, chat.dialogue.has_moved) for chat in chats if chat]
    assert canonical.body == (again.canonicalize().document or canonical).body


@pytest.mark.parametrize("takes_later_system", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([], [], id="alone"),
        pytest.param([], [TAIL], id="before-other-rules"),
        pytest.param([TAIL], [TAIL], id="between-other-rules"),
    ],
)
def test_rules_that_an_application_marks_so_are_its_prefix(
    before: list[Any], after: list[Any], takes_later_system: bool
) -> None:
    """What begins with the mark and cannot have been moved is looked into, and belongs to the prefix."""
    own, left = ({**RULES, "content": "<system-context>\n" + one["content"]} for one in (RULES, KIND))
    tested = replace(relocated([*before, own, *after, USER]), takes_later_system=takes_later_system)
    planned = tested.plan()
    document, chat = planned.segmented.canonicalized.document, planned.segmented.chat
    assert document is not None and chat is not None
    messages = json.loads(document.body)["messages"]

    assert (len(before) + 1 + len(after), None) == (chat.dialogue.opening, chat.place)
    assert [*before, left, *after] == messages[: chat.dialogue.opening]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        pytest.param("FixedTail", [KIND, MOVED, USER, USER, TAIL], id="fixed-tail"),
        pytest.param("TailFirst", [KIND, TAIL, MOVED, USER, USER], id="tail-first"),
    ],
)
def test_layouts_keep_moved_lines_in_the_middle(layout: str, expected: list[Any]) -> None:
    """Whichever way the tail goes, what changes stays behind everything that does not."""
    composed = relocated([RULES, USER, TAIL, USER], layout=layout).compose()

    assert composed.body is not None
    assert expected == json.loads(composed.body)["messages"]
