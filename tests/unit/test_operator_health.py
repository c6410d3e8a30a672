"""The liveness endpoint says that the operator runs, whoever else does not answer."""

import asyncio
import json
import socket
from pathlib import Path

import httpx
import pytest

from sternpost_core.errors import OperatingError
from sternpost_operator.app import OperatorSettings, run_operator
from sternpost_operator.health import serve_health
from sternpost_running.kubernetes import free_ports

NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there, as on an API server's port within an outage."""


@pytest.fixture
def port() -> int:
    """Return a port that nobody listens on."""
    return free_ports(1)[0]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    """Return the path of a kubeconfig that leads nowhere."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": NOWHERE}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    return str(file)


async def is_alive(port: int) -> bool:
    """Tell whether the endpoint answers."""
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            return (await client.get(f"http://127.0.0.1:{port}/healthz")).is_success
        except httpx.TransportError:
            return False


async def test_it_answers_for_the_length_of_a_block(port: int) -> None:
    """And not before, and not after."""
    before = await is_alive(port)
    async with serve_health(port):
        within = await is_alive(port)

    assert (False, True, False) == (before, within, await is_alive(port))


async def test_an_operator_that_starts_within_an_outage_is_alive(port: int, kubeconfig: str) -> None:
    """It waits for the API server, and nobody has a reason to start it again."""
    settings = OperatorSettings(kubeconfig=kubeconfig, health_port=port, metrics_port=0)
    running = asyncio.create_task(run_operator(settings, asyncio.Event()))
    try:
        for _ in range(200):
            if await is_alive(port):
                break
            await asyncio.sleep(0.05)
        assert await is_alive(port)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_port_that_is_taken_is_told_by_its_flag() -> None:
    """Whoever starts a second operator on one machine reads which flag to change."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(OperatingError, match=f"--health-port {taken} cannot be listened on"):
            async with serve_health(taken):
                pass


async def test_port_zero_is_not_listened_on() -> None:
    """There is nothing to answer, and nothing to end."""
    async with serve_health(0):
        pass
