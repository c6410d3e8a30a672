"""Building tails before anybody asks for them again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import ADMIN_TOKEN, SUPPORT_POLICY, RunningGateway, eventually, running_gateway
from sternpost_gateway.settings import Settings

WARM_POLICY = SUPPORT_POLICY + "  warm: true\n"
TOKEN = {"authorization": f"Bearer {ADMIN_TOKEN}"}
SYSTEM = {"role": "system", "content": "You help sailors ."}
SECRET = {"role": "user", "content": "secret"}
TAIL = {"role": "system", "content": " ".join(f"rule{number}" for number in range(300))}


def with_token(settings: Settings) -> Settings:
    """Return settings with an admin token."""
    return replace(settings, admin_token=ADMIN_TOKEN)


LOOKS = 10
"""Of the prober, five a second: more than the warmer's second takes."""


def plugin_is_ready(gateway: RunningGateway, engine: FakeEngine) -> bool:
    """Say whether the gateway knows that an engine has the plugin."""
    return gateway.metric("sternpost_gateway_engine_plugin", engine=engine.url, plugin="ready") == 1


async def ask(gateway: RunningGateway) -> None:
    """Ask one question, which has a tail."""
    body: dict[str, Any] = {
        "model": "qwen",
        "messages": [
            SYSTEM,
            {"role": "user", "content": "Ahoy"},
            TAIL,
            {"role": "user", "content": "secret"},
        ],
    }
    response = await gateway.client.post("/v1/chat/completions", json=body, headers={"x-tenant-id": "acme"})
    assert 200 == response.status_code


async def warm(gateway: RunningGateway, **body: Any) -> httpx.Response:
    """Ask for engines to be warmed up."""
    return await gateway.client.post("/sternpost/v1/warm", json=body, headers=TOKEN)


@pytest.mark.parametrize(
    ("policy", "builds"),
    [pytest.param(WARM_POLICY, 1, id="warm"), pytest.param(SUPPORT_POLICY, 0, id="not-warm")],
)
async def test_engine_that_comes_up_gets_the_tails_of_warm_policies(
    tmp_path: Path, policy: str, builds: int
) -> None:
    """It has them built before its first request, and no word of a user is in what is sent."""
    late = FakeEngine()
    late.faults.unhealthy = True
    async with running_engine() as engine, running_engine(late):
        urls = [engine.url, late.url]
        async with running_gateway(tmp_path, urls, policy=policy, wait_ready=False) as gateway:
            await eventually(lambda: plugin_is_ready(gateway, engine))
            await ask(gateway)
            await eventually(lambda: bool(engine.built))
            late.faults.unhealthy = False
            await eventually(lambda: plugin_is_ready(gateway, late))
            # By then the warmer has looked at the engines again.
            await eventually(lambda: len(late.posts("/sternpost/v1/info")) >= LOOKS or bool(late.builds))

            assert (builds, []) == (len(late.builds), late.chats)
            assert not any(b"secret" in seen.body for seen in late.builds)
            assert [json.loads(seen.body)["prompt"] for seen in late.builds] == [
                json.loads(seen.body)["prompt"] for seen in engine.builds
            ][:builds]


async def test_engines_are_warmed_up_on_demand(tmp_path: Path) -> None:
    """Whoever has the token has the tails built that were asked for last, on all engines that are ready."""
    async with running_engine() as one, running_engine() as other:
        urls = [one.url, other.url]
        async with running_gateway(tmp_path, urls, settings=with_token) as gateway:
            await ask(gateway)
            await eventually(lambda: bool(one.built or other.built))
            answer = await warm(gateway)
            await eventually(lambda: bool(one.built and other.built))

            assert (202, {"tails": 1, "engines": 2}) == (answer.status_code, answer.json())


@pytest.mark.parametrize(
    ("body", "path"),
    [
        pytest.param({"policy": "agents/nobody"}, "policy", id="unknown-policy"),
        pytest.param({"engine": "http://nowhere"}, "engine", id="unknown-engine"),
        pytest.param({"levels": 1}, "levels", id="unknown-key"),
        pytest.param({"policy": 1}, "policy", id="no-text"),
    ],
)
async def test_wrong_demand_is_refused(tmp_path: Path, body: dict[str, Any], path: str) -> None:
    """The answer names the key, and nothing is built."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_token) as gateway,
    ):
        answer = await warm(gateway, **body)

        assert (400, path) == (answer.status_code, answer.json()["error"]["param"])


async def test_warming_up_needs_the_token(tmp_path: Path) -> None:
    """Builds cost what prompts cost: not everybody may ask for them."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=with_token) as gateway,
    ):
        answer = await gateway.client.post("/sternpost/v1/warm", json={})

        assert 403 == answer.status_code
