"""What a whole gateway learns from prompts, what it tells, and what it does about it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from sternpost_core.template import STABLE_PROMPTS_MIN
from sternpost_fakes.cases import CHAT, Outcome, Request, case, case_policy, run
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import SUPPORT_POLICY, RunningGateway, eventually, running_gateway
from sternpost_gateway.learning import JUDGED_EVERY
from sternpost_gateway.recurrence import NEW_MAX

POLICY = "agents/support"
LEARNED_POLICY = SUPPORT_POLICY.replace("LastSystemMessage", "Learned")
SYSTEM = {"role": "system", "content": "You help sailors ."}
RULES = [
    {"role": "system", "content": " ".join(f"rule{number}" for number in range(300))},
    {"role": "developer", "content": "Answer in one line ."},
]


def departures(outcome: Outcome, kind: str, guess: str) -> float:
    """Return how many departures were counted."""
    name = "sternpost_gateway_departures_total"
    return outcome.gateway.metric(name, policy=POLICY, kind=kind, guess=guess)


CASES = [
    pytest.param(
        "013",
        "history_diverged_from_generation at messages[1] char",
        ("history_diverged_from_generation", "Messages"),
        id="013",
    ),
    pytest.param("014", "content_form_flip at messages[1] char", ("content_form_flip", "Messages"), id="014"),
    pytest.param("015", "miss at messages[0].content[0]", ("miss", "MediaFirst"), id="015"),
    pytest.param("017", "miss at messages[0].content[1] char 33", ("miss", "Timestamp"), id="017"),
    pytest.param("001", "miss at messages[0] char 23", ("miss", "Timestamp"), id="001"),
    pytest.param("002", "miss at messages[0] char", ("miss", "Date"), id="002"),
]


@pytest.mark.parametrize(("name", "line", "labels"), CASES)
async def test_departure_of_a_case_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, line: str, labels: tuple[str, str]
) -> None:
    """The second request departs from the first: its place, kind and looks are told, and no word of it."""
    with caplog.at_level(logging.INFO, logger="sternpost_gateway"):
        outcome = await run(tmp_path, case(name), case_policy())
        await eventually(lambda: departures(outcome, *labels) >= 1)

    assert 1 == caplog.text.count(line)
    assert "tokens behind it" in caplog.text
    assert not any(text in caplog.text for text in ("order desk", "hello there", "Two and two", "row 17"))


@pytest.mark.parametrize("are_printed", [True, False], ids=["printed", "not-printed"])
async def test_010_replayed_ids_cost_where_the_template_prints_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, are_printed: bool
) -> None:
    """Ids are never rewritten; whether they are a miss is what the engine says, asked with made-up calls."""
    one, two = case("010")
    engine = FakeEngine()
    engine.faults.print_call_ids = are_printed
    policy = yaml.safe_dump(case_policy(canonicalize="Pin"))
    async with running_engine(engine), running_gateway(tmp_path, [engine.url], policy=policy) as gateway:
        await gateway.client.post(CHAT, content=one.body)
        await eventually(lambda: len(engine.posts("/tokenize")) == 5)
        with caplog.at_level(logging.INFO, logger="sternpost_gateway"):
            for request in (one, two):
                await gateway.client.post(CHAT, content=request.body)
        name = "sternpost_gateway_departures_total"
        counted = gateway.metric(name, policy=POLICY, kind="miss", guess="ToolCallId")

    assert [one.body, one.body, two.body] == [seen.body for seen in engine.chats]
    assert are_printed == counted == caplog.text.count("miss at messages[2].tool_calls[0].id char")


async def test_017_departure_of_a_session_is_counted_once(tmp_path: Path) -> None:
    """A prefix that is new departs from the policy's last, and from its session's, and is lost once."""
    requests = [Request(one.body, {"x-session-id": "s-17"}) for one in case("017")]
    outcome = await run(tmp_path, requests, case_policy())
    await eventually(lambda: departures(outcome, "miss", "Timestamp") >= 1)

    assert 1 == departures(outcome, "miss", "Timestamp")


async def test_017_finding_says_what_it_costs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log line has the place of the span and the tokens behind it, and so has the metric."""
    requests = case("017")
    with caplog.at_level(logging.INFO, logger="sternpost_gateway"):
        outcome = await run(tmp_path, requests, case_policy())
    body = requests[0].body
    expected = round((body.index(b'"role":"user"') - body.index(b"2026-11-29")) / 4)
    (line,) = [text for text in caplog.messages if "volatile Timestamp" in text]

    assert "messages[0].content[1] char 15, action Report, about " in line
    told = int(line.split("about ")[1].split()[0])
    assert abs(told - expected) < 20
    name = "sternpost_gateway_volatile_tokens_total"
    assert outcome.gateway.metric(name, policy=POLICY, detector="Timestamp") >= 2 * told - 2


async def test_009_version_is_the_child_of_the_one_before(tmp_path: Path) -> None:
    """A session's new tool makes a version that names the one it came from; another session's makes none."""
    requests = case("009")
    policy = yaml.safe_dump(case_policy(canonicalize="Pin"))
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=policy) as gateway:
        for request in requests:
            await gateway.client.post(CHAT, content=request.body, headers=dict(request.headers))
        other = requests[1].body.replace(b"order desk", b"other desk")
        await gateway.client.post(CHAT, content=other, headers={"x-session-id": "s-10"})
        (shown,) = (await gateway.client.get("/sternpost/v1/templates")).json()["policies"]

    versions = [(one["version"], one["parent"]) for one in shown["versions"]["prefix"]]
    assert [("v3", None), ("v2", "v1"), ("v1", None)] == versions


def asked(question: str, *, tail: list[dict[str, str]] = RULES) -> dict[str, Any]:
    """Return a chat that ends with the rules."""
    return {"model": "qwen", "messages": [SYSTEM, {"role": "user", "content": question}, *tail]}


async def ask(gateway: RunningGateway, count: int, **changes: Any) -> list[str | None]:
    """Ask so many questions, and return why nothing is reused each time."""
    reasons: list[str | None] = []
    for number in range(count):
        answer = await gateway.client.post(CHAT, json=asked(f"Question {number} ?", **changes))
        reasons.append(answer.headers.get("x-sternpost-bypass"))
    return reasons


async def test_learned_tail_is_used_and_withdrawn(tmp_path: Path) -> None:
    """Nothing is reused before 200 prompts; then the last two messages are, until too few end with them."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], policy=LEARNED_POLICY) as gateway,
    ):
        first = await ask(gateway, STABLE_PROMPTS_MIN)
        await ask(gateway, JUDGED_EVERY)
        await eventually(lambda: bool(engine.built))
        (reused,) = await ask(gateway, 1)
        (build,) = engine.builds
        hint = json.loads(build.body)["kv_transfer_params"]["sternpost"]
        sent = [json.loads(seen.body)["messages"] for seen in engine.chats]
        (shown,) = (await gateway.client.get("/sternpost/v1/templates")).json()["policies"]
        await ask(gateway, 40, tail=[])
        (withdrawn,) = await ask(gateway, 1)

    assert {"not_learned"} == set(first)
    assert reused is None
    assert hint["tail_tokens"] > 304
    assert all(
        messages == asked(f"Question {index % 200} ?")["messages"]
        for index, messages in enumerate(sent[:200])
    )
    assert (2, True) == (shown["tail"]["elements"], shown["template"]["stable"])
    assert "not_learned" == withdrawn


async def test_templates_show_places_and_no_words(tmp_path: Path) -> None:
    """What is learned is shown by ids, places and counts."""
    policy = yaml.safe_dump(case_policy())
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=policy) as gateway:
        for request in case("017"):
            await gateway.client.post(CHAT, content=request.body)
        answer = await gateway.client.get("/sternpost/v1/templates")
        (shown,) = answer.json()["policies"]
        stability = gateway.metric("sternpost_gateway_template_stability", policy=POLICY)

    assert "memory updated" not in answer.text and "kind" in shown["departures"][0]
    (found,) = shown["departures"]
    assert ("miss", "messages[0].content[1]", "Timestamp", 33, 1) == (
        found["kind"],
        found["path"],
        found["guess"],
        found["offset"],
        found["count"],
    )
    assert (2, False, None) == (shown["template"]["prompts"], shown["template"]["stable"], shown["tail"])
    assert stability == shown["template"]["stability"]


async def test_clock_in_the_tail_is_told_and_not_built_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its place is named; after a few tails that nobody has read again, engines compute no more of them."""
    count = 3 * NEW_MAX
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        with caplog.at_level(logging.INFO, logger="sternpost_gateway"):
            for second in range(count):
                content = f"Now: 2026-11-29 09:00:{second:02}\n{RULES[0]['content']}"
                tail = [{"role": "system", "content": content}]
                await gateway.client.post(CHAT, json=asked(f"Question {second} ?", tail=tail))
                await until_built(engine, min(second + 1, NEW_MAX))
        name = "sternpost_gateway_departures_total"
        await eventually(
            lambda: gateway.metric(name, policy=POLICY, kind="miss", guess="Timestamp") == count - 1
        )
        built = len(engine.builds)
        await gateway.client.post(CHAT, json=asked("And now ?", tail=tail))
        await until_built(engine, built + 1)

    assert NEW_MAX == built
    assert 1 == caplog.text.count("miss at messages[2] char 23, looks like Timestamp, about ")


async def until_built(engine: FakeEngine, count: int) -> None:
    """Wait until an engine has been asked for so many builds."""
    await eventually(lambda: len(engine.builds) >= count)
