"""vLLM as a child process: started by `sternpost engine`, waited for, and ended whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import STDOUT, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import httpx

from bench.common.engine_api import Engine
from bench.demo.progress import Progress
from bench.demo.stack import HOST, end_with_parent, free_ports
from sternpost_core.errors import OperatingError
from sternpost_engine.command_engine import CONNECTOR

ROOT: Final = Path(__file__).parents[2]

PORT: Final = 8200
"""Where free ports are looked for."""

READY_SECONDS_MAX: Final = 240.0
"""One engine on one core loads within a minute; two that start together, beside other work, take longer."""

STOP_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.5

REQUEST_SECONDS_MAX: Final = 300.0
"""Eight requests of 3,000 tokens at once take most of a minute on one core."""

KEEPALIVE_SECONDS: Final = 1.0
"""For which an idle connection is kept: well under vLLM's 5 s, so that a busy machine never meets its end."""

LOG_EXCERPT_CHARACTERS: Final = 1500
"""So much of an engine's log is shown when it does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """
    What is started: `plugin` are the plugin's settings, `arguments` further ones of vLLM.

    `threads` compute, `kv_cache_gib` is the KV cache; a `plain` engine has no plugin.
    """

    name: str
    model: Path
    plain: bool = False
    threads: int = 1
    kv_cache_gib: int = 1
    plugin: Mapping[str, object] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


class StartEngine(Protocol):
    """Starts an engine and ends it; tests pass one that starts no process."""

    def __call__(self, settings: EngineSettings) -> AbstractAsyncContextManager[Engine]:
        """Return what gives the engine once it is ready, and ends it."""


def engine_command(settings: EngineSettings, port: int) -> list[str]:
    """Return the command that starts the engine."""
    command = [sys.executable, "-m", "sternpost_core", "engine", "--model", str(settings.model)]
    command += ["--port", str(port), "--threads", str(settings.threads), "--log-level", "warning"]
    command += ["--kv-cache-gib", str(settings.kv_cache_gib)]
    arguments = list(settings.arguments)
    if settings.plain:
        command.append("--plain")
    elif settings.plugin:
        # What stands last wins over what `sternpost engine` sets by itself.
        transfer = {**CONNECTOR, "kv_connector_extra_config": dict(settings.plugin)}
        arguments += ["--kv-transfer-config", json.dumps(transfer)]
    return [*command, "--", *arguments]


def engine_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with what lets the engine import this repository's parts and forget its prefixes."""
    parts = [str(ROOT), *(base.get("PYTHONPATH", "").split(os.pathsep) if base.get("PYTHONPATH") else [])]
    return {**base, "PYTHONPATH": os.pathsep.join(parts), "VLLM_SERVER_DEV_MODE": "1"}


@contextlib.asynccontextmanager
async def running_engine(settings: EngineSettings, logs: Path, progress: Progress) -> AsyncIterator[Engine]:
    """
    Start an engine, hand it over once it is ready, and end it.

    Raises:
        OperatingError: it did not get ready; the message shows the end of its log.
    """
    port = free_ports(PORT, 1)
    log = logs / f"{settings.name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *engine_command(settings, port),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=STDOUT,
            env=engine_environment(os.environ),
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    try:
        origin = f"http://{HOST}:{port}"
        async with httpx.AsyncClient(
            base_url=origin,
            timeout=REQUEST_SECONDS_MAX,
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_SECONDS),
            trust_env=False,
        ) as http:
            await _wait_ready(settings.name, process, http, log)
            progress.tell(f"engine {settings.name} is ready")
            yield Engine(settings.name, settings.model.name, process.pid, http)
    finally:
        await _stop(process)


async def _wait_ready(name: str, process: Process, http: httpx.AsyncClient, log: Path) -> None:
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            while process.returncode is None:
                with contextlib.suppress(httpx.TransportError):
                    if (await http.get("/health")).status_code == httpx.codes.OK:
                        return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise OperatingError(f"engine {name} was not ready in {READY_SECONDS_MAX:.0f} s{_end(log)}") from None
    raise OperatingError(f"engine {name} ended with status {process.returncode}{_end(log)}")


def _end(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return f"; the end of {log}:\n{text[-LOG_EXCERPT_CHARACTERS:]}"


async def _stop(process: Process) -> None:
    """End the engine with its whole process group, for vLLM computes in children of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await process.wait()
    except TimeoutError:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
