"""The routers that are compared, each as a process: this project's own with its strategies, and others'."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

HOST: Final = "127.0.0.1"
READY_SECONDS_MAX: Final = 120.0
ASK_SECONDS_MAX: Final = 5.0
"""To ask whether a router is ready: one that does not answer may have asked an engine that has just gone."""

STOP_SECONDS_MAX: Final = 10.0
INSTALL_SECONDS_MAX: Final = 900.0
LOG_CHARS_SHOWN: Final = 500
"""Of the end of the log of a command that does not start."""

PEERS: Final = ("vllm-router==0.1.17", "smg==1.13.0")
"""Installed, pinned, into an environment of their own."""

REQUIREMENT_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

OWN: Final = ("sternpost", "rendezvous", "least_loaded")
"""This project's gateway, and the same gateway with a simpler strategy."""


@dataclass(frozen=True, slots=True)
class Router:
    """One router: its name, and its command for a port and the engines' URLs."""

    name: str
    command: Callable[[int, Sequence[str]], list[str]]


def own_routers(policies: Path) -> list[Router]:
    """Return this project's gateway with each strategy."""

    def router(name: str) -> Router:
        def command(port: int, engines: Sequence[str]) -> list[str]:
            return [sys.executable, "-m", "bench.routing.gateway", name, str(policies), str(port), *engines]

        return Router(name, command)

    return [router(name) for name in OWN]


def peer_routers(environment: Path) -> tuple[list[Router], dict[str, str]]:
    """Return the other routers that can be run, and why each of the others cannot."""
    binaries = environment / "bin"
    found: list[Router] = []
    missing: dict[str, str] = {}
    reason = install_peers(environment)
    for name, make in (("vllm-router", _vllm_router), ("smg", _smg)):
        if (binaries / name).exists():
            found.append(Router(name.replace("-", "_"), make(binaries / name)))
        else:
            missing[name.replace("-", "_")] = reason or f"{name} has no command"
    return found, missing


def install_peers(environment: Path, requirements: Sequence[str] = PEERS) -> str:
    """
    Install what is not there, each with a command of its own name.

    Returns why that failed, empty if it did not.
    """
    if not (environment / "bin" / "python").exists():
        environment.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    reasons = [_install(environment, requirement) for requirement in requirements]
    return "; ".join(reason for reason in reasons if reason)


def _install(environment: Path, requirement: str) -> str:
    name = REQUIREMENT_NAME.match(requirement)
    assert name is not None, "a requirement begins with a name"
    if (environment / "bin" / name[0]).exists():
        return ""
    pip = [str(environment / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", requirement]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return f"{requirement} was not installed in time"
    last = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    return f"{requirement}: {last[0]}" if last else ""


def _vllm_router(binary: Path) -> Callable[[int, Sequence[str]], list[str]]:
    def command(port: int, engines: Sequence[str]) -> list[str]:
        return [
            str(binary),
            "--worker-urls",
            *engines,
            "--policy",
            "cache_aware",
            *("--host", HOST, "--port", str(port)),
        ]

    return command


def _smg(binary: Path) -> Callable[[int, Sequence[str]], list[str]]:
    def command(port: int, engines: Sequence[str]) -> list[str]:
        return [
            str(binary),
            "launch",
            "--worker-urls",
            *engines,
            "--policy",
            "cache_aware",
            *("--host", HOST, "--port", str(port)),
        ]

    return command


class NotReady(Exception):
    """A program ended, or was not ready in time."""


@asynccontextmanager
async def running(command: Sequence[str], log: Path, ready: str) -> AsyncIterator[int]:
    """
    Run a command for the length of a block, until then waiting for `ready` to answer.

    Yields the id of its process, which leads a group of its own.

    Raises:
        NotReady: it ended, or was not ready in time.
    """
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=output, stderr=output, start_new_session=True
        )
        try:
            try:
                await _wait_ready(process, ready)
            except NotReady as error:
                raise NotReady(f"{' '.join(command)}: {error}: {_end_of(log)}") from None
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
            except TimeoutError:
                process.kill()
                await process.wait()


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARS_SHOWN:]


async def _wait_ready(process: asyncio.subprocess.Process, url: str) -> None:
    patience = aiohttp.ClientTimeout(sock_connect=ASK_SECONDS_MAX, sock_read=ASK_SECONDS_MAX)
    async with aiohttp.ClientSession(timeout=patience) as session:
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                while process.returncode is None:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as response:
                            if response.status == 200:
                                return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise NotReady("not ready in time") from None
    raise NotReady(f"ended with status {process.returncode}")
