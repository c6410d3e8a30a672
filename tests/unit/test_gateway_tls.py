"""TLS towards clients and towards engines: who is met, who is not, and certificates that change."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sternpost_core.errors import SettingsError
from sternpost_fakes.certificates import Authority, Pair
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import running_gateway
from sternpost_fakes.gateway_process import gateway_process
from sternpost_gateway.settings import EngineTls, ServerTls, Settings
from sternpost_gateway.tls import engine_tls, server_tls

CHAT = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}], "stream": True}

CHANGED_SECONDS_MAX = 10.0
"""Within which a new certificate must be shown; the gateway looks once a second."""


def trusting(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """Return how a client meets what the authority has signed, with a certificate of its own or without."""
    context = ssl.create_default_context(cafile=str(authority.path))
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


async def serial(url: str, context: ssl.SSLContext) -> int:
    """Return the serial number of the certificate that a new connection is shown."""
    host, port = url.removeprefix("https://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown = writer.get_extra_info("peercert")
    writer.close()
    return int(shown["serialNumber"], 16)


async def test_certificate_changes_and_nothing_is_dropped(tmp_path: Path) -> None:
    """A stream goes on while new connections see the new certificate; half a change shows the old one."""
    authority = Authority(tmp_path)
    pair = authority.issue("localhost", "served")
    context = trusting(authority)
    engine = FakeEngine(words=tuple("x" * 60), delay_seconds=0.1)
    flags = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    async with (
        running_engine(engine),
        gateway_process(tmp_path, engine.url, *flags) as (_, url),
        httpx.AsyncClient(base_url=url, verify=context, trust_env=False, timeout=20) as client,
    ):
        before = await serial(url, context)
        key = pair.key.read_bytes()
        async with client.stream("POST", "/v1/chat/completions", json=CHAT) as stream:
            reading = stream.aiter_raw()
            received = await anext(reading)
            authority.issue("localhost", "served")
            new_key = pair.key.read_bytes()
            pair.key.write_bytes(key)
            await asyncio.sleep(1.2)
            half = await serial(url, context)
            pair.key.write_bytes(new_key)
            async with asyncio.timeout(CHANGED_SECONDS_MAX):
                while (after := await serial(url, context)) == before:
                    await asyncio.sleep(0.1)
            async for piece in reading:
                received += piece

    assert url.startswith("https://")
    assert before == half and after > before
    assert received.endswith(b"data: [DONE]\n\n")


async def test_clients_need_a_certificate_where_one_is_asked_for(tmp_path: Path) -> None:
    """Engines' paths take one of the right authority; probes need none, and old TLS is not spoken."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair, ours = authority.issue("localhost"), authority.issue("client")
    flags = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-min-version", "1.3")
    old = trusting(authority, ours)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with (
        running_engine() as engine,
        gateway_process(tmp_path, engine.url, *flags, "--tls-client-ca", str(authority.path)) as (_, url),
    ):

        async def status(path: str, context: ssl.SSLContext) -> int | str:
            async with httpx.AsyncClient(base_url=url, verify=context, trust_env=False) as client:
                try:
                    return (await client.get(path)).status_code
                except httpx.TransportError:
                    return "refused"

        async with asyncio.timeout(CHANGED_SECONDS_MAX):
            while await status("/readyz", trusting(authority)) != 200:
                await asyncio.sleep(0.05)
        with_certificate = await status("/v1/files", trusting(authority, ours))
        without = await status("/v1/files", trusting(authority))
        of_a_stranger = await status("/v1/files", trusting(authority, stranger.issue("other")))
        probe = await status("/healthz", trusting(authority))
        too_old = await status("/healthz", old)

    assert (200, 401, "refused") == (with_certificate, without, of_a_stranger)
    assert (200, "refused") == (probe, too_old)


def engine_side(authority: Authority, pair: Pair, *, needs_client: bool = False) -> ssl.SSLContext:
    """Return how an engine meets the gateway."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    if needs_client:
        context.load_verify_locations(authority.path)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def meeting(tls: EngineTls) -> Callable[[Settings], Settings]:
    """Return a change of settings: how engines are met."""
    return lambda given: replace(given, engine_tls=tls)


@pytest.mark.parametrize("needs_client", [False, True], ids=["engine-alone", "both-sides"])
async def test_engines_are_met_by_authority_and_name(tmp_path: Path, needs_client: bool) -> None:
    """Probes and requests both go through, under the name that is told, and with a certificate if asked."""
    authority = Authority(tmp_path)
    context = engine_side(authority, authority.issue("engine.internal"), needs_client=needs_client)
    ours = authority.issue("gateway")
    tls = EngineTls(ca=authority.path, server_name="engine.internal", cert=ours.cert, key=ours.key)
    engine = FakeEngine()
    engine.server.tls = context
    async with (
        running_engine(engine),
        running_gateway(tmp_path, [engine.url], settings=meeting(tls)) as gateway,
    ):
        answer = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": False})

    assert engine.url.startswith("https://") and 200 == answer.status_code


@pytest.mark.parametrize(
    ("name", "known"),
    [
        pytest.param("other.internal", True, id="another-name"),
        pytest.param("engine.internal", False, id="unknown-authority"),
    ],
)
async def test_engine_that_is_another_gets_nothing(tmp_path: Path, name: str, known: bool) -> None:
    """A certificate for another name, or by nobody who counts, is no engine's."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    engine = FakeEngine()
    engine.server.tls = engine_side(authority, authority.issue("engine.internal"))
    tls = EngineTls(ca=authority.path if known else stranger.path, server_name=name)
    async with (
        running_engine(engine),
        running_gateway(tmp_path, [engine.url], settings=meeting(tls), wait_ready=False) as gateway,
    ):
        answer = await gateway.client.post("/v1/chat/completions", json=CHAT)

    assert answer.status_code in (502, 503) and [] == engine.server.seen


def test_files_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    """The start fails with the flags and the files, and with nothing of a key."""
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    with pytest.raises(SettingsError) as mixed:
        server_tls(ServerTls(cert=one.cert, key=other.key))
    with pytest.raises(SettingsError) as missing:
        engine_tls(EngineTls(ca=tmp_path / "nothing"))

    assert ["--tls-cert, --tls-key"] == [fault.path for fault in mixed.value.faults]
    assert ["--engine-ca"] == [fault.path for fault in missing.value.faults]
    assert "BEGIN" not in str(mixed.value)
