"""Tail reuse from end to end: learned, built once, read after any middle, and never across tenants."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import RunningGateway, eventually, running_gateway

POLICY = "agents/support"
SYSTEM = {"role": "system", "content": "You help sailors ."}
TAIL = {"role": "system", "content": " ".join(f"rule{number}" for number in range(300))}


def chat(question: str, **fields: Any) -> dict[str, Any]:
    """Return a chat whose tail stands before the last message."""
    return {
        "model": "qwen",
        "messages": [
            SYSTEM,
            {"role": "user", "content": "Ahoy"},
            TAIL,
            {"role": "user", "content": question},
        ],
        **fields,
    }


async def ask(gateway: RunningGateway, question: str, tenant: str = "acme", **fields: Any) -> httpx.Response:
    """Ask and return the answer."""
    headers = {"x-tenant-id": tenant}
    response = await gateway.client.post(
        "/v1/chat/completions", json=chat(question, **fields), headers=headers
    )
    assert 200 == response.status_code, response.text
    return response


async def warm(gateway: RunningGateway, tenant: str = "acme") -> None:
    """Ask until the tail is built."""
    before = gateway.metric("sternpost_gateway_builds_total", policy=POLICY, outcome="built")
    await ask(gateway, "Warm ?", tenant)
    await eventually(
        lambda: gateway.metric("sternpost_gateway_builds_total", policy=POLICY, outcome="built") > before
    )


def reported(response: httpx.Response) -> dict[str, Any]:
    """Return the engine's report in an answer."""
    report: dict[str, Any] = response.json()["usage"]["prompt_tokens_details"]["sternpost"]
    return report


async def test_tail_is_built_once_and_read_afterwards(tmp_path: Path) -> None:
    """The first request finds nothing; after the build, others are predicted and reported hits."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        first = await ask(gateway, "Where is north ?")
        await eventually(lambda: bool(engine.built))
        later = [await ask(gateway, f"And where is {number} ?") for number in range(3)]

        assert ("tail_unknown", "0") == (
            first.headers["x-sternpost-bypass"],
            first.headers["x-sternpost-reuse"],
        )
        assert ["hit"] * 3 == [reported(response)["reason"] for response in later]
        assert 1 == len(engine.builds)
        assert str(reported(later[0])["suffix_tokens"]) == later[0].headers["x-sternpost-reuse"]
        assert all("x-sternpost-bypass" not in response.headers for response in later)
        assert (POLICY, "prefix=v1,tail=v1") == (
            later[0].headers["x-sternpost-policy"],
            later[0].headers["x-sternpost-version"],
        )


async def test_build_contains_no_word_of_a_user(tmp_path: Path) -> None:
    """A build's prompt is the scaffold and the tail, under the salt and epoch that reads have."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await warm(gateway)
        await ask(gateway, "Where is north ?")
        build, read = json.loads(engine.builds[0].body), json.loads(engine.chats[-1].body)
        hint, read_hint = (body["kv_transfer_params"]["sternpost"] for body in (build, read))
        scaffold = {"messages": [SYSTEM, {"role": "user", "content": ""}], "add_generation_prompt": False}
        opening = {"messages": [SYSTEM], "add_generation_prompt": False}
        whole = {"messages": [SYSTEM, {"role": "user", "content": ""}, TAIL]}

        assert engine.render(whole) == build["prompt"]
        assert len(engine.render(scaffold)) == hint["prefix_tokens"]
        assert len(build["prompt"]) == hint["prefix_tokens"] + hint["tail_tokens"]
        assert build["cache_salt"] == read["cache_salt"]
        assert len(engine.render(opening)) + len(("<start>", "user")) == hint["insert"]
        assert {key: hint[key] for key in ("tail_tokens", "scaffold", "epoch", "mode", "correction")} == {
            key: read_hint[key] for key in ("tail_tokens", "scaffold", "epoch", "mode", "correction")
        }
        assert not any(b"Warm" in seen.body for seen in (*engine.builds, *engine.posts("/tokenize")))


async def test_tenants_do_not_share(tmp_path: Path) -> None:
    """Another tenant's request finds nothing and has the tail built for itself."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await warm(gateway)
        other = await ask(gateway, "Where is north ?", tenant="globex")
        await eventually(lambda: len(engine.built) == 2)

        assert "not_built" == reported(other)["reason"] == other.headers["x-sternpost-bypass"]
        assert 2 == len({json.loads(build.body)["cache_salt"] for build in engine.builds})


async def test_followers_of_a_build_do_not_wait(tmp_path: Path) -> None:
    """Requests that come during the build are answered exactly, at once."""
    engine = FakeEngine(build_seconds=0.5)
    async with running_engine(engine), running_gateway(tmp_path, [engine.url]) as gateway:
        await ask(gateway, "First ?")
        await eventually(lambda: len(engine.builds) == 1)
        followers = await asyncio.gather(*(ask(gateway, f"Follower {number} ?") for number in range(5)))
        still_building = not engine.built

        assert still_building and ["building"] * 5 == [
            item.headers["x-sternpost-bypass"] for item in followers
        ]
        await eventually(lambda: bool(engine.built))
        assert 1 == len(engine.builds)


async def test_restarted_engine_is_noticed_by_its_report(tmp_path: Path) -> None:
    """After a restart one request finds nothing, and the tail is built again when its interval is over."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await warm(gateway)
        engine.restart("batch-2")
        missed = await ask(gateway, "First after the restart ?")
        again = await ask(gateway, "Second ?")
        await eventually(lambda: bool(engine.built))

        assert "not_built" == reported(missed)["reason"] == again.headers["x-sternpost-bypass"]


async def test_failed_build_backs_off(tmp_path: Path) -> None:
    """A pool that is full is not asked again with every request."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.refuse_build = True
        await ask(gateway, "First ?")
        await eventually(
            lambda: gateway.metric("sternpost_gateway_builds_total", policy=POLICY, outcome="pool_full") == 1
        )
        followers = [await ask(gateway, "Next ?") for _ in range(5)]

        assert 1 == len(engine.builds)
        assert {"not_built"} == {response.headers["x-sternpost-bypass"] for response in followers}


async def test_refusing_template_is_remembered(tmp_path: Path) -> None:
    """A template that refuses is asked once for each purpose; requests go on without hints."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        engine.faults.refuse_template = True
        await ask(gateway, "First ?")
        await eventually(
            lambda: gateway.metric("sternpost_gateway_templates_total", outcome="tail_refused") == 1
        )
        asked = len(engine.posts("/tokenize"))
        second = await ask(gateway, "Second ?")
        # The tokens of what comes again are for people to see.
        await eventually(lambda: len(engine.posts("/tokenize")) == asked + 1)
        for _ in range(3):
            await ask(gateway, "Third ?")

        assert "tail_refused" == second.headers["x-sternpost-bypass"]
        assert asked + 1 == len(engine.posts("/tokenize"))
        assert b"kv_transfer_params" not in engine.chats[-1].body


async def test_engine_without_the_plugin_is_served_without_hints(tmp_path: Path) -> None:
    """Requests reach an engine without the plugin, with nothing that it would not know."""
    engine = FakeEngine(plugin=False)
    async with running_engine(engine), running_gateway(tmp_path, [engine.url]) as gateway:
        response = await ask(gateway, "Where is north ?")

        assert "no_plugin" == response.headers["x-sternpost-bypass"]
        assert b"kv_transfer_params" not in engine.chats[0].body
        assert [] == engine.builds
        assert 1 == gateway.metric("sternpost_gateway_engine_plugin", engine=engine.url, plugin="absent")


async def test_unsupported_engine_is_served_without_hints(tmp_path: Path) -> None:
    """A plugin that refuses the engine's configuration is as good as none, and says why."""
    engine = FakeEngine(supported=False)
    async with running_engine(engine), running_gateway(tmp_path, [engine.url]) as gateway:
        response = await ask(gateway, "Where is north ?")
        details = await gateway.details()

        assert "unsupported" == response.headers["x-sternpost-bypass"]
        assert "hybrid attention" in str(details["engines"])


async def test_requests_follow_the_tail(tmp_path: Path) -> None:
    """Of two engines the one that holds the tail gets the requests."""
    async with (
        running_engine() as one,
        running_engine() as two,
        running_gateway(tmp_path, [one.url, two.url]) as gateway,
    ):
        await warm(gateway)
        holder = one if one.built else two
        for number in range(10):
            await ask(gateway, f"Question {number} ?")

        assert 10 <= len(holder.chats) and 11 == len(one.chats) + len(two.chats)


async def test_tokens_and_bypasses_are_counted(tmp_path: Path) -> None:
    """Metrics say where prompt tokens came from, and why a request went without."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await warm(gateway)
        hit = reported(await ask(gateway, "Where is north ?"))

        assert hit["suffix_tokens"] == gateway.metric(
            "sternpost_gateway_prompt_tokens_total", policy=POLICY, source="suffix"
        )
        assert 1 == gateway.metric("sternpost_gateway_bypasses_total", policy=POLICY, reason="tail_unknown")
        assert 2 == gateway.metric("sternpost_gateway_requests_total", policy=POLICY, outcome="2xx")


async def test_headers_can_be_turned_off(tmp_path: Path) -> None:
    """Who does not want to be told is not told."""
    async with (
        running_engine() as engine,
        running_gateway(
            tmp_path, [engine.url], settings=lambda given: replace(given, response_headers=False)
        ) as gateway,
    ):
        response = await ask(gateway, "Where is north ?")

        assert [] == [name for name in response.headers if name.startswith("x-sternpost-")]


async def test_client_may_turn_reuse_off(tmp_path: Path) -> None:
    """One request without reuse says so to the engine, and its switch stays here."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await warm(gateway)
        response = await ask(gateway, "Where is north ?", prefix_cache=False)
        sent = json.loads(engine.chats[-1].body)

        assert ("client_off", "off") == (response.headers["x-sternpost-bypass"], reported(response)["reason"])
        assert "prefix_cache" not in sent
        assert sent["cache_salt"] != json.loads(engine.chats[0].body)["cache_salt"]


async def test_a_tail_of_another_tenant_is_counted_and_the_engine_reads_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once is enough: the next request is exact, and the log names the request and no tenant."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await warm(gateway)
        own = await ask(gateway, "Mine ?")
        counted = gateway.metric("sternpost_gateway_isolation_violations_total", policy=POLICY)
        engine.faults.foreign_tails = True
        await ask(gateway, "Whose ?")
        after = await ask(gateway, "And now ?")
        violations = gateway.metric("sternpost_gateway_isolation_violations_total", policy=POLICY)

    assert ("hit", 0, 1) == (reported(own)["reason"], counted, violations)
    assert ("tripped", "off") == (after.headers["x-sternpost-bypass"], reported(after)["reason"])
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert "read a tail of another tenant or session" in line and "acme" not in line
