"""Engines that die or hang, as processes and on real sockets; what needs virtual time is simulated."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import QUICK, eventually, running_gateway, with_timeouts
from sternpost_running.engine_process import EngineProcess, running_engine_processes
from sternpost_running.gateway import GatewayProcess, running_gateways
from sternpost_running.kubernetes import wait_for

ENGINES: Final = 4
STREAMS: Final = 16
WORDS: Final = 40
DELAY_SECONDS: Final = 0.05
"""A stream of so many words takes two seconds: time enough to kill an engine in its midst."""

EJECTED_SECONDS_MAX: Final = 6.0
"""Two seconds, and what a busy machine adds."""

TIMEOUTS_MAX: Final = 5
"""After so many in a row nothing goes to an engine any more."""


def body(number: int, *, stream: bool) -> dict[str, Any]:
    """Return a request of a conversation of its own."""
    messages = [{"role": "user", "content": f"conversation {number}"}]
    return {"model": "demo", "stream": stream, "messages": messages}


async def read_stream(client: httpx.AsyncClient, number: int, begun: asyncio.Semaphore) -> bytes:
    """Read a stream to its end, however it ends; `begun` is released at its first piece."""
    got = b""
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body(number, stream=True)) as response:
            async for piece in response.aiter_raw():
                if not got:
                    begun.release()
                got += piece
    except httpx.RemoteProtocolError:
        # A stream that was cut ends with its connection.
        pass
    return got


def ready_engines(gateway: GatewayProcess) -> list[str]:
    """Return the engines that the gateway believes to be ready."""
    return [engine["url"] for engine in gateway.details().get("engines", ()) if engine["ready"]]


async def test_f1_engine_killed_within_streams_costs_only_its_streams(tmp_path: Path) -> None:
    """
    Its streams end with an error and without an end, nothing is sent twice, and soon nothing goes there.

    All others end well, and what comes afterwards finds an engine.
    """
    policies = tmp_path / "policies"
    policies.mkdir()
    flags = ("--words", str(WORDS), "--delay-seconds", str(DELAY_SECONDS))
    with running_engine_processes(ENGINES, *flags) as engines:
        named = [flag for engine in engines for flag in ("--engine", engine.url)]
        with running_gateways(tmp_path, 1, "--policies", str(policies), *named) as (gateway,):
            await asyncio.to_thread(wait_for, lambda: ENGINES == len(ready_engines(gateway)), "all are ready")
            streams = await _streams_with_a_death(gateway, engines)
            await asyncio.to_thread(
                wait_for,
                lambda: engines[0].url not in ready_engines(gateway),
                "nothing more goes there",
                EJECTED_SECONDS_MAX,
            )
            after = [
                gateway.client.post("/v1/chat/completions", json=body(n, stream=False)) for n in range(8)
            ]
            metrics = gateway.client.get("/metrics").text

    cut = [got for got in streams if b"[DONE]" not in got]
    assert 0 < len(cut) < STREAMS
    assert all(b'"code": "upstream_cut"' in got for got in cut)
    assert all(WORDS == got.count(b'"delta"') for got in streams if got not in cut)
    assert "sternpost_gateway_retries_total 0.0" in metrics
    assert [200] * len(after) == [answer.status_code for answer in after]
    assert "sternpost_gateway_in_flight 0.0" in metrics


async def _streams_with_a_death(gateway: GatewayProcess, engines: Sequence[EngineProcess]) -> list[bytes]:
    """Open streams, kill the first engine when all have begun, and return what each got."""
    begun = asyncio.Semaphore(0)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=30) as client:
        streams = [asyncio.ensure_future(read_stream(client, number, begun)) for number in range(STREAMS)]
        for _ in streams:
            await begun.acquire()
        engines[0].process.send_signal(signal.SIGKILL)
        return await asyncio.gather(*streams)


async def test_f2_engine_that_never_answers_is_ejected_after_five_timeouts(tmp_path: Path) -> None:
    """Its health check passes all the time; others answer meanwhile, and nothing is left waiting."""
    timeouts = with_timeouts(replace(QUICK, first_byte_seconds=0.3))
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running_engine()) for _ in range(2)]
        urls = [engine.url for engine in engines]
        gateway = await stack.enter_async_context(running_gateway(tmp_path, urls, settings=timeouts))
        engines[0].faults.hang = True
        statuses: list[int] = []
        while gateway.metric("sternpost_gateway_ejections_total") == 0:
            assert len(statuses) < 20 * TIMEOUTS_MAX, "it is ejected in the end"
            answer = await gateway.client.post(
                "/v1/chat/completions", json=body(len(statuses), stream=False), timeout=10
            )
            statuses.append(answer.status_code)
        sent = len(engines[0].chats)
        after = [
            (await gateway.client.post("/v1/chat/completions", json=body(n, stream=False))).status_code
            for n in range(10)
        ]
        await eventually(lambda: gateway.metric("sternpost_gateway_in_flight") == 0)

        assert TIMEOUTS_MAX == statuses.count(504)
        assert {200, 504} == set(statuses)
        assert ([200] * 10, sent) == (after, len(engines[0].chats))
        assert 0 == gateway.metric("sternpost_gateway_cold_waiting")


async def test_f2_timeout_is_told_in_openais_shape(tmp_path: Path) -> None:
    """A client reads which engine's fault it was from a stable code."""
    timeouts = with_timeouts(replace(QUICK, first_byte_seconds=0.2))
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=timeouts) as gateway,
    ):
        engine.faults.hang = True
        answer = await gateway.client.post("/v1/chat/completions", json=body(0, stream=False))

    assert (504, "upstream_timeout") == (answer.status_code, json.loads(answer.content)["error"]["code"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_f3_engine_that_is_frozen_for_a_moment_loses_no_answer(tmp_path: Path, stream: bool) -> None:
    """An engine that stands still and goes on is slow, and nothing else."""
    policies = tmp_path / "policies"
    policies.mkdir()
    with (
        running_engine_processes(1, "--words", "10", "--delay-seconds", "0.05") as (engine,),
        running_gateways(tmp_path, 1, "--policies", str(policies), "--engine", engine.url) as (gateway,),
    ):
        await asyncio.to_thread(wait_for, lambda: ready_engines(gateway), "it is ready")
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=30) as client:
            asking = [
                asyncio.ensure_future(client.post("/v1/chat/completions", json=body(n, stream=stream)))
                for n in range(6)
            ]
            for number in (signal.SIGSTOP, signal.SIGCONT) * 3:
                engine.process.send_signal(number)
                await asyncio.sleep(0.15)
            answers = await asyncio.gather(*asking)

    assert [200] * 6 == [answer.status_code for answer in answers]
    assert all(b"[DONE]" in answer.content for answer in answers) is stream
