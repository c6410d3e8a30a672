"""Which engines there are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import eventually, running_gateway
from sternpost_gateway.discovery import ENGINES_MAX, DnsDiscovery, Members, resolve
from sternpost_gateway.fleet import Engine
from sternpost_gateway.settings import Settings

HEADLESS = "http://vllm.models.svc:8000"
FIXED = Engine("http://fixed:8000")


class FakeResolver:
    """Answers with what a test has set; an error is raised."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Answer one question."""
        self.asked.append((host, port))
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


async def looks(resolver: FakeResolver, times: int) -> list[list[str]]:
    """Return the URLs of the pool at so many looks."""
    discovery = DnsDiscovery([HEADLESS], resolver, 1.0)
    return [[engine.url for engine in await discovery.look()] for _ in range(times)]


async def test_name_is_one_engine_for_each_address() -> None:
    """Addresses of both families count once each, in an order that does not change."""
    resolver = FakeResolver(["10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1"])
    found = await looks(resolver, 1)

    assert [["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://[fd00::1]:8000"]] == found
    assert [("vllm.models.svc", 8000)] == resolver.asked


async def test_failed_lookup_changes_nothing() -> None:
    """An error is never taken for "no engines"; the next answer counts again."""
    resolver = FakeResolver(OSError("no such host"), ["10.0.0.1"], OSError("timed out"), ["10.0.0.3"])

    assert [[], ["http://10.0.0.1:8000"], ["http://10.0.0.1:8000"], ["http://10.0.0.3:8000"]] == [
        *await looks(resolver, 4)
    ]


async def test_pool_is_bounded() -> None:
    """However many addresses a name has, so many are taken."""
    many = [f"10.1.{number // 250}.{number % 250}" for number in range(ENGINES_MAX + 5)]

    assert ENGINES_MAX == len((await looks(FakeResolver(many), 1))[0])


def test_sources_are_put_together() -> None:
    """Each source tells its own engines; what is given stays, and what two of them name counts once."""
    told: list[Sequence[Engine]] = []
    members = Members([FIXED], told.append)
    one, other = Engine("http://one"), Engine("http://other")
    members.source("cluster")([one, FIXED])
    members.source("names")([one, other])
    members.source("cluster")([])

    assert [(FIXED, one), (FIXED, one, other), (FIXED, one, other)] == told


async def test_system_resolver_knows_this_host() -> None:
    """A host that always exists has an address; one that never does is an error."""
    assert {"127.0.0.1", "::1"}.issuperset(await resolve("localhost", 80))
    with pytest.raises(OSError):
        await resolve("nowhere.invalid", 80)


async def test_gateway_serves_engines_behind_a_name(tmp_path: Path) -> None:
    """An engine that is known by name only is found, probed and used."""
    async with running_engine() as engine:
        port = engine.url.rpartition(":")[2]

        def by_name(settings: Settings) -> Settings:
            return replace(settings, engines=(), engine_names=(f"http://localhost:{port}",))

        async with running_gateway(tmp_path, [], settings=by_name, wait_ready=False) as gateway:
            await eventually(lambda: gateway.metric("sternpost_gateway_engines_ready") == 1)
            response = await gateway.client.post("/v1/chat/completions", json={"model": "m", "messages": []})

            assert (200, 1) == (response.status_code, len(engine.chats))


async def test_dns_is_looked_up_again_and_again() -> None:
    """The pool is told with each look, until cancelled."""
    told: list[Sequence[Engine]] = []
    discovery = DnsDiscovery([HEADLESS], FakeResolver(["10.0.0.1"], ["10.0.0.2"], ["10.0.0.3"]), 0.0)
    running = asyncio.ensure_future(discovery.run(told.append))
    await eventually(lambda: len(told) == 3 or running.done())
    running.cancel()

    assert ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"] == [
        engine.url for engines in told for engine in engines
    ]
