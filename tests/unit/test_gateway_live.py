"""What changes while requests are served: policies, kill levels, the end of the process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import (
    ADMIN_TOKEN,
    SUPPORT_POLICY,
    RunningGateway,
    eventually,
    eventually_ready,
    running_gateway,
)
from sternpost_fakes.gateway_process import gateway_process
from sternpost_gateway.settings import Settings

POLICY = "agents/support"
TAIL = {"role": "system", "content": " ".join(f"rule{number}" for number in range(300))}
USER = {"role": "user", "content": "hi"}
CHAT = {"model": "qwen", "messages": [{"role": "system", "content": "You help ."}, USER, TAIL, USER]}
KILL_PATH = "/sternpost/v1/kill"
BEARER = {"authorization": f"Bearer {ADMIN_TOKEN}"}

SWITCH = """\
apiVersion: sternpost.dev/v1alpha1
kind: CacheKillSwitch
metadata: {name: everything}
spec: {level: LEVEL, selector: {}, reason: drill}
"""


def administered(settings: Settings) -> Settings:
    """Return settings with the admin interface."""
    return replace(settings, admin_token=ADMIN_TOKEN)


async def ask(gateway: RunningGateway) -> httpx.Response:
    """Ask and return the answer."""
    return await gateway.client.post("/v1/chat/completions", json=CHAT, headers={"x-tenant-id": "acme"})


async def warm(gateway: RunningGateway, engine: FakeEngine) -> None:
    """Ask until reads hit."""
    await ask(gateway)
    await eventually(lambda: bool(engine.built))
    response = await ask(gateway)
    assert "hit" == response.json()["usage"]["prompt_tokens_details"]["sternpost"]["reason"]


def operations(engine: FakeEngine) -> list[str | None]:
    """Return the operation that each chat's hint asked for, None without a hint."""
    bodies = [json.loads(seen.body) for seen in engine.chats]
    return [body.get("kv_transfer_params", {}).get("sternpost", {}).get("op") for body in bodies]


async def kill(gateway: RunningGateway, level: str, policy: str | None = None) -> dict[str, Any]:
    """Set a kill level over HTTP and return what the gateway says about it."""
    response = await gateway.client.post(
        KILL_PATH, json={"level": level, "policy": policy, "reason": "drill"}, headers=BEARER
    )
    assert 200 == response.status_code, response.text
    state: dict[str, Any] = response.json()
    return state


async def test_edit_is_live_within_a_second(tmp_path: Path) -> None:
    """A policy for another model counts for requests a second after its file was written."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        before = await ask(gateway)
        (gateway.policies / "support.yaml").write_text(SUPPORT_POLICY.replace("[qwen]", "[other]"))
        await asyncio.sleep(1.0)
        after = await ask(gateway)

        assert (POLICY, None) == (
            before.headers.get("x-sternpost-policy"),
            after.headers.get("x-sternpost-policy"),
        )


async def test_bad_edit_is_shown_and_changes_nothing(tmp_path: Path) -> None:
    """The fault, with its file and path, is on the readiness page; requests keep the old policy."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        (gateway.policies / "support.yaml").write_text(SUPPORT_POLICY.replace("FixedTail", "TailFixed"))
        await asyncio.sleep(1.0)
        details = await gateway.details()
        response = await ask(gateway)
        page = (await gateway.client.get("/metrics")).text

        assert ["support.yaml[0].spec.prompt.layout"] == [fault["path"] for fault in details["faults"]]  # type: ignore[attr-defined]
        assert (POLICY, [POLICY]) == (response.headers["x-sternpost-policy"], details["policies"])
        assert "sternpost_gateway_config_faults 1.0" in page


@pytest.mark.parametrize(
    ("level", "operation"),
    [("NoSuffixReads", "off"), ("NewEpoch", "off"), ("NoRewrite", None), ("PlainProxy", None)],
)
async def test_kill_by_file_is_live_within_a_second(
    tmp_path: Path, level: str, operation: str | None
) -> None:
    """A kill switch in the policy directory stops reads a second later."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await warm(gateway, engine)
        (gateway.policies / "kill.yaml").write_text(SWITCH.replace("LEVEL", level))
        await asyncio.sleep(1.0)
        await ask(gateway)

        assert ["read", operation] == operations(engine)[-2:]


async def test_kill_under_load_fails_no_request(tmp_path: Path) -> None:
    """Within a second of the kill nothing reads any more, and every request of the meantime is served."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=administered) as gateway,
    ):
        await warm(gateway, engine)
        statuses: list[int] = []
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                statuses.append((await ask(gateway)).status_code)

        workers = [asyncio.ensure_future(load()) for _ in range(4)]
        await eventually(lambda: len(statuses) > 20)
        await kill(gateway, "NoSuffixReads")
        sent = len(engine.chats)
        in_flight = len(workers)
        await eventually(lambda: len(engine.chats) > sent + 20)
        stop.set()
        await asyncio.gather(*workers)

        assert {200} == set(statuses)
        assert {"off"} == set(operations(engine)[sent + in_flight :])


async def test_plain_proxy_parses_nothing(tmp_path: Path) -> None:
    """At the highest level even a body that we would refuse reaches the engine."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=administered) as gateway,
    ):
        await kill(gateway, "PlainProxy")
        body = b'{"a":1,"a":2,"cache_salt":"x"}'
        await gateway.client.post("/v1/chat/completions", content=body)

        assert body == engine.chats[-1].body


async def test_kill_moves_to_a_new_epoch(tmp_path: Path) -> None:
    """After K2 the old tails are never read again, not even when everything is back on."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=administered) as gateway,
    ):
        await warm(gateway, engine)
        await kill(gateway, "NewEpoch")
        state = await kill(gateway, "None")
        await ask(gateway)
        await eventually(lambda: len(engine.built) == 2)

        assert {POLICY: 1} == state["epochs"]
        assert {0, 1} == {epoch for _, epoch, _ in engine.built}


async def test_kill_is_shown_counted_and_latched(tmp_path: Path) -> None:
    """Who looks sees the level and its reason, in the state, the metrics and after a restart."""
    state = tmp_path / "state"

    def kept(settings: Settings) -> Settings:
        return replace(administered(settings), state=state)

    async with running_engine() as engine:
        async with running_gateway(tmp_path, [engine.url], settings=kept) as gateway:
            answered = await kill(gateway, "NoSuffixReads", POLICY)
            counted = gateway.metric("sternpost_gateway_kills_total", level="NoSuffixReads", source="http")
            shown = gateway.metric("sternpost_gateway_kill_level", policy=POLICY)
        async with running_gateway(tmp_path, [engine.url], settings=kept) as gateway:
            restarted = (await gateway.client.get(KILL_PATH, headers=BEARER)).json()

    assert (True, 1.0, 1.0) == (answered["persisted"], counted, shown)
    assert ({POLICY: "NoSuffixReads"}, "drill") == (restarted["policies"], restarted["latches"][0]["reason"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 403, id="none"),
        pytest.param({"authorization": "Bearer wrong"}, 403, id="wrong"),
        pytest.param({"authorization": f"Basic {ADMIN_TOKEN}"}, 403, id="other-scheme"),
        pytest.param(BEARER, 200, id="right"),
    ],
)
async def test_kill_needs_the_token(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    """Only who has the token sees or sets the level."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=administered) as gateway,
    ):
        seen = await gateway.client.get(KILL_PATH, headers=headers)
        set_ = await gateway.client.post(KILL_PATH, json={"level": "None"}, headers=headers)

        assert [status, status] == [seen.status_code, set_.status_code]


async def test_kill_without_a_token_file_does_not_exist(tmp_path: Path) -> None:
    """Where no token is configured nobody can kill over HTTP, whatever they send."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        response = await gateway.client.post(KILL_PATH, json={"level": "None"}, headers=BEARER)

        assert 404 == response.status_code


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({"level": "Off"}, "level", id="unknown-level"),
        pytest.param({}, "level", id="no-level"),
        pytest.param({"level": "None", "policy": "agents/other"}, "policy", id="unknown-policy"),
        pytest.param({"level": "None", "policy": 3}, "policy", id="no-name"),
        pytest.param({"level": "None", "reason": 3}, "reason", id="no-reason"),
        pytest.param({"level": "None", "why": "x"}, "why", id="unknown-key"),
        pytest.param({"level": "NoRewrite", "force": "yes"}, "force", id="no-truth-value"),
    ],
)
async def test_wrong_kill_is_refused(tmp_path: Path, body: dict[str, Any], param: str) -> None:
    """A kill that cannot be meant is refused with its key, and nothing changes."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=administered) as gateway,
    ):
        response = await gateway.client.post(KILL_PATH, json=body, headers=BEARER)

        assert (400, param) == (response.status_code, response.json()["error"]["param"])


async def test_process_drains_at_its_end(tmp_path: Path) -> None:
    """On SIGTERM a stream in flight is served to its end, and the exit status is 0."""
    engine = FakeEngine(words=tuple("x" * 10), delay_seconds=0.1)
    async with (
        running_engine(engine),
        gateway_process(tmp_path, engine.url) as (started, url),
        httpx.AsyncClient(base_url=url, trust_env=False) as client,
    ):
        await eventually_ready(client, 1)
        received = b""
        async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as stream:
            async for piece in stream.aiter_raw():
                if not received:
                    os.kill(started.pid, signal.SIGTERM)
                received += piece
        started_at = time.monotonic()
        await started.wait()

        assert received.endswith(b"data: [DONE]\n\n")
        assert (0, True) == (started.returncode, time.monotonic() - started_at < 5)


async def test_drain_has_a_beginning_and_an_end(tmp_path: Path) -> None:
    """Not ready at once, but still serving; then no new connection; at last what goes on is cut."""
    engine = FakeEngine(words=tuple("x" * 600), delay_seconds=0.1)
    flags = ("--drain-delay-seconds", "2", "--drain-seconds", "1")
    async with (
        running_engine(engine),
        gateway_process(tmp_path, engine.url, *flags) as (started, url),
        httpx.AsyncClient(base_url=url, trust_env=False) as client,
    ):
        await eventually_ready(client, 1)
        async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as stream:
            reading = stream.aiter_raw()
            received = await anext(reading)
            os.kill(started.pid, signal.SIGTERM)
            async with asyncio.timeout(2):
                while (await client.get("/readyz")).status_code != 503:
                    await asyncio.sleep(0.02)
            served = await client.get("/v1/files")
            with pytest.raises(httpx.TransportError):
                async for piece in reading:
                    received += piece
        async with asyncio.timeout(10):
            await started.wait()
        with pytest.raises(httpx.ConnectError):
            await client.get("/healthz")

    assert (200, 0) == (served.status_code, started.returncode)
    assert 10 < received.count(b'"delta"') < 600 and b"[DONE]" not in received


async def test_bad_policies_at_the_start_are_all_named(tmp_path: Path) -> None:
    """A gateway that cannot take its policies ends with status 1 and every fault."""
    (tmp_path / "a.yaml").write_text(SUPPORT_POLICY.replace("FixedTail", "TailFixed"))
    (tmp_path / "b.yaml").write_text("kind: Secret")
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sternpost_core", "gateway", "--policies", str(tmp_path)),
        *("--engine", "http://127.0.0.1:9", "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await started.communicate()

    assert 1 == started.returncode
    assert b"a.yaml[0].spec.prompt.layout" in errors and b"b.yaml[0].kind" in errors
    assert b"Traceback" not in errors
