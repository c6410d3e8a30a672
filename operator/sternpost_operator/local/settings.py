"""What a person asks of `sternpost up`, and the child processes that follow from it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, SettingsError
from sternpost_operator.local.checks import PortUse
from sternpost_operator.local.child import ChildSpec
from sternpost_operator.local.folders import Folders

STERNPOST: Final = (sys.executable, "-m", "sternpost_core")
"""The command `sternpost` of this very installation."""

ENGINE_READY_SECONDS_MAX: Final = 600.0
"""A small model on two shared cores loads within a minute; a large one from a cold disk takes several."""

ENGINE_STOP_SECONDS_MAX: Final = 15.0
ENGINE_START_DEATHS_MAX: Final = 5
"""An engine may lose a race for memory or a port; dying five times in a row, it is set up wrongly."""

GATEWAY_READY_SECONDS_MAX: Final = 60.0
GATEWAY_DRAIN_SECONDS: Final = 30
"""How long the gateway gives requests in flight to end; nobody at a terminal waits for longer."""

GATEWAY_STOP_SECONDS_MAX: Final = GATEWAY_DRAIN_SECONDS + 5.0

GATEWAY_START_DEATHS_MAX: Final = 1
"""A gateway that dies at its start was given a policy or a flag that it refuses: it would refuse it again."""

KV_CACHE_GIB: Final = 1
GATEWAY_NAME: Final = "gateway"
ENGINE_HOST: Final = "127.0.0.1"
"""Engines are reached through the gateway alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """One gateway and the engines behind it; `threads` are each engine's, `extra` is for vLLM itself."""

    model: Path
    engines: int
    host: str
    port: int
    engine_port_base: int
    threads: int
    folders: Folders
    extra: tuple[str, ...] = ()

    @property
    def base_url(self) -> str:
        """Where the OpenAI API is served."""
        return f"{_origin(self.host, self.port)}/v1"

    @property
    def engine_ports(self) -> tuple[int, ...]:
        """The engines' ports, in the order of their names."""
        return tuple(range(self.engine_port_base, self.engine_port_base + self.engines))


def port_uses(host: str, port: int, engine_ports: tuple[int, ...]) -> list[PortUse]:
    """Return every port that will be listened on, with its flag."""
    gateway = PortUse("--port", host, port)
    return [gateway, *(PortUse("--engine-port-base", ENGINE_HOST, number) for number in engine_ports)]


def children(settings: UpSettings) -> tuple[ChildSpec, ...]:
    """Return the child processes, engines first."""
    engines = [_engine(settings, number, port) for number, port in enumerate(settings.engine_ports, start=1)]
    return (*engines, _gateway(settings, tuple(engine.name for engine in engines)))


def ready_line(settings: UpSettings) -> str:
    """
    Return the line that says that requests are served.

    For example `ready: http://127.0.0.1:8080/v1 (2 engines, policies /etc/policies, logs /var/log/up)`.
    """
    engines = "1 engine" if settings.engines == 1 else f"{settings.engines} engines"
    folders = settings.folders
    return f"ready: {settings.base_url} ({engines}, policies {folders.policies}, logs {folders.logs})"


def check_model(model: Path) -> None:
    """
    Refuse a folder that holds no model.

    Raises:
        SettingsError: which says how to get one.
    """
    if not (model / "config.json").is_file():
        allowed = "a folder with config.json and weights; `sternpost model fetch` gets a small one"
        raise SettingsError("model", [Fault("--model", str(model), allowed)])


def check_extra(words: Sequence[str]) -> tuple[str, ...]:
    """
    Return the arguments for vLLM; refuse what can only be a slip, before an engine trips over it.

    Raises:
        SettingsError: when they do not begin with a flag.
    """
    if words and not words[0].startswith("-"):
        raise SettingsError("arguments", [Fault("ARGUMENT", words[0], "flags of vLLM, after --")])
    return tuple(words)


def _engine(settings: UpSettings, number: int, port: int) -> ChildSpec:
    name = f"engine-{number}"
    command = [
        *STERNPOST,
        "engine",
        "--model",
        str(settings.model),
        "--host",
        ENGINE_HOST,
        "--port",
        str(port),
    ]
    command += ["--threads", str(settings.threads), "--kv-cache-gib", str(KV_CACHE_GIB)]
    command += ["--", *settings.extra] if settings.extra else []
    health = f"{_origin(ENGINE_HOST, port)}/health"
    return ChildSpec(
        name=name,
        command=tuple(command),
        ready_url=health,
        live_url=health,
        log=settings.folders.logs / f"{name}.log",
        ready_seconds_max=ENGINE_READY_SECONDS_MAX,
        stop_seconds_max=ENGINE_STOP_SECONDS_MAX,
        start_deaths_max=ENGINE_START_DEATHS_MAX,
    )


def _gateway(settings: UpSettings, engine_names: tuple[str, ...]) -> ChildSpec:
    folders = settings.folders
    command = [*STERNPOST, "gateway", "--host", settings.host, "--port", str(settings.port)]
    command += ["--policies", str(folders.policies), "--state", str(folders.gateway_state)]
    command += ["--admin-token-file", str(folders.admin_token)]
    # No load balancer needs time here to notice that the gateway is about to end.
    command += ["--drain-delay-seconds", "0", "--drain-seconds", str(GATEWAY_DRAIN_SECONDS)]
    # One person's requests stampede nobody: what is switched on again is on at once.
    command += ["--unkill-step-seconds", "0", "--kill-ramp-seconds", "0"]
    for port in settings.engine_ports:
        command += ["--engine", _origin(ENGINE_HOST, port)]
    origin = _origin(settings.host, settings.port)
    return ChildSpec(
        name=GATEWAY_NAME,
        command=tuple(command),
        # It is well without an engine, and ready with one.
        ready_url=f"{origin}/readyz",
        live_url=f"{origin}/healthz",
        log=folders.logs / f"{GATEWAY_NAME}.log",
        ready_seconds_max=GATEWAY_READY_SECONDS_MAX,
        stop_seconds_max=GATEWAY_STOP_SECONDS_MAX,
        start_deaths_max=GATEWAY_START_DEATHS_MAX,
        waits_for=engine_names,
    )


def _origin(host: str, port: int) -> str:
    # Whoever listens on every address is reached on this machine's own.
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
