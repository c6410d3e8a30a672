"""The other ways to the kill switch, through a whole gateway: file, signal, and failing reads."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import (
    ADMIN_TOKEN,
    SUPPORT_POLICY,
    WAIT_SECONDS_MAX,
    RunningGateway,
    eventually,
    eventually_ready,
    running_gateway,
)
from sternpost_fakes.gateway_process import gateway_process
from sternpost_gateway.settings import Settings
from sternpost_gateway.trips import FAILURES_MAX

POLICY = "agents/support"
TAIL = {"role": "system", "content": " ".join(f"rule{number}" for number in range(300))}
USER = {"role": "user", "content": "hi"}
CHAT = {"model": "qwen", "messages": [{"role": "system", "content": "You help ."}, USER, TAIL]}
KILL_PATH = "/sternpost/v1/kill"
BEARER = {"authorization": f"Bearer {ADMIN_TOKEN}"}
SECONDS_MAX = 1.0
"""Within which each way must work, where a test is about that."""


def with_kill_file(path: Path) -> Callable[[Settings], Settings]:
    """Return a change of settings that names a kill file, and the admin token."""
    return lambda settings: replace(settings, kill_file=path, admin_token=ADMIN_TOKEN)


async def ask(gateway: RunningGateway) -> httpx.Response:
    """Ask and return the answer."""
    return await gateway.client.post("/v1/chat/completions", json=CHAT, headers={"x-tenant-id": "acme"})


async def warm(gateway: RunningGateway, engine: FakeEngine) -> None:
    """Ask until reads hit."""
    await ask(gateway)
    await eventually(lambda: bool(engine.built))
    await ask(gateway)


def last_operation(engine: FakeEngine) -> str:
    """Return the operation that the last chat's hint asked for."""
    hint = json.loads(engine.chats[-1].body)["kv_transfer_params"]["sternpost"]
    return str(hint["op"])


async def kill_state(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return what the gateway says about its kill level."""
    response = await client.get(KILL_PATH, headers=BEARER)
    assert 200 == response.status_code, response.text
    state: dict[str, Any] = response.json()
    return state


async def eventually_level(client: httpx.AsyncClient, level: str) -> None:
    """Wait until a level counts for all."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while (await kill_state(client))["level"] != level:
            await asyncio.sleep(0.01)


async def eventually_latched(client: httpx.AsyncClient, *sources: str) -> None:
    """Wait until these sources have set something, and no others."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while {latch["source"] for latch in (await kill_state(client))["latches"]} != set(sources):
            await asyncio.sleep(0.01)


async def test_kill_file_counts_within_a_second_and_is_taken_back(tmp_path: Path) -> None:
    """A file that appears stops reads; when it goes, reads go on."""
    path = tmp_path / "kill"
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_kill_file(path)) as gateway,
    ):
        await warm(gateway, engine)
        operations = [last_operation(engine)]
        path.write_text("K1\nincident 4711")
        await asyncio.sleep(SECONDS_MAX)
        await ask(gateway)
        operations.append(last_operation(engine))
        counted = gateway.metric("sternpost_gateway_kills_total", level="NoSuffixReads", source="file")
        shown = gateway.metric("sternpost_gateway_kill_source_level", policy=POLICY, source="file")
        path.unlink()
        await asyncio.sleep(SECONDS_MAX)
        await ask(gateway)
        operations.append(last_operation(engine))

    assert ["read", "off", "read"] == operations
    assert (1.0, 1.0) == (counted, shown)


async def test_kill_file_counts_for_the_first_request(tmp_path: Path) -> None:
    """A file that is there at the start is read before anything is served."""
    path = tmp_path / "kill"
    path.write_text("PlainProxy")
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_kill_file(path)) as gateway,
    ):
        state = await kill_state(gateway.client)

    assert ("PlainProxy", "file") == (state["level"], state["latches"][0]["source"])


async def test_nonsense_in_the_kill_file_is_shown(tmp_path: Path) -> None:
    """The readiness page and a metric say what is wrong, and the level stays."""
    path = tmp_path / "kill"
    path.write_text("K1")
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_kill_file(path)) as gateway,
    ):
        path.write_text("K1 or so")
        await asyncio.sleep(SECONDS_MAX)
        kill: Any = (await gateway.details())["kill"]
        page = (await gateway.client.get("/metrics")).text

    assert ("NoSuffixReads", "--kill-file") == (kill["level"], kill["file"]["fault"]["path"])
    assert "sternpost_gateway_kill_file_faults 1.0" in page


async def test_every_source_is_shown(tmp_path: Path) -> None:
    """Who looks sees what each source says for each policy, and for all."""
    path = tmp_path / "kill"
    path.write_text("NoRewrite")
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_kill_file(path)) as gateway,
    ):
        await gateway.client.post(
            KILL_PATH, json={"level": "NoSuffixReads", "policy": POLICY}, headers=BEARER
        )
        state = await kill_state(gateway.client)
    said = {(item["policy"], item["source"]): item["level"] for item in state["sources"]}

    assert ("NoRewrite", "NoRewrite") == (said[None, "file"], said[POLICY, "file"])
    assert ("None", "NoSuffixReads") == (said[None, "http"], said[POLICY, "http"])
    assert {"policy", "switch", "http", "file", "signal", "state"} == {
        source for policy, source in said if policy == POLICY
    }
    assert (str(path), None, []) == (state["file"]["path"], state["file"]["fault"], state["trips"])


async def test_signals_set_and_take_back_their_own(tmp_path: Path) -> None:
    """SIGUSR1 stops reads, SIGUSR2 lets them go on; what HTTP has set is not theirs."""
    (tmp_path / "token").write_text(ADMIN_TOKEN)
    flags = ("--admin-token-file", str(tmp_path / "token"))
    async with (
        running_engine() as engine,
        gateway_process(tmp_path, engine.url, *flags) as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False) as client,
    ):
        await eventually_ready(client, 1)
        process.send_signal(signal.SIGUSR1)
        await eventually_level(client, "NoSuffixReads")
        await client.post(KILL_PATH, json={"level": "NewEpoch"}, headers=BEARER)
        process.send_signal(signal.SIGUSR2)
        await eventually_latched(client, "http")
        state = await kill_state(client)

    assert "NewEpoch" == state["level"]


async def test_killed_state_survives_a_killed_process(tmp_path: Path) -> None:
    """After SIGKILL a new process has what each source had set, and each takes back its own."""
    (tmp_path / "token").write_text(ADMIN_TOKEN)
    kill_file = tmp_path / "kill"
    flags = (
        *("--admin-token-file", str(tmp_path / "token")),
        *("--state", str(tmp_path / "state")),
        *("--kill-file", str(kill_file)),
    )
    async with running_engine() as engine:
        async with (
            gateway_process(tmp_path, engine.url, *flags) as (process, url),
            httpx.AsyncClient(base_url=url, trust_env=False) as client,
        ):
            await eventually_ready(client, 1)
            kill_file.write_text("NoRewrite")
            await eventually_level(client, "NoRewrite")
            await client.post(KILL_PATH, json={"level": "NewEpoch"}, headers=BEARER)
            process.send_signal(signal.SIGUSR1)
            await eventually_latched(client, "file", "http", "signal")
            process.kill()
            await process.wait()
        async with (
            gateway_process(tmp_path, engine.url, *flags) as (process, url),
            httpx.AsyncClient(base_url=url, trust_env=False) as client,
        ):
            restarted = await kill_state(client)
            kill_file.unlink()
            await eventually_level(client, "NewEpoch")
            await client.post(KILL_PATH, json={"level": "None"}, headers=BEARER)
            await eventually_level(client, "NoSuffixReads")
            process.send_signal(signal.SIGUSR2)
            await eventually_level(client, "None")

    assert "NoRewrite" == restarted["level"]
    assert {"http", "file", "signal"} == {latch["source"] for latch in restarted["latches"]}


async def test_failing_reads_trip_the_engine(tmp_path: Path) -> None:
    """After five errors in a row the engine gets no reads, and the prompt is what it was."""
    async with (
        running_engine() as engine,
        running_gateway(
            tmp_path, [engine.url], settings=lambda given: replace(given, admin_token=ADMIN_TOKEN)
        ) as gateway,
    ):
        await warm(gateway, engine)
        engine.faults.reply = Reply(status=500, pieces=(b"{}",))
        for _ in range(FAILURES_MAX):
            await ask(gateway)
        before = last_operation(engine)
        engine.faults.reply = None
        response = await ask(gateway)
        trip = (await kill_state(gateway.client))["trips"][0]
        tripped = (await gateway.client.get("/metrics")).text

    assert ("read", "off", "tripped") == (
        before,
        last_operation(engine),
        response.headers["x-sternpost-bypass"],
    )
    assert (engine.url, "5xx", True) == (trip["engine"], trip["reason"], 50 < trip["remaining_seconds"] <= 60)
    assert 1 == gateway.metric("sternpost_gateway_trips_total", engine=engine.url)
    assert "sternpost_gateway_engines_tripped 1.0" in tripped


async def test_kill_by_signal_is_quick_under_load(tmp_path: Path) -> None:
    """Within a second of the signal the last read has been sent, and no request has failed."""
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "support.yaml").write_text(SUPPORT_POLICY)
    async with (
        running_engine() as engine,
        gateway_process(tmp_path, engine.url) as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False) as client,
    ):
        await eventually_ready(client, 1)
        gateway = RunningGateway(url, policies, CollectorRegistry(), client)
        await warm(gateway, engine)
        statuses: list[int] = []
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                statuses.append((await ask(gateway)).status_code)

        workers = [asyncio.ensure_future(load()) for _ in range(4)]
        await eventually(lambda: len(statuses) > 20)
        process.send_signal(signal.SIGUSR1)
        begun = time.monotonic()
        await eventually(lambda: last_operation(engine) == "off", SECONDS_MAX)
        seconds = time.monotonic() - begun
        sent = len(engine.chats) + len(workers)
        await eventually(lambda: len(engine.chats) > sent + 20)
        stop.set()
        await asyncio.gather(*workers)
        operations = {
            json.loads(seen.body)["kv_transfer_params"]["sternpost"]["op"] for seen in engine.chats[sent:]
        }

    assert ({200}, {"off"}, True) == (set(statuses), operations, seconds < SECONDS_MAX)
