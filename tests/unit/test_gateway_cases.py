"""Faults seen in the field, sent through a whole gateway; the requests are in `tests/cases`."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from sternpost_core.errors import PolicyError
from sternpost_core.policy_parse import parse
from sternpost_fakes.cases import (
    CASES,
    CHAT,
    MOVE_CLOCK,
    MOVE_DATE,
    STRIP_BILLING,
    Outcome,
    Request,
    case,
    case_policy,
    run,
)
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import running_gateway

ALL_CASES = sorted(path.stem for path in CASES.glob("*.json"))

REFUSED = {"026", "034"}
"""Cases with requests that nobody may pass on."""

CHANGED = {"030"}
"""Cases with a field that never passes."""


def systems(outcome: Outcome) -> list[Any]:
    """Return what the first messages hold, as the engine got them."""
    return [body["messages"][0]["content"] for body in outcome.decoded]


def tools_bytes(body: bytes) -> bytes:
    """Return the bytes of the tools, which stand last in the cases' bodies."""
    return body[body.index(b'"tools":') :]


@pytest.mark.parametrize("name", [name for name in ALL_CASES if name not in REFUSED | CHANGED])
async def test_default_policy_changes_no_byte(tmp_path: Path, name: str) -> None:
    """A policy that only reports sends every request of every case on as it came."""
    outcome = await run(tmp_path, case(name), case_policy())

    assert [request.body for request in outcome.sent] == outcome.seen


async def test_001_clock_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The clock is reported once, by place and class, and its text is nowhere."""
    with caplog.at_level(logging.INFO, logger="sternpost_gateway"):
        outcome = await run(tmp_path, case("001"), case_policy())

    assert 1 == outcome.spans("Timestamp")
    assert 1 == caplog.text.count("volatile Timestamp at messages[0] char 0")
    assert "2026-11-29" not in caplog.text and "order desk" not in caplog.text


def one_system_message() -> FakeEngine:
    """Return an engine whose chat template takes a system message at the beginning only."""
    engine = FakeEngine()
    engine.faults.refuse_later_system = True
    return engine


async def test_001_clock_moves_into_the_middle(tmp_path: Path) -> None:
    """The prefix is equal for both requests, each clock arrives once and verbatim, the user's text stays."""
    outcome = await run(tmp_path, case("001"), case_policy(MOVE_CLOCK), engine=one_system_message())
    clocks = ["Now: 2026-11-29 09:00:01", "Now: 2026-11-29 09:00:02"]
    users = [body["messages"][1]["content"] for body in outcome.decoded]

    assert 1 == len(set(systems(outcome)))
    assert [1, 1] == [body.decode().count(clock) for body, clock in zip(outcome.seen, clocks, strict=True)]
    assert all(clock in user for user, clock in zip(users, clocks, strict=True))
    assert all(user.endswith("</system-context>\n\nWhere is order 17?") for user in users)
    assert ["prefix=v1"] * 2 == [answer.headers["x-sternpost-version"] for answer in outcome.answers]


async def test_001_clock_moves_into_a_message_of_its_own(tmp_path: Path) -> None:
    """Where the engine's template takes a later system message, the clock keeps the system's authority."""
    engine = FakeEngine()
    one, two = case("001")
    policy = yaml.safe_dump(case_policy(MOVE_CLOCK))
    async with running_engine(engine), running_gateway(tmp_path, [engine.url], policy=policy) as gateway:
        await gateway.client.post(CHAT, content=one.body)
        async with asyncio.timeout(5):
            while b'{"role":"system","content":"<system-context>' not in engine.chats[-1].body:
                await gateway.client.post(CHAT, content=one.body)
        answers = [await gateway.client.post(CHAT, content=request.body) for request in (one, two)]
        messages = [json.loads(seen.body)["messages"] for seen in engine.chats[-2:]]
        asked = [seen.body for seen in engine.posts("/tokenize")]

    assert messages[0][0] == messages[1][0] and "Now:" not in messages[0][0]["content"]
    assert [
        {"role": "system", "content": f"<system-context>\nNow: 2026-11-29 09:00:0{second}\n</system-context>"}
        for second in (1, 2)
    ] == [one_message[1] for one_message in messages]
    assert [one.decoded["messages"][1]] * 2 == [one_message[2] for one_message in messages]
    assert ["prefix=v1"] * 2 == [answer.headers["x-sternpost-version"] for answer in answers]
    assert not any(b"Where is order" in body for body in asked)
    assert 5 == len([body for body in asked if b"order desk" not in body])


async def test_002_date_moves_into_the_middle(tmp_path: Path) -> None:
    """Midnight changes nothing in front of the user's message."""
    outcome = await run(tmp_path, case("002"), case_policy(MOVE_DATE))

    assert 1 == len(set(systems(outcome)))
    assert 1 == outcome.spans("Date", "Relocate")
    assert ["prefix=v1"] * 2 == [answer.headers["x-sternpost-version"] for answer in outcome.answers]


async def test_002_date_that_stays_makes_one_new_version(tmp_path: Path) -> None:
    """Without relocation the version changes at midnight, once."""
    one, two = case("002")
    outcome = await run(tmp_path, [one, two, two], case_policy())

    assert ["prefix=v1", "prefix=v2", "prefix=v2"] == [
        answer.headers["x-sternpost-version"] for answer in outcome.answers
    ]


@pytest.mark.parametrize("rules", [(), (MOVE_CLOCK,), (MOVE_CLOCK, STRIP_BILLING)], ids=len)
async def test_003_needed_time_arrives(tmp_path: Path, rules: tuple[dict[str, str], ...]) -> None:
    """Whatever the policy, the time is in the prompt exactly once, as it was."""
    outcome = await run(tmp_path, case("003"), case_policy(*rules, canonicalize="Pin"))

    assert 1 == outcome.seen[0].count(b"17:12:40")


def test_003_policy_that_strips_times_is_refused() -> None:
    """Only what has no meaning may be stripped."""
    with pytest.raises(PolicyError, match=r"volatile\[0\].action: Strip is not allowed"):
        parse(case_policy({**MOVE_CLOCK, "action": "Strip"}))


async def test_004_billing_header_is_stripped_in_front_only(tmp_path: Path) -> None:
    """Two requests that differ in the header become equal; a quoted and a later header stay."""
    outcome = await run(tmp_path, case("004"), case_policy(STRIP_BILLING))
    one, two, quoted, later = outcome.seen

    assert one == two and b"billing-header" not in one
    assert [outcome.sent[2].body, outcome.sent[3].body] == [quoted, later]
    assert (1, 1) == (outcome.spans("BillingHeader", "Strip"), outcome.spans("BillingHeader"))


async def test_005_tools_in_another_order_take_the_first(tmp_path: Path) -> None:
    """The first order is kept for the second request; two tools of one name keep theirs."""
    first, second, *others = case("005")
    outcome = await run(tmp_path, [first, second, *others], case_policy(canonicalize="Pin"))

    assert first.body == outcome.seen[0]
    assert tools_bytes(first.body) == tools_bytes(outcome.seen[1])
    assert (
        second.body[: -len(tools_bytes(second.body))] == outcome.seen[1][: -len(tools_bytes(outcome.seen[1]))]
    )
    assert [request.body for request in others] == outcome.seen[2:]
    assert len(others) == outcome.lists("duplicate_tool_name")


async def test_005_named_tool_choice_arrives(tmp_path: Path) -> None:
    """A tool that is chosen by name is still chosen."""
    first, second, *_ = case("005")
    choice = {"type": "function", "function": {"name": "delta_write"}}
    chosen = Request(json.dumps({"tool_choice": choice, **second.decoded}).encode(), {})
    outcome = await run(tmp_path, [first, chosen], case_policy(canonicalize="Pin"))

    assert choice == outcome.decoded[1]["tool_choice"]
    assert outcome.decoded[0]["tools"] == outcome.decoded[1]["tools"]


async def test_007_schema_takes_its_first_form(tmp_path: Path) -> None:
    """Members in another order take the first form; arguments in another order are another tool."""
    first, second, third = case("007")
    outcome = await run(tmp_path, [first, second, third], case_policy(canonicalize="Pin"))

    assert first.body == outcome.seen[0] == outcome.seen[1] != second.body
    assert third.body == outcome.seen[2]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param(None, ["alpha_search", "delta_write", "beta_fetch"], id="session"),
        pytest.param({}, ["alpha_search", "beta_fetch", "delta_write"], id="no-session"),
    ],
)
async def test_009_new_tool_follows_the_old(
    tmp_path: Path, headers: dict[str, str] | None, expected: list[str]
) -> None:
    """A session's tools stay in place, byte for byte; without a session the order is by name."""
    requests = [Request(one.body, one.headers if headers is None else headers) for one in case("009")]
    outcome = await run(tmp_path, requests, case_policy(canonicalize="Pin"))

    assert requests[0].body == outcome.seen[0]
    assert expected == [tool["function"]["name"] for tool in outcome.decoded[1]["tools"]]
    shared = tools_bytes(outcome.seen[0]).removesuffix(b"]}")
    assert (headers is None) == tools_bytes(outcome.seen[1]).startswith(shared)


@pytest.mark.parametrize("name", ["010", "011", "013", "014", "015", "031", "032"])
async def test_bytes_that_must_not_be_touched_are_not(tmp_path: Path, name: str) -> None:
    """Calls, reasoning, forms, media, guided schemas and spelled numbers arrive as sent, even when pinned."""
    outcome = await run(tmp_path, case(name), case_policy(MOVE_CLOCK, STRIP_BILLING, canonicalize="Pin"))

    assert [request.body for request in outcome.sent] == outcome.seen


@pytest.mark.parametrize("name", [name for name in ALL_CASES if name not in REFUSED])
async def test_arguments_in_history_arrive_as_they_are(tmp_path: Path, name: str) -> None:
    """No policy changes a character of any tool call of any case."""
    outcome = await run(
        tmp_path, case(name), case_policy(MOVE_CLOCK, MOVE_DATE, STRIP_BILLING, canonicalize="Pin")
    )

    assert [arguments(request.decoded) for request in outcome.sent] == [
        arguments(body) for body in outcome.decoded
    ]


def arguments(body: Any) -> list[str]:
    """Return the arguments of all tool calls of a request."""
    calls = (call for message in body["messages"] for call in message.get("tool_calls") or ())
    return [call["function"]["arguments"] for call in calls]


async def test_017_later_part_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second of three parts is named, with its offset; the answer is the engine's alone."""
    with caplog.at_level(logging.INFO, logger="sternpost_gateway"):
        outcome = await run(tmp_path, case("017"), case_policy())

    assert 1 == outcome.spans("Timestamp")
    assert 1 == caplog.text.count("volatile Timestamp at messages[0].content[1] char 15")
    assert {"id", "object", "created", "model", "choices", "usage"} == set(outcome.answers[1].json())
