"""Shadow replays in a whole gateway: a tail that agrees stays, one that lies is read no more."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sternpost_fakes.engine import FakeEngine, Faults, running_engine
from sternpost_fakes.gateway import (
    SUPPORT_POLICY,
    RunningGateway,
    eventually,
    running_gateway,
)
from sternpost_operator.queries import Spans, policy_query

POLICY = "agents/support"
GATEWAY = "sternpost_gateway_"
SELECTOR = re.compile(rf"({GATEWAY}\w+)\{{([^}}]*)\}}")
MATCHER = re.compile(r'(\w+)="([^"]*)"')
REPLAYS = "sternpost_gateway_shadow_replays_total"
ALL_SAMPLED = SUPPORT_POLICY + "  shadow: {sampleRate: 1}\n"
TAIL = {"role": "system", "content": " ".join(f"rule{number}" for number in range(300))}


async def ask(gateway: RunningGateway, question: str, tenant: str = "acme", **fields: Any) -> httpx.Response:
    """Ask and return the answer."""
    messages = [{"role": "system", "content": "You help ."}, {"role": "user", "content": question}, TAIL]
    response = await gateway.client.post(
        "/v1/chat/completions",
        json={"model": "qwen", "messages": messages, **fields},
        headers={"x-tenant-id": tenant},
    )
    assert 200 == response.status_code, response.text
    return response


async def warm(gateway: RunningGateway, engine: FakeEngine, tenant: str = "acme") -> None:
    """Ask until a tenant's tail is built."""
    before = len(engine.built)
    await ask(gateway, "Warm ?", tenant)
    await eventually(lambda: len(engine.built) > before)


def replays(gateway: RunningGateway, outcome: str = "compared") -> float:
    """Return how many samples have come to an outcome."""
    return gateway.metric(REPLAYS, policy=POLICY, outcome=outcome)


async def eventually_replayed(gateway: RunningGateway, before: float) -> None:
    """Wait until one more sample has come to an outcome."""
    await eventually(lambda: gateway.metric(REPLAYS) > before)


async def ask_until_replayed(gateway: RunningGateway, times: int) -> list[httpx.Response]:
    """Ask so many times, one after the other's replay, and return the answers."""
    answers = []
    for number in range(times):
        before = gateway.metric(REPLAYS)
        answers.append(await ask(gateway, f"Question {number} ?"))
        if "x-sternpost-bypass" not in answers[-1].headers:
            await eventually_replayed(gateway, before)
    return answers


async def test_tail_that_agrees_stays(tmp_path: Path) -> None:
    """Replays are compared and counted, and every request goes on reading the tail."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], policy=ALL_SAMPLED) as gateway,
    ):
        await warm(gateway, engine)
        answers = await ask_until_replayed(gateway, 8)
        tokens = gateway.metric("sternpost_gateway_shadow_tokens_total", policy=POLICY)

        assert 8 == replays(gateway)
        assert tokens == gateway.metric("sternpost_gateway_shadow_agreed_tokens_total", policy=POLICY) > 0
        assert gateway.metric("sternpost_gateway_shadow_kl_nats_total") < 1e-6 * tokens
        assert all("x-sternpost-bypass" not in answer.headers for answer in answers)


async def test_tail_that_lies_is_demoted(tmp_path: Path) -> None:
    """After a few replays its requests take the exact path, and people and metrics are told."""
    engine = FakeEngine(faults=Faults(wrong_tails=True))
    async with running_engine(engine), running_gateway(tmp_path, [engine.url], policy=ALL_SAMPLED) as gateway:
        await warm(gateway, engine)
        answers = await ask_until_replayed(gateway, 12)
        after = answers[-1]
        hint = json.loads(engine.chats[-1].body)["kv_transfer_params"]["sternpost"]
        (shown,) = (await gateway.client.get("/sternpost/v1/templates")).json()["shadow"][POLICY]
        page = (await gateway.client.get("/metrics")).text

        assert ("demoted", "0", "off") == (
            after.headers["x-sternpost-bypass"],
            after.headers["x-sternpost-reuse"],
            hint["op"],
        )
        assert 1 == gateway.metric("sternpost_gateway_demotions_total", policy=POLICY)
        assert f'sternpost_gateway_demoted_tails{{policy="{POLICY}"}} 1.0' in page
        assert (0.0, True) == (shown["agreement"], shown["demotedAt"] is not None)


async def test_what_a_rollout_asks_about_replays_is_what_a_gateway_says(tmp_path: Path) -> None:
    """Each selector of the operator's queries finds a series of a gateway that has demoted a tail."""
    engine = FakeEngine(faults=Faults(wrong_tails=True))
    async with running_engine(engine), running_gateway(tmp_path, [engine.url], policy=ALL_SAMPLED) as gateway:
        await warm(gateway, engine)
        await ask_until_replayed(gateway, 12)
        page = (await gateway.client.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    query = policy_query(POLICY, Spans(window=60, step=600))
    asked = {
        (name, frozenset(MATCHER.findall(matchers)))
        for name, matchers in SELECTOR.findall(query)
        if "_shadow_" in name or "_demotions_" in name
    }
    said = {(one.name, pair) for one in samples for pair in one.labels.items()}

    assert {"demotions_total", "demotions_created"} <= {name.removeprefix(GATEWAY) for name, _ in asked}
    assert [] == [(name, pair) for name, pairs in sorted(asked) for pair in pairs if (name, pair) not in said]


async def test_demotion_lasts_over_a_restart_until_the_policy_changes(tmp_path: Path) -> None:
    """The next process knows of it; a change of how tails are read gives the tail another chance."""
    engine = FakeEngine(faults=Faults(wrong_tails=True))
    async with running_engine(engine):
        for _ in range(2):
            async with running_gateway(
                tmp_path,
                [engine.url],
                policy=ALL_SAMPLED,
                settings=lambda settings: replace(settings, state=tmp_path / "state"),
            ) as gateway:
                if not engine.built:
                    await warm(gateway, engine)
                    await ask_until_replayed(gateway, 12)
                last = await ask(gateway, "And now ?")
                assert "demoted" == last.headers["x-sternpost-bypass"]
        (tmp_path / "policies" / "support.yaml").write_text(ALL_SAMPLED.replace("last: 32", "last: 48"))
        async with running_gateway(
            tmp_path,
            [engine.url],
            policy="",
            settings=lambda settings: replace(settings, state=tmp_path / "state"),
        ) as gateway:
            assert "demoted" != (await ask(gateway, "And then ?")).headers.get("x-sternpost-bypass")


async def test_replay_is_two_requests_and_leaves_nothing(tmp_path: Path) -> None:
    """The first reads under the tenant's salt, the second computes under a salt of its own."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], policy=ALL_SAMPLED) as gateway,
    ):
        await warm(gateway, engine)
        await ask_until_replayed(gateway, 2)
        bodies = [json.loads(seen.body) for seen in engine.replays]
        asked = json.loads(engine.chats[-1].body)
        operations = [body["kv_transfer_params"]["sternpost"]["op"] for body in bodies]

        assert ["read", "off", "read", "off"] == operations
        assert asked["cache_salt"] == bodies[0]["cache_salt"] == bodies[2]["cache_salt"]
        assert 3 == len({body["cache_salt"] for body in bodies})
        assert len(bodies[0]["messages"]) == 3


@pytest.mark.parametrize(
    ("policy", "tenant"),
    [
        pytest.param(SUPPORT_POLICY + "  shadow: {sampleRate: 0}\n", "acme", id="policy-off"),
        pytest.param(
            SUPPORT_POLICY + "  shadow: {sampleRate: 1, excludeTenants: [acme]}\n",
            "acme",
            id="tenant-excluded",
        ),
    ],
)
async def test_nothing_is_replayed_of_who_did_not_want_it(tmp_path: Path, policy: str, tenant: str) -> None:
    """Neither of a policy with replays off nor of a tenant that it excludes."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=policy) as gateway:
        await warm(gateway, engine, tenant)
        hits = [await ask(gateway, f"Question {number} ?", tenant) for number in range(3)]

        assert all("x-sternpost-bypass" not in hit.headers for hit in hits)
        assert ([], 0) == (engine.replays, gateway.metric(REPLAYS))


async def test_tenants_that_are_not_excluded_are_replayed(tmp_path: Path) -> None:
    """An opt-out is for those that are named."""
    policy = SUPPORT_POLICY + "  shadow: {sampleRate: 1, excludeTenants: [acme]}\n"
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url], policy=policy) as gateway:
        await warm(gateway, engine, "globex")
        await ask(gateway, "Question ?", "globex")

        await eventually(lambda: replays(gateway) == 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_clients_notice_nothing(tmp_path: Path, stream: bool) -> None:
    """The answer with replays is, byte for byte, the one without."""
    texts = []
    for name, policy in (("with", ALL_SAMPLED), ("without", SUPPORT_POLICY + "  shadow: {sampleRate: 0}\n")):
        folder = tmp_path / name
        folder.mkdir()
        async with (
            running_engine() as engine,
            running_gateway(folder, [engine.url], policy=policy) as gateway,
        ):
            await warm(gateway, engine)
            texts.append((await ask(gateway, "Question ?", stream=stream)).text)

    assert texts[0] == texts[1]


async def test_engine_that_cannot_replay_is_counted_and_believed_nothing(tmp_path: Path) -> None:
    """An engine that refuses candidates neither proves nor demotes a tail."""
    engine = FakeEngine(faults=Faults(refuse_replays=True))
    async with running_engine(engine), running_gateway(tmp_path, [engine.url], policy=ALL_SAMPLED) as gateway:
        await warm(gateway, engine)
        answers = await ask_until_replayed(gateway, 6)

        assert (6, 0) == (replays(gateway, "failed"), replays(gateway))
        assert all("x-sternpost-bypass" not in answer.headers for answer in answers)
