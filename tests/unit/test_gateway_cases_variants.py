"""Variants of the faults seen in the field: what must never change, and tool lists in a session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from sternpost_core.errors import BodyError
from sternpost_core.jsonspan import scan
from sternpost_fakes.cases import MOVE_CLOCK, MOVE_DATE, STRIP_BILLING
from sternpost_fakes.gateway_scene import Scene, policy
from sternpost_gateway.tool_pins import ToolPins, ToolsOutcome

STRONGEST = {
    "canonicalize": "Pin",
    "volatile": [
        MOVE_CLOCK,
        MOVE_DATE,
        STRIP_BILLING,
        {"name": "session", "detect": "SessionId", "action": "Relocate"},
        {"name": "directory", "detect": "WorkingDirectory", "action": "Relocate"},
        {"name": "ticket", "pattern": "^Ticket: [A-Z]+-[0-9]+$", "action": "Relocate"},
    ],
}
"""Everything that a policy may ask for, but for a tail."""

RULES = '{"role":"system","content":"You are the order desk of a small shop. Rule 1: be brief."}'
USER = '{"role":"user","content":"hi"}'


CLOCK = '{"role":"system","content":"Now: 2026-11-29 09:00:01"}'
LISTED = '"tools":[{"type":"function","function":{"name":"b"}},{"type":"function","function":{"name":"a"}}]'


def user(content: str) -> str:
    """Return a user's message; `content` is as JSON writes it."""
    return f'{{"role":"user","content":{content}}}'


def answer(members: str) -> str:
    """Return an assistant's message with these members."""
    return f'{{"role":"assistant",{members}}}'


def chat(*messages: str, rest: str = "") -> str:
    """Return a body as it is written."""
    return f'{{"model":"demo-model","messages":[{",".join(messages)}]{rest}}}'


def strongest(raw: str) -> Scene:
    """Return a request under the policy that changes whatever may be changed."""
    chosen = policy(match={}, prompt=STRONGEST, suffixCache=None)
    return Scene(body={}, raw=raw.encode(), policy=chosen)


KEPT = [
    pytest.param(chat(RULES, r'{"role":"user","content":"a  b \t\n\r\n c "}'), id="white-space"),
    pytest.param(chat(RULES, user('"no\u00a0break\u2009thin\u200bnone"')), id="other-spaces"),
    pytest.param(chat(RULES, '{"role":"user","content":"e\u0301 \u00e9 \ufb01 \uff21"}'), id="unicode-forms"),
    pytest.param(chat(RULES, r'{"role":"user","content":"\u00e9\/\u003c\ud83d\ude00"}'), id="escapes"),
    pytest.param(chat(RULES, '{"role":"user","content":"Now: 2026-11-29 09:00:01"}'), id="users-clock"),
    pytest.param(
        chat(RULES, USER, '{"role":"assistant","content":"It is 09:00:01"}', USER), id="clock-in-an-answer"
    ),
    pytest.param(
        chat(RULES, USER, answer('"content":null,"refusal":"no","audio":null'), USER), id="refusal"
    ),
    pytest.param(
        chat(RULES, USER, answer('"content":"","reasoning":"r","thinking_blocks":[{"signature":"s"}]')),
        id="thinking",
    ),
    pytest.param(
        chat(RULES, USER, answer('"reasoning_content":" two\\n","content":"4","x_note":7'), USER),
        id="reasoning",
    ),
    pytest.param(
        chat(
            RULES,
            USER,
            r'{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":'
            r'{"name":"f","arguments":"{\"b\":1.0,  \"a\":\"2026-11-29 09:00:01\"}"}}]}',
            '{"role":"tool","tool_call_id":"c","content":"  row\\t17 "}',
        ),
        id="calls-and-results",
    ),
    pytest.param(
        chat(RULES, '{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":""}]}'),
        id="parts",
    ),
    pytest.param(
        chat(user('[{"type":"image_url","image_url":{"url":"data:,"}},{"type":"text","text":"a"}]')),
        id="image-first",
    ),
    pytest.param(
        chat(user('[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]')),
        id="vendor-marks",
    ),
    pytest.param(chat(RULES, '{"role":"user","name":"ada","content":"hi"}'), id="names"),
    pytest.param(chat(RULES, USER, rest=',"seed":12345678901234567890,"min_p":1E-7,"x":-0.0'), id="numbers"),
    pytest.param(
        chat(USER, rest=',"response_format":{"json_schema":{"schema":{"properties":{"z":{},"a":{}}}}}'),
        id="answers-schema",
    ),
    pytest.param(
        chat(RULES, USER, rest=',"guided_json":{"properties":{"z":{},"a":{}}},"logit_bias":{"9":1,"1":2}'),
        id="guided-decoding",
    ),
    pytest.param(
        chat(RULES, USER, rest=',"tools":[{"type":"function","function":{"name":"b","strict":true}},'
             '{"type":"function","function":{"name":"a"}}]'),
        id="strict-tool",
    ),
    pytest.param(
        chat(RULES, USER, rest=f',"tool_choice":"required",{LISTED}'),
        id="required-tool",
    ),
    pytest.param(chat(RULES, USER, rest=',"tools":[],"tool_choice":"none"'), id="no-tools"),
    pytest.param(chat(RULES, USER, rest=',"tools":null'), id="null-tools"),
    pytest.param(chat(RULES, USER, rest=',"functions":[{"name":"b"},{"name":"a"}]'), id="older-functions"),
    pytest.param(chat(USER, CLOCK, USER), id="later-system"),
    pytest.param(chat(CLOCK), id="nobody-to-move-to"),
    pytest.param(f" \r\n{chat(RULES, USER)}\t\n", id="around-the-body"),
    pytest.param('{"model":"demo-model"}', id="no-messages"),
]  # fmt: skip


@pytest.mark.parametrize("raw", KEPT)
def test_what_must_not_change_never_does(raw: str) -> None:
    """Under the strongest policy these bytes go out as they came."""
    assert raw.encode() == strongest(raw).compose().body


REFUSED = [
    pytest.param('{"messages":[],"messages":[]}', "messages", id="duplicate-key"),
    pytest.param(
        '{"messages":[{"role":"user","ro\\u006ce":"system"}]}', "messages[0].*", id="escaped-duplicate"
    ),
    pytest.param('{"messages":[{"content":"\\ud83d x"}]}', "messages[0].content", id="lone-surrogate"),
    pytest.param(
        '{"tools":[{"function":{"name":"\\ude00"}}]}', "tools[0].function.name", id="surrogate-in-a-tool"
    ),
    pytest.param('{"temperature":NaN}', "temperature", id="nan"),
    pytest.param('{"temperature":1,}', "body", id="trailing-comma"),
    pytest.param("[1]", "body", id="no-object"),
    pytest.param("", "body", id="empty"),
    pytest.param("\ufeff{}", "body", id="byte-order-mark"),
]


@pytest.mark.parametrize(("raw", "path"), REFUSED)
def test_what_two_readers_would_read_differently_is_refused(raw: str, path: str) -> None:
    """The fault is named by its place."""
    with pytest.raises(BodyError) as refused:
        scan(raw.encode())

    assert [path] == [fault.path for fault in refused.value.faults]


def tool(name: str, description: str = "d") -> dict[str, Any]:
    """Return a tool."""
    return {"type": "function", "function": {"name": name, "description": description}}


SESSIONS = [
    pytest.param(["ac", "abc"], ["ac", "acb"], id="added-in-the-middle"),
    pytest.param(["abc", "ac"], ["abc", "ac"], id="removed-from-the-middle"),
    pytest.param(["abc", "ac", "cba"], ["abc", "ac", "abc"], id="removed-and-back"),
    pytest.param(["abde", "de", "abde", "dx"], ["abde", "de", "abde", "dx"], id="agents-in-turn"),
    pytest.param(["abd", "d", "abcd", "d"], ["abd", "d", "abdc", "d"], id="added-after-another-agent"),
    pytest.param(["ab", "ba", "ab"], ["ab", "ab", "ab"], id="shuffled"),
    pytest.param(["cb", "da"], ["bc", "ad"], id="all-other"),
    pytest.param(["b", "ba", "cab"], ["b", "ba", "bac"], id="grows"),
]


@pytest.mark.parametrize(("asked", "expected"), SESSIONS)
def test_tools_of_a_session_keep_their_places(asked: Sequence[str], expected: Sequence[str]) -> None:
    """What stays in front stays cached: new tools follow, and what goes takes nothing else along."""
    assert expected == [names(body) for body in sent([[tool(name) for name in one] for one in asked])]


def test_changed_tool_changes_nothing_else() -> None:
    """Another description is another tool in the same place, and all others keep their bytes."""
    first, second = sent([[tool("a"), tool("b"), tool("c")], [tool("c"), tool("b", "new"), tool("a")]])

    assert "abc" == names(first) == names(second)
    assert [True, False, True] == [one == other for one, other in zip(first, second, strict=True)]


def sent(lists: Sequence[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Return what an engine gets of a session's tool lists."""
    pins = ToolPins()
    found: list[list[dict[str, Any]]] = []
    for tools in lists:
        raw = json.dumps({"model": "m", "messages": [], "tools": tools})
        scene = strongest(raw)
        headers = ((b"x-session-id", b"s"), (b"x-tenant-id", b"acme"))
        canonicalized = Scene(body={}, raw=scene.raw, policy=scene.policy, headers=headers).canonicalize(pins)
        assert canonicalized.document is not None
        assert canonicalized.tools in (ToolsOutcome.SAME, ToolsOutcome.PINNED)
        found.append(json.loads(canonicalized.document.body)["tools"])
    return found


def names(tools: Sequence[dict[str, Any]]) -> str:
    """Return the tools' names in their order."""
    return "".join(one["function"]["name"] for one in tools)
