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
from sternpost_running.ports import free_ports

START_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
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


async def status_of(port: int, path: str) -> int:
    """Return the status that a path is answered with, 0 where nobody answers."""
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            return (await client.get(f"http://127.0.0.1:{port}{path}")).status_code
        except httpx.TransportError:
            return 0


async def test_it_answers_for_the_length_of_a_block(port: int) -> None:
    """And not before, and not after."""
    before = await status_of(port, "/healthz")
    async with serve_health(port, lambda: True):
        within = await status_of(port, "/healthz")

    assert (0, 200, 0) == (before, within, await status_of(port, "/healthz"))


@pytest.mark.parametrize(
    ("is_ready", "expected"), [(False, (200, 503)), (True, (200, 200))], ids=["starting", "working"]
)
async def test_it_is_ready_once_everything_is_known(
    port: int, is_ready: bool, expected: tuple[int, int]
) -> None:
    """Alive it is before: it may wait for an API server for as long as that takes."""
    async with serve_health(port, lambda: is_ready):
        found = await status_of(port, "/healthz"), await status_of(port, "/readyz")

    assert expected == found


async def test_an_operator_that_starts_within_an_outage_is_alive(port: int, kubeconfig: str) -> None:
    """It waits for the API server, and nobody has a reason to start it again."""
    settings = OperatorSettings(kubeconfig=kubeconfig, health_port=port, metrics_port=0)
    running = asyncio.create_task(run_operator(settings, asyncio.Event()))
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            while not await status_of(port, "/healthz"):
                await asyncio.sleep(POLL_SECONDS)
        statuses = await status_of(port, "/healthz"), await status_of(port, "/readyz")
        is_over = running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert ((200, 503), False) == (statuses, is_over)


async def test_an_operator_that_waits_ends_when_it_is_told_to(kubeconfig: str) -> None:
    """Nobody has to end it by force because no API server answers."""
    stop = asyncio.Event()
    settings = OperatorSettings(kubeconfig=kubeconfig, health_port=0, metrics_port=0)
    running = asyncio.create_task(run_operator(settings, stop))
    await asyncio.sleep(POLL_SECONDS)
    before = running.done()
    stop.set()
    async with asyncio.timeout(START_SECONDS_MAX):
        await running

    assert not before


async def test_a_port_that_is_taken_is_told_by_its_flag() -> None:
    """Whoever starts a second operator on one machine reads which flag to change."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(OperatingError, match=f"--health-port {taken} cannot be listened on"):
            async with serve_health(taken, lambda: True):
                pass


async def test_port_zero_is_not_listened_on() -> None:
    """There is nothing to answer, and nothing to end."""
    async with serve_health(0, lambda: True):
        pass
