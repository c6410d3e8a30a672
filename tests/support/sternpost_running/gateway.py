"""The gateway as its own process, as users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from sternpost_running.kubernetes import die_with_parent, wait_for
from sternpost_running.ports import free_ports

TOKEN: Final = "a token for tests only"
SALT: Final = "a salt for tests only"
STARTED_SECONDS_MAX: Final = 30.0
END_SECONDS_MAX: Final = 15.0


@dataclass(slots=True)
class GatewayProcess:
    """A gateway; `folder` holds its state, log and token file, also for a process after this one."""

    url: str
    folder: Path
    flags: tuple[str, ...]
    process: subprocess.Popen[bytes]
    client: httpx.Client

    @property
    def log(self) -> str:
        """Return what it has logged."""
        return (self.folder / "log").read_text()

    @property
    def token_file(self) -> Path:
        """Return the file of the admin token."""
        return self.folder / "token"

    def kill_state(self) -> dict[str, Any]:
        """Return what it says about kill levels; an empty object while it does not answer."""
        try:
            response = self.client.get("/sternpost/v1/kill", headers={"authorization": f"Bearer {TOKEN}"})
        except httpx.TransportError:
            return {}
        state: dict[str, Any] = response.json()
        return state

    def level(self, policy: str | None = None) -> str | None:
        """Return the level that counts for a policy, or for all."""
        state = self.kill_state()
        found = state.get("level") if policy is None else state.get("policies", {}).get(policy)
        return str(found) if found is not None else None

    def details(self) -> dict[str, Any]:
        """Return what `/readyz?verbose` says; an empty object while it does not answer."""
        try:
            details: dict[str, Any] = self.client.get("/readyz?verbose").json()
        except httpx.TransportError:
            return {}
        return details

    def restart(self) -> None:
        """Kill the process without warning, and start another with the same state."""
        self.process.kill()
        self.process.wait(END_SECONDS_MAX)
        self.process = _start(self.folder, self.flags)
        wait_for(self.details, "the gateway answers again", STARTED_SECONDS_MAX)


@contextmanager
def running_gateways(folder: Path, count: int, *flags: str) -> Iterator[list[GatewayProcess]]:
    """Run gateways for the length of a block; each has its own port and its own state."""
    gateways: list[GatewayProcess] = []
    try:
        for index, port in enumerate(free_ports(count)):
            gateways.append(_gateway(folder / f"gateway-{index}", port, flags))
        for gateway in gateways:
            wait_for(gateway.details, "the gateway answers", STARTED_SECONDS_MAX)
        yield gateways
    finally:
        for gateway in gateways:
            gateway.process.terminate()
        for gateway in gateways:
            _end(gateway)


def _gateway(folder: Path, port: int, flags: Sequence[str]) -> GatewayProcess:
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    (folder / "salt").write_text(SALT)
    own = (
        *("gateway", "--port", str(port), "--state", str(folder / "state")),
        *("--admin-token-file", str(folder / "token"), "--salt-key-file", str(folder / "salt")),
        *("--drain-delay-seconds", "0", "--drain-seconds", "2", "--unkill-step-seconds", "0"),
        *("--kill-ramp-seconds", "0"),
        *flags,
    )
    url = f"http://127.0.0.1:{port}"
    client = httpx.Client(base_url=url, trust_env=False, timeout=5)
    return GatewayProcess(url, folder, own, _start(folder, own), client)


def _start(folder: Path, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).parent / "sternpost"), *flags]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=dict(os.environ), preexec_fn=die_with_parent
        )


def _end(gateway: GatewayProcess) -> None:
    gateway.client.close()
    try:
        gateway.process.wait(END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        gateway.process.kill()
        gateway.process.wait(END_SECONDS_MAX)
