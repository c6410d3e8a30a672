"""Several worker processes on one port are one gateway: to clients, to scrapes and to orders."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import ADMIN_TOKEN
from sternpost_fakes.gateway_process import gateway_process
from sternpost_gateway.merged_metrics import merge_pages
from sternpost_gateway.settings import Limits, Settings, Worker
from sternpost_gateway.shared_admin import joined
from sternpost_gateway.siblings import Said, Siblings
from sternpost_gateway.worker import share_of
from sternpost_gateway.workers import BACKOFF_SECONDS_MAX, SOON_SECONDS, Backoff

KILL_PATH = "/sternpost/v1/kill"
BEARER = {"authorization": f"Bearer {ADMIN_TOKEN}"}
CHAT = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}]}

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

STARTED_SECONDS_MAX = 30.0
"""Within which a worker that has died must serve again."""


def metrics_of(page: str) -> dict[str, Metric]:
    """Return what a page of OpenMetrics holds, by name; one that is not well-formed is refused."""
    return {metric.name: metric for metric in text_string_to_metric_families(page)}  # type: ignore[no-untyped-call]


def test_metrics_of_workers_are_one_page() -> None:
    """Each metric is described once, and each sample says whose it is."""
    page = (
        '# HELP a_total A.\n# TYPE a_total counter\na_total{x="1"} 2.0\n# HELP b B.\n# TYPE b gauge\nb 3.0\n'
    )

    expected = (
        "# HELP a_total A.\n# TYPE a_total counter\n"
        'a_total{worker="0",x="1"} 2.0\na_total{worker="1",x="1"} 2.0\n'
        '# HELP b B.\n# TYPE b gauge\nb{worker="0"} 3.0\nb{worker="1"} 3.0\n'
    )
    assert expected == merge_pages({0: page, 1: page})


def test_pages_of_openmetrics_keep_their_exemplars_and_end_once() -> None:
    """Each is beside the sample of its worker, whose trace it names; nothing comes behind the end."""
    pages = {
        worker: "# HELP h H.\n# TYPE h histogram\n"
        f'h_bucket{{le="1.0"}} 1.0 # {{trace_id="{worker}a"}} 0.5 17.5\nh_bucket{{le="+Inf"}} 1.0\n'
        "h_count 1.0\nh_sum 0.5\n# EOF\n"
        for worker in range(2)
    }
    merged = merge_pages(pages)

    samples = metrics_of(merged)["h"].samples
    kept = {
        sample.labels["worker"]: (sample.exemplar.labels, sample.exemplar.value)
        for sample in samples
        if sample.exemplar is not None
    }
    assert {worker: ({"trace_id": f"{worker}a"}, 0.5) for worker in "01"} == kept
    assert 8 == len(samples)
    assert ["# EOF"] == [line for line in merged.splitlines() if "EOF" in line]


@pytest.mark.parametrize(
    ("first", "second", "status", "level"),
    [
        pytest.param(Said(0, 200, b'{"level":"None"}'), Said(1, runs=False), 200, "None", id="one-starts"),
        pytest.param(Said(0, 200, b'{"level":"None"}'), Said(1), 500, "None", id="one-hangs"),
        pytest.param(
            Said(0, 200, b'{"level":"NewEpoch"}'),
            Said(1, 200, b'{"level":"NoSuffixReads"}'),
            200,
            "NoSuffixReads",
            id="least",
        ),
        pytest.param(
            Said(0, 200, b'{"level":"NoSuffixReads"}'),
            Said(1, 500, b'{"level":"NoSuffixReads","persisted":false}'),
            500,
            "NoSuffixReads",
            id="one-disk-fails",
        ),
    ],
)
def test_order_is_done_when_all_have_done_it(first: Said, second: Said, status: int, level: str) -> None:
    """A worker that does not run is no failure, one that hangs or refuses is; the least level shows."""
    response = joined([first, second])

    assert (status, level) == (response.status_code, json.loads(bytes(response.body))["level"])


def test_limits_are_divided() -> None:
    """What bounds a whole gateway is divided; what bounds one request is not."""
    whole = Settings(workers=4, limits=Limits(in_flight_max=4096, bodies_bytes_max=1 << 30, retry_min=3))
    share = share_of(whole)

    assert (1024, whole.limits.connections_max // 4, 1 << 28, 1) == (
        share.limits.in_flight_max,
        share.limits.connections_max,
        share.limits.bodies_bytes_max,
        share.limits.retry_min,
    )
    assert (whole.limits.body_bytes_max, whole.cold.cold_tokens) == (
        share.limits.body_bytes_max,
        share.cold.cold_tokens,
    )
    assert whole.cold.room_tokens == 4 * share.cold.room_tokens


def test_worker_that_dies_at_once_is_started_ever_more_slowly() -> None:
    """The wait doubles up to a limit, and begins anew after a long life."""
    backoff = Backoff()

    assert [1.0, 2.0, 4.0] == [backoff.died(0.1) for _ in range(3)]
    assert BACKOFF_SECONDS_MAX == [backoff.died(0.1) for _ in range(10)][-1]
    assert 1.0 == backoff.died(SOON_SECONDS)


async def test_orders_are_given_one_at_a_time(tmp_path: Path) -> None:
    """Two that come at the same time reach all workers in one order."""
    worker = Worker(0, 2, tmp_path)
    log: list[str] = []

    async def order(name: str) -> None:
        async with Siblings(worker).turn():
            log.append(f"{name} begins")
            await asyncio.sleep(0.02)
            log.append(f"{name} ends")

    await asyncio.gather(order("a"), order("b"))

    assert ["begins", "ends", "begins", "ends"] == [line.split()[1] for line in log]


@asynccontextmanager
async def two_workers(
    directory: Path, engine: FakeEngine, *flags: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """Run a gateway of two workers for the length of a block; every request has a connection of its own."""
    token = directory / "token"
    token.write_text(ADMIN_TOKEN)
    own = ("--workers", "2", "--admin-token-file", str(token), *flags)
    limits = httpx.Limits(max_keepalive_connections=0)
    async with (
        gateway_process(directory, engine.url, *own) as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False, limits=limits, timeout=10) as client,
    ):
        yield process, client


async def level(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return the level and who runs; nothing where the worker that was asked is just dying."""
    try:
        state = (await client.get(KILL_PATH, headers=BEARER)).json()
    except httpx.TransportError:
        return {}
    return {"level": state["level"], "running": sum(one["runs"] for one in state["workers"])}


async def until(client: httpx.AsyncClient, expected: dict[str, Any]) -> None:
    """Wait until workers and level are as expected."""
    async with asyncio.timeout(STARTED_SECONDS_MAX):
        while await level(client) != expected:
            await asyncio.sleep(0.1)


async def served(client: httpx.AsyncClient) -> dict[str, float]:
    """Return how many requests each worker has answered."""
    page = (await client.get("/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("sternpost_gateway_requests_total{")]
    return {line.partition('worker="')[2][0]: float(line.rpartition(" ")[2]) for line in lines}


def children(process: asyncio.subprocess.Process) -> list[int]:
    """Return the process ids of the workers."""
    listing = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)], capture_output=True
    )
    lines = [line.split() for line in listing.stdout.decode().splitlines()]
    return [int(words[0]) for words in lines if "spawn_main" in " ".join(words)]


async def test_two_workers_are_one_gateway(tmp_path: Path) -> None:
    """Orders and signals reach both, one that dies comes back as it was told, and its counts are its own."""
    async with running_engine() as engine, two_workers(tmp_path, engine) as (process, client):
        answers = [await client.post("/v1/chat/completions", json=CHAT) for _ in range(32)]
        counted = await served(client)
        order = {"level": "NoSuffixReads", "policy": None, "reason": "drill"}
        done = await client.post(KILL_PATH, json=order, headers=BEARER)
        os.kill(children(process)[0], signal.SIGKILL)
        await until(client, {"level": "NoSuffixReads", "running": 2})
        await client.post(KILL_PATH, json={**order, "level": "None"}, headers=BEARER)
        await until(client, {"level": "None", "running": 2})
        os.kill(process.pid, signal.SIGUSR1)
        await until(client, {"level": "NoSuffixReads", "running": 2})

    assert {200} == {answer.status_code for answer in answers}
    assert ({"0", "1"}, 32.0) == (set(counted), sum(counted.values()))
    assert [200, 200] == [one["status"] for one in done.json()["workers"]]
    assert done.json()["persisted"] and "http 127.0.0.1" == done.json()["latches"][0]["by"]


async def test_a_scrape_that_reads_openmetrics_sees_the_traces_of_all_workers(tmp_path: Path) -> None:
    """Exemplars of each, on one page with one end; in the other format there is none."""
    stream = {**CHAT, "stream": True}
    # No collector is there: what it would be sent is dropped, and requests are traced all the same.
    flags = ("--otlp-endpoint", "http://127.0.0.1:9")
    async with running_engine() as engine, two_workers(tmp_path, engine, *flags) as (_, client):
        for _ in range(32):
            await client.post("/v1/chat/completions", json=stream)
        scraped = await client.get("/metrics", headers={"accept": OPENMETRICS})
        text = await client.get("/metrics")

    samples = metrics_of(scraped.text)["sternpost_gateway_ttft_seconds"].samples
    assert {"0", "1"} == {sample.labels["worker"] for sample in samples if sample.exemplar is not None}
    assert scraped.headers["content-type"].startswith("application/openmetrics-text")
    assert (True, False) == (text.headers["content-type"].startswith("text/plain"), "trace_id" in text.text)


async def test_workers_drain_and_end_together(tmp_path: Path) -> None:
    """On SIGTERM streams in flight are served to their end, whichever worker has them; the status is 0."""
    engine = FakeEngine(words=tuple("x" * 10), delay_seconds=0.1)
    async with running_engine(engine), two_workers(tmp_path, engine) as (process, client):

        async def stream() -> bytes:
            body = {**CHAT, "stream": True}
            return (await client.post("/v1/chat/completions", json=body)).content

        streams = [asyncio.ensure_future(stream()) for _ in range(6)]
        await asyncio.sleep(0.4)
        os.kill(process.pid, signal.SIGTERM)
        received = await asyncio.gather(*streams)
        async with asyncio.timeout(10):
            await process.wait()

    assert [True] * 6 == [body.endswith(b"data: [DONE]\n\n") for body in received]
    assert 0 == process.returncode


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_second_signal_ends_streams_at_once(tmp_path: Path, workers: str) -> None:
    """Told twice, a gateway does not wait for streams that would go on for long."""
    engine = FakeEngine(words=tuple("x" * 600), delay_seconds=0.1)
    async with (
        running_engine(engine),
        two_workers(tmp_path, engine, "--workers", workers) as (process, client),
        client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as stream,
    ):
        # A reading that nobody holds ends, and with it the connection.
        reading = stream.aiter_raw()
        await anext(reading)
        os.kill(process.pid, signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert process.returncode is None
        os.kill(process.pid, signal.SIGTERM)
        async with asyncio.timeout(10):
            await process.wait()


async def test_workers_that_cannot_start_end_the_gateway(tmp_path: Path) -> None:
    """What keeps every worker from starting is said, and the exit status is not 0."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "bad.yaml").write_text("kind: Secret")
    with pytest.raises(AssertionError, match="the process has ended"):
        async with gateway_process(tmp_path, "http://127.0.0.1:9", "--workers", "2", engine_is_up=False):
            pass
