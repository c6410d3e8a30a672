"""
Everything that the demonstration does with the running stack, in order and within its limits.

What it shows comes back as one value; nothing is written or judged here.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from bench.demo.client import Asker, Target, make_client, tokenize
from bench.demo.kill import KillRun, KillSwitch, kill_under_load
from bench.demo.measure import Targets, measure, warm_up
from bench.demo.progress import Progress
from bench.demo.rows import Arm, Row
from bench.demo.stack import ENGINE_PORT, GATEWAY_PORT, Stack, StackSettings, free_ports, running, up_command
from bench.demo.summary import Tokens
from bench.demo.workload import load_workload
from sternpost_core.errors import OperatingError

ENGINES: Final = 2

RUN_SECONDS_MAX: Final = 480.0
"""From the start to the last row; a machine that takes longer is too busy to measure on."""

CONTROL_SECONDS_MAX: Final = 30.0
"""For a call that is no chat request. Under load the gateway shares two cores with two engines."""

FIRST_TICKET: Final = 4001


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the running stack showed."""

    rows: tuple[Row, ...]
    kill: KillRun
    tokens: Tokens


async def show(model: Path | None, logs: Path, progress: Progress, record: Callable[[Row], None]) -> Outcome:
    """
    Run all of it, recording each row at once, until it is done or Ctrl-C or SIGTERM ends it.

    Whatever was started has ended then.

    Raises:
        OperatingError: the stack did not start, did not stay, or took too long.
    """
    task = asyncio.current_task()
    assert task is not None, "a coroutine that runs has a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.timeout(RUN_SECONDS_MAX):
            return await _show(model, logs, progress, record)
    except TimeoutError as error:
        raise OperatingError(f"the demonstration did not end within {RUN_SECONDS_MAX:.0f} s") from error


async def _show(model: Path | None, logs: Path, progress: Progress, record: Callable[[Row], None]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="sternpost-demo-") as state:
        settings = StackSettings(
            engines=ENGINES,
            model=model,
            logs=logs,
            state=Path(state),
            port=free_ports(GATEWAY_PORT, 1),
            engine_port_base=free_ports(ENGINE_PORT, ENGINES),
        )
        async with running(up_command(settings), settings.logs, progress) as stack:
            return await _while_up(stack, _ask_everything(settings, progress, record))


async def _while_up(stack: Stack, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Do the work, and stop at once when `sternpost up` ends under it."""
    working = asyncio.create_task(work)
    ended = asyncio.create_task(stack.wait_ended())
    try:
        await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else await _raised(ended)
    finally:
        working.cancel()
        ended.cancel()
        await asyncio.gather(working, ended, return_exceptions=True)


async def _raised(ended: asyncio.Task[None]) -> Outcome:
    await ended
    raise AssertionError("an end of `sternpost up` is an error")


async def _ask_everything(
    settings: StackSettings, progress: Progress, record: Callable[[Row], None]
) -> Outcome:
    async with AsyncExitStack() as closing:
        http = await closing.enter_async_context(httpx.AsyncClient(timeout=CONTROL_SECONDS_MAX))
        name = await _model_name(http, settings.gateway)
        gateway = await closing.enter_async_context(make_client(settings.gateway))
        engines = [await closing.enter_async_context(make_client(url)) for url in settings.engine_origins]
        targets = Targets(
            engines=tuple(Target(Arm.BASELINE, client, name) for client in engines),
            gateway=Target(Arm.STERNPOST, gateway, name),
        )
        switch = KillSwitch(http, settings.gateway, settings.admin_token.read_text("ascii").strip())
        asker = Asker(load_workload(), progress, record)
        tickets = itertools.count(FIRST_TICKET)
        rows, kill = await _all_phases(asker, targets, switch, tickets)
        return Outcome(rows, kill, await _tokens(http, settings.engine_origins[0], name, rows))


async def _all_phases(
    asker: Asker, targets: Targets, switch: KillSwitch, tickets: Iterator[int]
) -> tuple[tuple[Row, ...], KillRun]:
    warm = await warm_up(asker, targets, tickets)
    measured = await measure(asker, targets, asker.workload.questions)
    kill = await kill_under_load(asker, targets.gateway, switch, tickets)
    return (*warm, *measured, *kill.rows), kill


async def _model_name(http: httpx.AsyncClient, gateway: str) -> str:
    try:
        response = await http.get(f"{gateway}/v1/models")
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise OperatingError(f"{gateway}/v1/models names no model: {error}") from error


async def _tokens(http: httpx.AsyncClient, engine: str, model: str, rows: Sequence[Row]) -> Tokens:
    texts = sorted({row.answer.text for row in rows if row.answer})
    try:
        return {text: await tokenize(http, engine, model, text) for text in texts}
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise OperatingError(f"{engine}/tokenize failed: {error}") from error
