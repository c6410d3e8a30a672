"""A gateway process exports its traces to a real endpoint, and names them in its log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import httpx

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import eventually
from sternpost_fakes.gateway_process import gateway_process
from sternpost_fakes.traces import running_collector

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
GONE_SECONDS_MAX: Final = 20.0
"""Within which a gateway ends whose collector does not answer, on a busy machine."""

EXPORT_SECONDS_MAX: Final = 20.0
"""The last spans are exported when the gateway ends, at the latest."""


async def test_spans_and_log_lines_share_the_trace_of_the_client(tmp_path: Path) -> None:
    """With the packages that are shipped, over HTTP, by protobuf; the end of the gateway loses nothing."""
    engine = FakeEngine()
    async with running_collector() as (collector, place), running_engine(engine):
        flags = ("--otlp-endpoint", place, "--log-format", "json")
        async with gateway_process(tmp_path, engine.url, *flags) as (process, url):
            await _ask(url, engine)
            process.terminate()
            assert process.stderr is not None
            lines = [json.loads(line) async for line in process.stderr]
            assert 0 == await process.wait()
        await eventually(lambda: len(collector.spans()) == 2, EXPORT_SECONDS_MAX)

    assert {"/v1/traces"} == set(collector.paths)
    assert {("sternpost-gateway", "chat qwen", TRACE)} == {
        (service, span.name, span.trace_id.hex()) for service, span in collector.spans()
    }
    assert ("r-2", TRACE) == _ids(next(line for line in lines if "cut its answer" in line["message"]))


async def test_a_collector_that_is_gone_holds_up_nothing(tmp_path: Path) -> None:
    """Neither requests nor the gateway's end: what it does not take is dropped."""
    engine = FakeEngine()
    async with running_collector() as (_, place):
        pass
    async with (
        running_engine(engine),
        gateway_process(tmp_path, engine.url, "--otlp-endpoint", place) as (process, url),
    ):
        await _ask(url, engine)
        process.terminate()
        async with asyncio.timeout(GONE_SECONDS_MAX):
            assert process.stderr is not None
            text = (await process.stderr.read()).decode()
            assert 0 == await process.wait()

    assert 2 == len(engine.chats)
    assert "the last spans were not taken" in text
    assert "Where is the door?" not in text


async def _ask(url: str, engine: FakeEngine) -> None:
    """Send two requests of one trace, the second of which is cut."""
    body = {"model": "qwen", "messages": [{"role": "user", "content": "Where is the door?"}]}
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        async with asyncio.timeout(EXPORT_SECONDS_MAX):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
        for number, reply in ((1, None), (2, Reply(cut=True, pieces=(b"{",)))):
            engine.faults.reply = reply
            headers = {"traceparent": f"00-{TRACE}-b7ad6b716920333{number}-01", "x-request-id": f"r-{number}"}
            try:
                await client.post("/v1/chat/completions", json=body, headers=headers)
            except httpx.RemoteProtocolError:
                assert number == 2


def _ids(line: dict[str, Any]) -> tuple[str | None, str | None]:
    return line.get("request_id"), line.get("trace_id")
