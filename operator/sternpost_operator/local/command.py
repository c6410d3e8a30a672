"""`sternpost up`: engines and a gateway on this machine, in one program in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError
from sternpost_core.flag_numbers import integer, port_number
from sternpost_operator.local.checks import available_bytes, check_memory, check_ports, engine_bytes
from sternpost_operator.local.child import ChildSpec, Limits
from sternpost_operator.local.folders import Folders, default_state, prepared
from sternpost_operator.local.probe import make_client
from sternpost_operator.local.progress import Progress
from sternpost_operator.local.settings import (
    KV_CACHE_GIB,
    STERNPOST,
    UpSettings,
    check_extra,
    check_model,
    children,
    port_uses,
    ready_line,
)
from sternpost_operator.local.supervisor import Supervisor

ENGINES_MAX: Final = 64
"""More engines than that do not fit on one machine."""

MEMINFO: Final = Path("/proc/meminfo")


class UpCommand:
    """Checks, prepares, and supervises until it is told to stop."""

    summary = "Run engines and a gateway on this machine, until Ctrl-C."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument(
            "--engines",
            type=integer(1, ENGINES_MAX),
            default=1,
            help="how many engines (default: %(default)s)",
        )
        parser.add_argument(
            "--model", type=Path, help="default: the cached small model, fetched at its first use"
        )
        parser.add_argument(
            "--host", default="127.0.0.1", help="the gateway's address (default: %(default)s)"
        )
        parser.add_argument(
            "--port", type=port_number, default=8080, help="the gateway's port (default: %(default)s)"
        )
        parser.add_argument(
            "--engine-port-base",
            type=port_number,
            default=8100,
            help="the first engine's port (default: %(default)s)",
        )
        parser.add_argument(
            "--policies", type=Path, help="folder of CachePolicy files (default: one in the state)"
        )
        parser.add_argument(
            "--logs", type=Path, help="folder of the children's logs (default: one in the state)"
        )
        parser.add_argument("--state", type=Path, help="default: a folder of this user and port")
        parser.add_argument(
            "extra", nargs="*", metavar="-- ARGUMENT", help="further arguments, for vLLM itself"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Run until SIGINT or SIGTERM; return 0 after an end in order."""
        progress = Progress(sys.stderr, sys.stdout)
        ports = tuple(range(arguments.engine_port_base, arguments.engine_port_base + arguments.engines))
        check_ports(port_uses(arguments.host, arguments.port, ports))
        settings = _settings(arguments, _model(arguments.model, progress))
        _check_memory(settings)
        with prepared(settings.folders, default_policies=arguments.policies is None):
            if arguments.policies is None:
                progress.tell(
                    f"no --policies given: using those in {settings.folders.policies}, which you may edit"
                )
            asyncio.run(supervise(children(settings), ready_line(settings), progress, Limits()))
        return 0


async def supervise(specs: Sequence[ChildSpec], line: str, progress: Progress, limits: Limits) -> None:
    """Supervise until a signal says to stop; a second one ends everything at once."""
    async with make_client() as client:
        supervisor = Supervisor(
            specs,
            environment=os.environ,
            ready_line=line,
            progress=progress,
            client=client,
            clock=SystemClock(),
            limits=limits,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, supervisor.stop)
        await supervisor.run()


def _settings(arguments: argparse.Namespace, model: Path) -> UpSettings:
    state: Path = (arguments.state or default_state(os.environ, arguments.port)).absolute()
    folders = Folders(
        state=state,
        policies=(arguments.policies or state / "policies").absolute(),
        logs=(arguments.logs or state / "logs").absolute(),
    )
    return UpSettings(
        model=model,
        engines=arguments.engines,
        host=arguments.host,
        port=arguments.port,
        engine_port_base=arguments.engine_port_base,
        # Engines that share cores must not each compute with all of them.
        threads=max(1, len(os.sched_getaffinity(0)) // arguments.engines),
        folders=folders,
        extra=check_extra(arguments.extra),
    )


def _model(model: Path | None, progress: Progress) -> Path:
    if model is None:
        progress.tell("no --model given: using the small model of `sternpost model fetch`")
        model = _fetch_model()
    check_model(model)
    return model.absolute()


def _fetch_model() -> Path:
    # By the command, since the parts meet through data only; its progress goes to the terminal.
    done = subprocess.run([*STERNPOST, "model", "fetch"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise OperatingError(
            "there is no model; give one by --model, or see why `sternpost model fetch` failed"
        )
    return Path(done.stdout.strip())


def _check_memory(settings: UpSettings) -> None:
    available = available_bytes(MEMINFO)
    if available is not None:
        check_memory(settings.engines, engine_bytes(settings.model, KV_CACHE_GIB), available)


COMMAND: Final = UpCommand()
"""What the entry point `up` of the group `sternpost.commands` names."""
