"""Versions: in order of first use, agreed between gateways by a policy's status, each with KV of its own."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.content import ContentId
from sternpost_core.policy import Policy
from sternpost_core.policy_status import SegmentVersion
from sternpost_fakes.cases import CHAT
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import SUPPORT_POLICY, RunningGateway, eventually, running_gateway
from sternpost_gateway.versions import Versions

NAME = "agents/support"
A, B, C = (ContentId(letter * 64) for letter in "abc")


def policy(*segments: SegmentVersion) -> Policy:
    """Return a policy whose status names these versions."""
    return Policy(name="support", namespace="agents", pool="qwen", segments=segments)


def tail(number: int, content_id: ContentId) -> SegmentVersion:
    """Return the version of a tail as a status has it: with the content id's first digits."""
    return SegmentVersion("tail", number, content_id[:12])


def test_agreed_version_is_taken_over() -> None:
    """What a status names has its number before its first use here; what is new comes behind it."""
    versions = Versions(None)
    versions.agree([policy(tail(7, A))])

    assert [8, 7, 9] == [versions.version(NAME, "tail", one) for one in (B, A, C)]
    assert 1 == versions.version(NAME, "prefix", A)


def test_own_numbers_give_way() -> None:
    """Two gateways that met their tails in another order say the same once the status does."""
    left, right = Versions(None), Versions(None)
    for versions, order in ((left, (A, B)), (right, (B, A))):
        for one in order:
            versions.version(NAME, "tail", one)
        versions.agree([policy(tail(2, B))])

    assert 2 == left.version(NAME, "tail", B) == right.version(NAME, "tail", B)
    assert 2 not in (left.version(NAME, "tail", A), right.version(NAME, "tail", A))


IDS = st.sampled_from([A, B, C])


@given(uses=st.lists(IDS), agreed=st.lists(st.tuples(st.integers(1, 9), IDS), unique_by=lambda pair: pair[0]))
def test_versions_never_share_a_number(uses: list[ContentId], agreed: list[tuple[int, ContentId]]) -> None:
    """However uses and agreements follow one another, two content ids have two numbers."""
    versions = Versions(None)
    for one in uses:
        versions.version(NAME, "tail", one)
    for number, one in agreed:
        versions.agree([policy(tail(number, one))])
        shown = versions.shown(NAME)["tail"]
        assert len(shown) == len({entry["version"] for entry in shown})
        assert number == versions.version(NAME, "tail", one)
    numbers = {one: versions.version(NAME, "tail", one) for one in (A, B, C)}

    assert 3 == len(set(numbers.values()))


async def test_parents_and_agreements_outlive_a_restart(tmp_path: Path) -> None:
    """Numbers, and where versions came from, are kept."""
    versions = Versions(tmp_path)
    versions.agree([policy(tail(4, A))])
    for one in (A, B):
        versions.version(NAME, "tail", one, "conversation")
    await versions.save()
    restored = Versions(tmp_path)

    assert versions.shown(NAME) == restored.shown(NAME)
    assert [("v5", "v4"), ("v4", None)] == [
        (entry["version"], entry["parent"]) for entry in restored.shown(NAME)["tail"]
    ]


def rules(name: str) -> dict[str, str]:
    """Return a tail."""
    return {"role": "system", "content": " ".join(f"{name}{number}" for number in range(300))}


async def ask(
    gateway: RunningGateway, tail_message: dict[str, str], question: str = "Hm ?"
) -> httpx.Response:
    """Ask, with this tail."""
    messages = [{"role": "system", "content": "Help ."}, {"role": "user", "content": question}, tail_message]
    return await gateway.client.post(CHAT, json={"model": "qwen", "messages": messages})


def reason(answer: httpx.Response) -> str:
    """Return what the engine says about its store."""
    found: str = answer.json()["usage"]["prompt_tokens_details"]["sternpost"]["reason"]
    return found


async def test_changed_rules_have_their_own_kv_and_a_rollback_finds_the_old_warm(tmp_path: Path) -> None:
    """A change is a new version that is built for itself; back again, the first version is read at once."""
    old, new = rules("old"), rules("new")
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await ask(gateway, old)
        await eventually(lambda: len(engine.built) == 1)
        warm = await ask(gateway, old)
        changed = await ask(gateway, new)
        await eventually(lambda: len(engine.built) == 2)
        warm_again = await ask(gateway, new)
        back = await ask(gateway, old)

    assert ["hit", "hit", "hit"] == [reason(answer) for answer in (warm, warm_again, back)]
    assert ["v1", "v2", "v2", "v1"] == [
        answer.headers["x-sternpost-version"].partition("tail=")[2]
        for answer in (warm, changed, warm_again, back)
    ]
    assert 2 == len(engine.builds)


async def test_gateways_agree_by_the_status(tmp_path: Path) -> None:
    """The one that saw the rules later says the number that the status has, from the next request on."""
    old, new = rules("old"), rules("new")
    async with AsyncExitStack() as stack:
        engine: FakeEngine = await stack.enter_async_context(running_engine())
        gateways: list[RunningGateway] = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            gateways.append(await stack.enter_async_context(running_gateway(tmp_path / name, [engine.url])))
        one, two = gateways
        for gateway, order in ((one, (old, new)), (two, (new,))):
            for message in order:
                await ask(gateway, message)
        shown = (await one.client.get("/sternpost/v1/templates")).json()["policies"][0]["versions"]
        before = await ask(two, new)
        mapping: dict[str, Any] = yaml.safe_load(SUPPORT_POLICY)
        mapping["status"] = {"segments": [{"segment": name, **shown[name][0]} for name in ("prefix", "tail")]}
        for gateway in gateways:
            (gateway.policies / "support.yaml").write_text(json.dumps(mapping))
        async with asyncio.timeout(5):
            while "tail=v2" not in (await ask(two, new)).headers["x-sternpost-version"]:
                pass
        after = [await ask(gateway, message) for message in (new, old) for gateway in gateways]

    assert "prefix=v1,tail=v1" == before.headers["x-sternpost-version"]
    assert ["v2", "v2", "v1", "v3"] == [
        answer.headers["x-sternpost-version"].partition("tail=")[2] for answer in after
    ]
