"""Many streams at once, and mixed traffic whose clients leave at random: nothing is lost or left over."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import SUPPORT_POLICY
from sternpost_running.engine_process import running_engine_processes
from sternpost_running.gateway import GatewayProcess, running_gateways
from sternpost_running.kubernetes import wait_for
from sternpost_running.process_facts import MIB, rss_bytes, sockets

STREAMS: Final = int(os.environ.get("STERNPOST_LOAD_STREAMS", "200"))
"""At once; the full size is 1,000."""

MIXED_SECONDS: Final = float(os.environ.get("STERNPOST_LOAD_SECONDS", "8"))
"""Of mixed traffic; the full length is 3,600."""

STREAMS_FULL: Final = 1000
GROWTH_BYTES_MAX: Final = 150 * MIB
"""What a thousand slow streams may add to the memory of a gateway."""

GROWTH_BYTES_MIN: Final = 40 * MIB
"""What is allowed at any size: the allocator's own steps are as large as a few streams."""

WORDS: Final = 12
OPENING_MAX: Final = 32
"""Streams that are being opened at once: more would overrun what the kernel holds until it is accepted."""

WORD_SECONDS: Final = (6.0 + STREAMS / 20) / WORDS
"""Slow enough for all streams to be open at once, on a busy machine, too."""

WARM_STREAMS: Final = 20
"""Before memory is measured, so that what a gateway loads at its first streams does not count."""

RATE: Final = 12.0
"""Requests per second of the mixed traffic."""

SEED: Final = 14
SETTLED_SECONDS_MAX: Final = 30.0
"""Within which counters and sockets are where they were; idle connections to an engine last 4 s."""

SECONDS_MAX: Final = MIXED_SECONDS + STREAMS / 4 + 120.0

pytestmark = pytest.mark.timeout(SECONDS_MAX)

CHAT: Final = "/v1/chat/completions"


def body(number: int, *, stream: bool) -> bytes:
    """Return a request of the policy's model, in a session of its own."""
    messages = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": f"question {number}"},
        {"role": "system", "content": " ".join(f"rule{index}" for index in range(300))},
    ]
    return json.dumps({"model": "qwen", "stream": stream, "messages": messages}).encode()


def headers(number: int) -> dict[str, str]:
    """Return the headers of a request."""
    return {"content-type": "application/json", "x-tenant-id": f"t{number % 3}", "x-session-id": f"s{number}"}


def session_for(gateway: GatewayProcess) -> aiohttp.ClientSession:
    """Return a client that opens as many connections as it is asked to."""
    return aiohttp.ClientSession(
        gateway.url, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    )


@dataclass(slots=True)
class Streams:
    """Streams that are open at once; `most` is how many there have been."""

    session: aiohttp.ClientSession
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENING_MAX))
    open: int = 0
    most: int = 0

    async def read(self, number: int) -> bytes:
        """Open a stream when its turn has come, and read it to its end."""
        async with AsyncExitStack() as stack:
            async with self.opening:
                request = self.session.post(CHAT, data=body(number, stream=True), headers=headers(number))
                response = await stack.enter_async_context(request)
                got = await response.content.readany()
            self.open += 1
            self.most = max(self.most, self.open)
            got += await response.read()
            self.open -= 1
            return got


async def stream(session: aiohttp.ClientSession, number: int) -> bytes:
    """Read a stream to its end."""
    request = session.post(CHAT, data=body(number, stream=True), headers=headers(number))
    async with request as response:
        return await response.read()


async def highest(process: int, during: asyncio.Future[Any]) -> int:
    """Return the most memory that a process has held while something went on."""
    most = 0
    while not during.done():
        most = max(most, rss_bytes(process))
        await asyncio.sleep(0.2)
    return most


def policies_in(folder: Path) -> tuple[str, str]:
    """Write the policies, and return the flags that name them."""
    policies = folder / "policies"
    policies.mkdir()
    (policies / "support.yaml").write_text(SUPPORT_POLICY)
    return "--policies", str(policies)


async def until_ready(gateway: GatewayProcess) -> None:
    """Wait until the gateway has found its engine, which may run in this very loop."""

    def is_ready() -> bool:
        return any(engine["ready"] for engine in gateway.details().get("engines", ()))

    await asyncio.to_thread(wait_for, is_ready, "the engine is ready")


async def test_slow_streams_are_all_whole_and_take_little_memory(tmp_path: Path) -> None:
    """On one worker, under a policy: every stream gets every word and its end."""
    # In a process of its own the engine accepts connections however busy this one is.
    with running_engine_processes(1, "--words", str(WORDS), "--delay-seconds", str(WORD_SECONDS)) as (
        engine,
    ):
        starting = running_gateways(tmp_path, 1, *policies_in(tmp_path), "--engine", engine.url)
        with starting as (gateway,):
            await until_ready(gateway)
            async with session_for(gateway) as session:
                await asyncio.gather(*map(Streams(session).read, range(WARM_STREAMS)))
                before = rss_bytes(gateway.process.pid)
                at_once = Streams(session)
                reading = asyncio.gather(*map(at_once.read, range(STREAMS)))
                most = await highest(gateway.process.pid, reading)
                streams = await reading

    whole = [got for got in streams if WORDS == got.count(b'"delta"') and got.endswith(b"data: [DONE]\n\n")]
    allowed = max(GROWTH_BYTES_MIN, GROWTH_BYTES_MAX * STREAMS // STREAMS_FULL)
    print(f"{STREAMS} streams: {(most - before) / MIB:.1f} MiB more")
    assert (STREAMS, STREAMS) == (len(whole), at_once.most)
    assert most - before <= allowed


async def ask_whole(session: aiohttp.ClientSession, chance: random.Random, number: int) -> str:
    """Ask for a whole answer."""
    request = session.post(CHAT, data=body(number, stream=False), headers=headers(number))
    async with request as response:
        await response.read()
        return f"whole {response.status}"


async def ask_stream(session: aiohttp.ClientSession, chance: random.Random, number: int) -> str:
    """Read a stream to its end."""
    got = await stream(session, number)
    return "stream" if got.endswith(b"data: [DONE]\n\n") else "lost"


async def leave_stream(session: aiohttp.ClientSession, chance: random.Random, number: int) -> str:
    """Leave within a stream, after some of its words."""
    request = session.post(CHAT, data=body(number, stream=True), headers=headers(number))
    async with request as response:
        for _ in range(chance.randrange(WORDS)):
            await response.content.readany()
        response.close()
    return "left within"


async def leave_early(session: aiohttp.ClientSession, chance: random.Random, number: int) -> str:
    """Leave at a random moment, mostly before the first byte."""
    with suppress(TimeoutError):
        async with asyncio.timeout(chance.random() * 0.2):
            await stream(session, number)
    return "left early"


async def leave_upload(session: aiohttp.ClientSession, chance: random.Random, number: int) -> str:
    """Break an upload off."""
    host, port = str(session._base_url).removeprefix("http://").rstrip("/").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/files HTTP/1.1\r\nhost: h\r\ncontent-length: 5000\r\n\r\nabc")
    await asyncio.sleep(chance.random() * 0.1)
    writer.transport.abort()
    return "upload left"


KINDS: Final = (ask_whole, ask_stream, ask_stream, leave_stream, leave_stream, leave_early, leave_upload)


async def mixed_traffic(gateway: GatewayProcess, seconds: float) -> Counter[str]:
    """Send requests of all kinds at random moments, and return how they ended."""
    chance = random.Random(SEED)
    asking: set[asyncio.Task[str]] = set()
    ended: Counter[str] = Counter()
    until, number = time.monotonic() + seconds, 0
    async with session_for(gateway) as session:
        while time.monotonic() < until:
            asking.add(asyncio.create_task(chance.choice(KINDS)(session, chance, number)))
            number += 1
            await asyncio.sleep(chance.expovariate(RATE))
            done = {task for task in asking if task.done()}
            ended.update(task.result() for task in done)
            asking -= done
        ended.update(await asyncio.gather(*asking))
    return ended


async def test_mixed_traffic_with_disconnects_leaves_nothing_behind(tmp_path: Path) -> None:
    """Afterwards no request is in flight, no socket is open that was not before."""
    engine = FakeEngine(words=tuple(f"word{n}" for n in range(WORDS)), delay_seconds=0.05)
    async with running_engine(engine):
        starting = running_gateways(tmp_path, 1, *policies_in(tmp_path), "--engine", engine.url)
        with starting as (gateway,):
            await until_ready(gateway)
            at_rest = await settled_sockets(gateway)
            ended = await mixed_traffic(gateway, MIXED_SECONDS)
            await asyncio.to_thread(
                wait_for, lambda: 0 == in_flight(gateway), "none in flight", SETTLED_SECONDS_MAX
            )
            await asyncio.to_thread(
                wait_for,
                lambda: sockets(gateway.process.pid) <= at_rest,
                "no socket is left over",
                SETTLED_SECONDS_MAX,
            )
            metrics = gateway.client.get("/metrics").text
            log = gateway.log

    print(f"{MIXED_SECONDS:g} s of mixed traffic: {dict(ended)}")
    assert {"whole 200", "stream", "left within", "left early", "upload left"} == set(ended)
    assert "Traceback" not in log
    assert 0.0 == value_of(metrics, "sternpost_gateway_fallthroughs_total")
    assert 0.0 == sum_of(metrics, "sternpost_gateway_uncached_tokens{")


async def settled_sockets(gateway: GatewayProcess) -> int:
    """Return how many sockets a gateway has that serves nobody: its own, and one that asks it."""
    in_flight(gateway)
    await asyncio.sleep(1.0)
    # A probe, and a question to the engine, may be under way at any moment.
    return sockets(gateway.process.pid) + 2


def in_flight(gateway: GatewayProcess) -> float:
    """Return how many requests the gateway says are in flight."""
    return value_of(gateway.client.get("/metrics").text, "sternpost_gateway_in_flight")


def value_of(metrics: str, name: str) -> float:
    """Return a metric without labels."""
    return next(float(line.split(" ")[1]) for line in metrics.splitlines() if line.startswith(f"{name} "))


def sum_of(metrics: str, prefix: str) -> float:
    """Return the sum of a metric over its labels."""
    return sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line.startswith(prefix))
