"""What engines are shown: by pool and Secret, by the flags, and never somebody else's key."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sternpost_core.pool import Adopted, CredentialsMode, EnginePool
from sternpost_core.pool import Credentials as PoolCredentials
from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import eventually, running_gateway
from sternpost_gateway.cluster.errors import ClusterError
from sternpost_gateway.cluster.pool_secrets import PoolSecrets, key_in
from sternpost_gateway.cluster.resources import Key, Object, Resource
from sternpost_gateway.engine_keys import EngineKeys, SecretName, Shown
from sternpost_gateway.fleet import Engine
from sternpost_gateway.settings import Credentials, Settings

SECRET = SecretName("agents", "vllm")
ENGINE = Engine("http://e:1", "agents/qwen")


def pool(mode: CredentialsMode, secret: str | None = None, name: str = "qwen") -> EnginePool:
    """Return a pool."""
    return EnginePool(
        name=name,
        namespace="agents",
        engines=Adopted(match_labels={"app": "vllm"}),
        credentials=PoolCredentials(mode=mode, secret=secret),
    )


def encoded(key: str | bytes) -> Object:
    """Return a Secret as the API server sends it."""
    raw = key.encode() if isinstance(key, str) else key
    return {"data": {"api-key": base64.b64encode(raw).decode()}}


class Secrets:
    """An API server that holds Secrets, and fails on command."""

    def __init__(self, **held: Any) -> None:
        self.held: dict[str, Any] = held
        self.asked: list[Key] = []

    async def read(self, resource: Resource, key: Key, seconds: float) -> Object | None:
        """Return a Secret, None without it, or raise what stands in its place."""
        self.asked.append(key)
        found = self.held.get(key.name)
        if isinstance(found, Exception):
            raise found
        return found if found is None or isinstance(found, Mapping) else None


def keys_of(*pools: EnginePool) -> EngineKeys:
    """Return what engines are shown where the flags forward."""
    keys = EngineKeys(Credentials.FORWARD, lambda: "flag-key")
    keys.configure(pools)
    return keys


@pytest.mark.parametrize(
    ("engine", "given", "expected"),
    [
        pytest.param(Engine("http://e"), (), Shown(Credentials.FORWARD, "flag-key"), id="no-pool"),
        pytest.param(ENGINE, (), Shown(Credentials.FORWARD, "flag-key"), id="unknown-pool"),
        pytest.param(ENGINE, (pool(CredentialsMode.NONE),), Shown(Credentials.NONE), id="none"),
        pytest.param(ENGINE, (pool(CredentialsMode.FORWARD),), Shown(Credentials.FORWARD), id="forward"),
        pytest.param(
            ENGINE, (pool(CredentialsMode.REPLACE, "vllm"),), Shown(Credentials.REPLACE), id="not-known-yet"
        ),
    ],
)
def test_pool_decides_where_there_is_one(
    engine: Engine, given: tuple[EnginePool, ...], expected: Shown
) -> None:
    """The flags' key is for engines of no pool, and never in the place of a pool's."""
    assert expected == keys_of(*given).shown(engine)


async def test_secret_is_read_and_read_again() -> None:
    """By its name alone; a new key counts, and one that cannot be read leaves the last one."""
    keys = keys_of(pool(CredentialsMode.REPLACE, "vllm"), pool(CredentialsMode.NONE, name="open"))
    api = Secrets(vllm=encoded("key-1"))
    secrets = PoolSecrets(api, keys)
    states: tuple[Any, ...] = (encoded("key-1"), encoded("key-2\n"), ClusterError("down"), {"data": {}}, None)
    shown = []
    for now in states:
        api.held["vllm"] = now
        await secrets.refresh()
        shown.append(keys.shown(ENGINE).key)

    assert ["key-1", "key-2", "key-2", "key-2", None] == shown
    assert {Key("agents", "vllm")} == set(api.asked)


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"data": {"other": "eA=="}}, id="another-key"),
        pytest.param({"data": {"api-key": "not base64"}}, id="not-encoded"),
        pytest.param(encoded(b"\xff\xfe"), id="not-ascii"),
        pytest.param(encoded("two\nlines"), id="two-lines"),
        pytest.param(encoded("x" * 5000), id="too-long"),
    ],
)
def test_what_cannot_be_sent_is_no_key(secret: Object) -> None:
    """A header holds one line of ASCII; whatever else there is, is not repeated."""
    with pytest.raises(ClusterError) as refused:
        key_in(secret)

    assert "two" not in str(refused.value) and "xxx" not in str(refused.value)


async def test_faults_are_told_once_and_without_the_key(caplog: pytest.LogCaptureFixture) -> None:
    """A log that repeats itself every ten seconds is not read."""
    caplog.set_level(logging.DEBUG)
    api = Secrets(vllm=encoded("key-secret"))
    secrets = PoolSecrets(api, keys_of(pool(CredentialsMode.REPLACE, "vllm")))
    await secrets.refresh()
    api.held["vllm"] = ClusterError("forbidden")
    await secrets.refresh()
    await secrets.refresh()

    assert 1 == caplog.text.count("agents/vllm cannot be read: forbidden")
    assert "key-secret" not in caplog.text


async def test_key_file_of_the_flags_is_read_again(tmp_path: Path) -> None:
    """Requests and the gateway's own calls show the new key; an emptied file changes nothing."""
    path = tmp_path / "engine.key"
    path.write_text("old-key\n")

    def settings(given: Settings) -> Settings:
        return replace(given, credentials=Credentials.REPLACE, engine_key="old-key", engine_key_file=path)

    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], settings=settings) as gateway,
    ):

        def probed() -> str | None:
            return engine.posts("/sternpost/v1/info")[-1].header("authorization")

        async def shown() -> str | None:
            await gateway.client.post("/v1/chat/completions", json={"model": "m"})
            return engine.chats[-1].header("authorization")

        before = await shown(), probed()
        path.write_text("new-key\n")
        await eventually(lambda: probed() == "Bearer new-key")
        after = await shown()
        path.write_text("")

        assert ("Bearer old-key", "Bearer old-key") == before
        assert "Bearer new-key" == after == await shown()
