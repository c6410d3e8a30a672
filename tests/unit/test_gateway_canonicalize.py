"""The canonical form of a chat: what leaves the prefix, where it goes, and what is never touched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.kill import KillLevel
from sternpost_core.policy import VolatileAction
from sternpost_fakes.gateway_scene import Scene, policy
from sternpost_gateway.bounded import ENTRY_SIZE
from sternpost_gateway.canonicalize import FINDINGS_MAX, Canonicalized, Finding
from sternpost_gateway.receive import COMPLETIONS_PATH
from sternpost_gateway.tool_pins import ToolPins, ToolsOutcome
from sternpost_gateway.volatile import LINE_CHARS_MAX, PREFIX_CHARS_MAX, PREFIX_LINES_MAX, VolatileLines

CLOCK = "Now: 2026-11-29 09:00:01"
OTHER_CLOCK = "Now: 2026-11-30 10:00:02"
BILLING = "x-acme-billing-header: v=9.9.9; entry=cli; h=0a1b2;"
TICKET = "Ticket: AB-17"
RULES = "Be brief.\nCite the order."
OPENING_MARK, CLOSING_MARK = "<system-context>\n", "</system-context>\n\n"

MOVE_CLOCK = {"name": "clock", "detect": "Timestamp", "action": "Relocate"}
STRIP_BILLING = {"name": "billing", "detect": "BillingHeader", "action": "Strip"}
MOVE_TICKET = {"name": "ticket", "pattern": "^Ticket: [A-Z]+-[0-9]+$", "action": "Relocate"}
ALL_RULES = (MOVE_CLOCK, STRIP_BILLING, MOVE_TICKET)


def scene(
    messages: Any,
    *rules: dict[str, str],
    canonicalize: str = "Report",
    level: KillLevel = KillLevel.NONE,
    **body: Any,
) -> Scene:
    """Return a request and a policy with these rules."""
    prompt = {"canonicalize": canonicalize, "volatile": list(rules)}
    chosen = policy(prompt=prompt, suffixCache=None)
    return Scene(body={"model": "qwen", "messages": messages, **body}, policy=chosen, level=level)


def chat(system: Any, user: Any = "Where is order 17?") -> list[dict[str, Any]]:
    """Return a chat of a system and a user message."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def parts(*texts: str) -> list[dict[str, str]]:
    """Return text parts."""
    return [{"type": "text", "text": text} for text in texts]


def body_of(canonicalized: Canonicalized) -> Any:
    """Return the canonical body, decoded."""
    assert canonicalized.document is not None
    return json.loads(canonicalized.document.body)


def contents(canonicalized: Canonicalized) -> list[Any]:
    """Return what the canonical body's messages hold."""
    return [message["content"] for message in body_of(canonicalized)["messages"]]


def is_unchanged(tested: Scene) -> bool:
    """Say whether the canonical body is the client's, byte for byte."""
    canonicalized = tested.canonicalize()
    received = canonicalized.identified.received.document
    return canonicalized.document is received


@pytest.mark.parametrize(
    ("system", "user", "expected"),
    [
        pytest.param(f"{CLOCK}\n{RULES}", "Hi", [RULES, f"{CLOCK}\n|Hi"], id="first-line"),
        pytest.param(f"{RULES}\n{CLOCK}", "Hi", [RULES, f"{CLOCK}\n|Hi"], id="last-line"),
        pytest.param(f"{RULES}\n{CLOCK}\n", "Hi", [f"{RULES}\n", f"{CLOCK}\n|Hi"], id="last-line-ended"),
        pytest.param(f"a\n{CLOCK}\nb", "Hi", ["a\nb", f"{CLOCK}\n|Hi"], id="between"),
        pytest.param(
            f"a\n{CLOCK}\n{OTHER_CLOCK}", "Hi", ["a", f"{CLOCK}\n{OTHER_CLOCK}\n|Hi"], id="two-at-the-end"
        ),
        pytest.param(
            f"{CLOCK}\na\n{OTHER_CLOCK}\nb", "Hi", ["a\nb", f"{CLOCK}\n{OTHER_CLOCK}\n|Hi"], id="two-apart"
        ),
        pytest.param(CLOCK, "Hi", ["", f"{CLOCK}\n|Hi"], id="nothing-else"),
        pytest.param(f'"é\\\t{CLOCK}😀"\nb', "Hi", ["b", f'"é\\\t{CLOCK}😀"\n|Hi'], id="escapes"),
        pytest.param(f"{TICKET}\n{RULES}", "Hi", [RULES, f"{TICKET}\n|Hi"], id="pattern"),
        pytest.param(f"{TICKET}\r\n{RULES}", "Hi", [RULES, f"{TICKET}\r\n|Hi"], id="carriage-return"),
        pytest.param(f"a\r\n{CLOCK}", "Hi", ["a", f"{CLOCK}\n|Hi"], id="carriage-return-at-the-end"),
        pytest.param(parts("a", f"b\n{CLOCK}"), "Hi", [parts("a", "b"), f"{CLOCK}\n|Hi"], id="from-a-part"),
        pytest.param(f"{CLOCK}\na", parts("Hi", "b"), ["a", parts(f"{CLOCK}\n|Hi", "b")], id="into-a-part"),
        pytest.param(f"{CLOCK}\na", "", ["a", f"{CLOCK}\n|"], id="into-nothing"),
    ],
)
def test_line_moves_to_the_first_user_message(system: Any, user: Any, expected: list[Any]) -> None:
    """The line goes as it is, with its line break, into a marked block; everything else stays."""
    marked = json.loads(json.dumps(expected).replace("|", json.dumps(CLOSING_MARK)[1:-1]))
    moved = contents(scene(chat(system, user), *ALL_RULES).canonicalize())
    place = moved[1] if isinstance(moved[1], str) else moved[1][0]["text"]

    assert marked == json.loads(json.dumps(moved).replace(json.dumps(OPENING_MARK)[1:-1], ""))
    assert place.startswith(OPENING_MARK)


def test_lines_of_all_leading_messages_move() -> None:
    """Several leading messages are one prefix; a system message behind the user's is not of it."""
    messages = [
        {"role": "system", "content": f"{CLOCK}\na"},
        {"role": "developer", "content": f"b\n{TICKET}"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
        {"role": "system", "content": f"{CLOCK}\ne"},
        {"role": "user", "content": f"{CLOCK}\nf"},
    ]
    moved = f"{OPENING_MARK}{CLOCK}\n{TICKET}\n{CLOSING_MARK}d"

    assert ["a", "b", "c", moved, f"{CLOCK}\ne", f"{CLOCK}\nf"] == contents(
        scene(messages, *ALL_RULES).canonicalize()
    )


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([{"role": "system", "content": CLOCK}], id="no-user"),
        pytest.param(chat(CLOCK, [{"type": "image_url", "image_url": {}}, *parts("a")]), id="image-first"),
        pytest.param(chat(CLOCK, []), id="no-part"),
        pytest.param(chat(CLOCK, None), id="no-content"),
        pytest.param([{"role": "system", "content": CLOCK}, {"role": "user"}], id="content-missing"),
        pytest.param(chat(CLOCK, [{"type": "text", "text": None}]), id="odd-part"),
        pytest.param(chat(CLOCK, ["a"]), id="odd-parts"),
    ],
)
def test_line_without_a_place_to_go_stays(messages: Any) -> None:
    """Where the user's message does not begin with text the line is reported and the bytes stay."""
    tested = scene(messages, MOVE_CLOCK)

    assert is_unchanged(tested)
    assert (Finding("messages[0]", 0, "Timestamp", VolatileAction.REPORT),) == tested.canonicalize().findings


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        pytest.param(f"{BILLING}\n{RULES}", RULES, id="first-line"),
        pytest.param(f"{BILLING}\n{BILLING}\n{RULES}", RULES, id="two-lines"),
        pytest.param(parts(BILLING, RULES), parts("", RULES), id="first-part"),
        pytest.param(parts(BILLING, BILLING), parts("", BILLING), id="first-part-only"),
        pytest.param(f"{RULES}\n{BILLING}", f"{RULES}\n{BILLING}", id="last-line"),
        pytest.param(parts(RULES, BILLING), parts(RULES, BILLING), id="second-part"),
        pytest.param(
            [{"type": "image_url"}, *parts(BILLING)],
            [{"type": "image_url"}, *parts(BILLING)],
            id="behind-an-image",
        ),
        pytest.param(f" {BILLING}", f" {BILLING}", id="indented"),
        pytest.param(CLOCK, CLOCK, id="other-span"),
    ],
)
def test_only_a_leading_billing_header_is_stripped(system: Any, expected: Any) -> None:
    """A header goes from the very start of the first text, and from nowhere else."""
    assert [expected, "Hi"] == contents(scene(chat(system, "Hi"), STRIP_BILLING).canonicalize())


def test_header_behind_a_line_that_moves_is_stripped() -> None:
    """What is left after moving begins with the header."""
    moved = f"{OPENING_MARK}{CLOCK}\n{CLOSING_MARK}Hi"

    assert ["a", moved] == contents(scene(chat(f"{CLOCK}\n{BILLING}\na", "Hi"), *ALL_RULES).canonicalize())


@pytest.mark.parametrize(
    "tested",
    [
        pytest.param(scene(chat(f"{CLOCK}\n{BILLING}\n{TICKET}")), id="no-rules"),
        pytest.param(scene(chat(CLOCK), {**MOVE_CLOCK, "action": "Report"}), id="rule-that-reports"),
        pytest.param(scene(chat(CLOCK), *ALL_RULES, level=KillLevel.NO_REWRITE), id="killed"),
        pytest.param(scene(chat(TICKET + "7" * LINE_CHARS_MAX), MOVE_TICKET), id="pattern-on-a-long-line"),
        pytest.param(scene(chat(f"{CLOCK}\n" + "x" * PREFIX_CHARS_MAX), *ALL_RULES), id="large-prefix"),
        pytest.param(scene(chat(CLOCK + "\n" * PREFIX_LINES_MAX), *ALL_RULES), id="many-lines"),
        pytest.param(scene([{"role": "user", "content": CLOCK}], *ALL_RULES), id="user-only"),
        pytest.param(scene([], *ALL_RULES), id="no-messages"),
        pytest.param(scene(CLOCK, *ALL_RULES), id="odd-messages"),
        pytest.param(scene([CLOCK, {"role": "system", "content": CLOCK}], *ALL_RULES), id="odd-message"),
        pytest.param(scene(chat({"text": CLOCK}), *ALL_RULES), id="odd-content"),
        pytest.param(
            scene(chat([{"type": "thinking", "text": CLOCK}]), *ALL_RULES), id="part-of-another-type"
        ),
        pytest.param(
            Scene(
                body={"model": "qwen", "messages": chat(CLOCK)},
                policy=policy(
                    prompt={"volatile": [MOVE_CLOCK]},
                    suffixCache=None,
                    tenancy={"tenantFrom": {"jwtClaim": "t"}},
                ),
            ),
            id="policy-not-served",
        ),
        pytest.param(
            Scene(
                body={"model": "qwen", "messages": chat(CLOCK)},
                policy=policy(prompt={"volatile": [MOVE_CLOCK]}, suffixCache=None),
                path=COMPLETIONS_PATH,
            ),
            id="not-a-chat",
        ),
    ],
)
def test_bytes_stay_unless_a_rule_moves_them(tested: Scene) -> None:
    """Without a rule, below the kill level and beyond the limits, the body is the client's own."""
    assert is_unchanged(tested)


def test_every_span_is_reported_without_a_rule() -> None:
    """A policy without rules names place and looks of what it finds, and of nothing behind the prefix."""
    system = parts(RULES, f"memory updated 2026-11-29T09:00:00.120Z; 3 blocks\n{CLOCK}")
    found = scene(chat(system, CLOCK)).canonicalize().findings

    assert (
        Finding("messages[0].content[1]", 15, "Timestamp", VolatileAction.REPORT),
        Finding("messages[0].content[1]", 50, "Timestamp", VolatileAction.REPORT),
    ) == found


def test_findings_say_what_was_done() -> None:
    """What moved, what was stripped and what stayed are told apart."""
    found = scene(chat(f"{BILLING}\n{TICKET}\n{RULES}\non 2026-11-29"), *ALL_RULES).canonicalize().findings

    assert [
        ("BillingHeader", VolatileAction.STRIP),
        ("Pattern", VolatileAction.RELOCATE),
        ("Date", VolatileAction.REPORT),
    ] == [(finding.detector, finding.action) for finding in found]


def test_findings_are_bounded() -> None:
    """A prefix of nothing but clocks is told of so many times."""
    assert FINDINGS_MAX == len(scene(chat("\n".join([CLOCK] * 1000))).canonicalize().findings)


def test_remembered_lines_are_bounded() -> None:
    """However many lines differ, only so many are remembered, and what is found stays the same."""
    lines = VolatileLines(chars_max=10 * (ENTRY_SIZE + len(CLOCK)))
    for number in range(100):
        found = scene(chat(f"{CLOCK}{number:03}")).canonicalize(lines=lines).findings

        assert ["Timestamp"] == [finding.detector for finding in found]
        assert len(lines) <= 11


def test_rules_do_not_share_what_they_remember() -> None:
    """A line that one policy leaves where it is may move under another."""
    lines = VolatileLines()
    reported, moved = (
        scene(chat(f"{CLOCK}\na"), *rules).canonicalize(lines=lines) for rules in ((), (MOVE_CLOCK,))
    )

    assert (None, 4) == (reported.moved, len(lines)) and moved.moved is not None


def test_canonicalize_off_looks_at_named_spans_only() -> None:
    """With `Off`, tools are left alone and only what a rule names is found."""
    tested = scene(chat(f"{CLOCK}\non 2026-11-29"), MOVE_CLOCK, canonicalize="Off", tools=[{"b": 1}])
    canonicalized = tested.canonicalize()

    assert ["Timestamp"] == [finding.detector for finding in canonicalized.findings]
    assert canonicalized.tools is None


BETA, ALPHA = ({"type": "function", "function": {"name": name}} for name in ("beta", "alpha"))


@pytest.mark.parametrize(
    ("canonicalize", "fields", "outcome", "names"),
    [
        pytest.param("Pin", {}, ToolsOutcome.PINNED, ["alpha", "beta"], id="pin"),
        pytest.param("Report", {}, ToolsOutcome.DIFFERS, ["beta", "alpha"], id="report"),
        pytest.param("Off", {}, None, ["beta", "alpha"], id="off"),
        pytest.param(
            "Pin", {"tool_choice": "required"}, ToolsOutcome.GUIDED, ["beta", "alpha"], id="required"
        ),
        pytest.param("Pin", {"tool_choice": "auto"}, ToolsOutcome.PINNED, ["alpha", "beta"], id="auto"),
        pytest.param(
            "Pin",
            {"tool_choice": {"type": "function", "function": {"name": "beta"}}},
            ToolsOutcome.PINNED,
            ["alpha", "beta"],
            id="by-name",
        ),
    ],
)
def test_tools_take_their_form_where_the_policy_pins(
    canonicalize: str, fields: Any, outcome: ToolsOutcome | None, names: list[str]
) -> None:
    """Only `Pin` changes bytes; `Report` says what it would have done."""
    tested = scene(chat("a"), canonicalize=canonicalize, tools=[BETA, ALPHA], **fields)
    canonicalized = tested.canonicalize()

    assert outcome is canonicalized.tools
    assert names == [tool["function"]["name"] for tool in body_of(canonicalized)["tools"]]


def test_reserved_fields_are_found_whatever_the_policy() -> None:
    """The fields that only the gateway sets go from every request."""
    tested = scene(chat("a"), level=KillLevel.NO_REWRITE, cache_salt="x", prefix_cache=False)

    assert {"cache_salt", "prefix_cache"} == tested.canonicalize().removed


def test_conversation_does_not_depend_on_moved_lines() -> None:
    """A clock that moves into the first user message changes neither pod nor salt nor version."""
    prompt = {"volatile": [MOVE_CLOCK], "tail": {"source": "LastSystemMessage"}}
    sessions = policy(prompt=prompt, tenancy={"isolation": "Session"})
    plans = [
        Scene(body={"model": "qwen", "messages": chat(f"{clock}\n{RULES}", user)}, policy=sessions).plan()
        for clock, user in ((CLOCK, "a"), (OTHER_CLOCK, "a"), (CLOCK, "b"))
    ]
    first, later, other = ((one.conversation, one.salt, one.versions) for one in plans)

    assert first == later
    assert None not in first and first[0] != other[0] and first[1] != other[1]


LINES = st.sampled_from(
    ["", "Be brief.", CLOCK, f"so {OTHER_CLOCK}", TICKET, BILLING, 'é"\\', "\t", "on 2026-11-29"]
)
TEXTS = st.lists(LINES, min_size=1, max_size=5).map("\n".join)
CONTENTS = TEXTS | st.lists(TEXTS, max_size=3).map(lambda texts: parts(*texts))
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer"]), "content": CONTENTS}), max_size=3
)


def lines_of(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return every line that is not empty of all messages, sorted."""
    texts = [
        text
        for message in messages
        for text in (
            [message["content"]]
            if isinstance(message["content"], str)
            else [part["text"] for part in message["content"]]
        )
    ]
    return sorted(line for text in texts for line in text.split("\n") if line)


@given(MESSAGES, CONTENTS, st.booleans())
def test_relocation_keeps_every_line_exactly_once(prefix: list[Any], user: Any, ascii_only: bool) -> None:
    """All lines arrive, once each, and the marks around what moved are all that is new."""
    messages = [*prefix, {"role": "user", "content": user}]
    tested = scene(messages, MOVE_CLOCK, MOVE_TICKET)
    raw = json.dumps(tested.body, ensure_ascii=ascii_only).encode()
    canonicalized = replace(tested, raw=raw).canonicalize()
    arrived = body_of(canonicalized)["messages"]
    marks = [OPENING_MARK.strip(), CLOSING_MARK.strip()] if canonicalized.moved else []

    assert lines_of(arrived) == sorted(lines_of(messages) + marks)
    assert [message["role"] for message in messages] == [message["role"] for message in arrived]


@given(MESSAGES, CONTENTS, st.permutations([ALPHA, BETA]), st.booleans())
def test_canonical_form_is_its_own_canonical_form(
    prefix: list[Any], user: Any, tools: list[Any], ascii_only: bool
) -> None:
    """Canonicalizing twice is canonicalizing once."""
    messages = [*prefix, {"role": "user", "content": user}]
    tested = scene(messages, *ALL_RULES, canonicalize="Pin", tools=tools)
    pins = ToolPins()
    raw = json.dumps(tested.body, ensure_ascii=ascii_only).encode()
    once = replace(tested, raw=raw).canonicalize(pins)
    assert once.document is not None
    twice = replace(tested, raw=once.document.body).canonicalize(pins)

    assert twice.document is not None and once.document.body == twice.document.body
    if once.moved is not None:
        block = once.document.body[once.moved.start : once.moved.end]
        assert json.dumps(OPENING_MARK)[1:-1].encode() == block[: len(OPENING_MARK) + 1]
        assert block.endswith(json.dumps(CLOSING_MARK)[1:-1].encode())
