"""
Keeps the child processes running: gathers what can be seen of them, lets `decide` decide, and acts.

It ends in order: first what waits for others, the gateway, which drains; then the others, the engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import httpx

from sternpost_core.clock import Clock
from sternpost_core.errors import OperatingError
from sternpost_operator.local.child import (
    ChildSpec,
    ChildState,
    Limits,
    Observation,
    after_look,
    after_start,
    was_well,
)
from sternpost_operator.local.decide import Action, Announce, GiveUp, Kill, Start, decide, restart_seconds
from sternpost_operator.local.probe import is_well
from sternpost_operator.local.process import ChildProcess, Lifeline, start
from sternpost_operator.local.progress import LINES_ON_DEATH, Progress, death_lines, loading_line


class Supervisor:
    """
    Runs child processes until it is told to stop.

    `ready_line` is what is announced, once, when all `children` are ready.
    """

    def __init__(
        self,
        children: Sequence[ChildSpec],
        *,
        environment: Mapping[str, str],
        ready_line: str,
        progress: Progress,
        client: httpx.AsyncClient,
        clock: Clock,
        limits: Limits,
    ) -> None:
        self._children = tuple(children)
        self._environment = environment
        self._ready_line = ready_line
        self._progress = progress
        self._client = client
        self._clock = clock
        self._limits = limits
        self._lifeline = Lifeline()
        self._states = {child.name: ChildState() for child in children}
        self._processes: dict[str, ChildProcess] = {}
        self._probed_at: dict[str, float] = {}
        self._announced = False
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()

    def stop(self) -> None:
        """Ask for the end in order; asked a second time, for the end at once."""
        if self._stop.is_set():
            self._kill.set()
        self._stop.set()

    async def run(self) -> None:
        """
        Supervise until `stop` is called; no child is left when this returns.

        Raises:
            OperatingError: when a child cannot be started at all.
        """
        try:
            while not self._stop.is_set():
                await self._round()
                await self._pause()
        finally:
            await self._end_all()
            self._lifeline.close()

    async def _round(self) -> None:
        await asyncio.gather(*(self._observe(child) for child in self._children))
        now = self._clock.monotonic()
        actions = decide(self._children, self._states, self._limits, announced=self._announced, now=now)
        for action in actions:
            await self._act(action)
        self._progress.show(loading_line(self._children, self._states, now))

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), self._limits.tick)
        except TimeoutError:
            return

    async def _observe(self, child: ChildSpec) -> None:
        before = self._states[child.name]
        if not before.running:
            return
        observation = await self._look(child, before)
        after = after_look(before, observation, self._limits, self._clock.monotonic())
        self._states[child.name] = after
        if after.ready and not before.ready:
            seconds = (after.ready_at or 0.0) - (after.started_at or 0.0)
            self._progress.tell(f"{child.name}: ready after {seconds:.0f} s")
        if not after.running:
            self._tell_death(child, after)

    async def _look(self, child: ChildSpec, state: ChildState) -> Observation:
        exit_status = self._processes[child.name].exit_status
        if exit_status is not None:
            return Observation(running=False, exit_status=exit_status)
        now = self._clock.monotonic()
        if state.ready and now - self._probed_at.get(child.name, now) < self._limits.probe_interval:
            return Observation(running=True)
        self._probed_at[child.name] = now
        url = child.live_url if state.ready else child.ready_url
        return Observation(running=True, healthy=await is_well(self._client, url, self._limits.probe_max))

    def _tell_death(self, child: ChildSpec, state: ChildState) -> None:
        hopeless = not state.ever_ready and state.deaths >= child.start_deaths_max
        wait = None if hopeless else restart_seconds(state.deaths, self._limits)
        fast = not was_well(state, self._limits)
        lines = self._processes[child.name].last_lines(LINES_ON_DEATH) if fast else []
        for line in death_lines(child.name, state, lines, wait):
            self._progress.tell(line)

    async def _act(self, action: Action) -> None:
        match action:
            case Start(name):
                self._start(name)
            case Kill(name, reason):
                self._progress.tell(f"{name}: {reason}; killing it")
                await self._processes[name].kill()
            case GiveUp(name, reason):
                raise OperatingError(f"{reason}; its log is {self._child(name).log}")
            case Announce():
                self._announced = True
                self._progress.announce(self._ready_line)

    def _start(self, name: str) -> None:
        child = self._child(name)
        process = start(child, self._environment, self._lifeline)
        self._processes[name] = process
        self._states[name] = after_start(self._states[name], self._clock.monotonic())
        self._progress.tell(f"{name}: starting (log {child.log})")

    def _child(self, name: str) -> ChildSpec:
        return next(child for child in self._children if child.name == name)

    async def _end_all(self) -> None:
        self._progress.show("")
        ending = asyncio.create_task(self._end_in_order())
        hurry = asyncio.create_task(self._kill.wait())
        await asyncio.wait({ending, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            self._progress.tell("killing everything that still runs")
            await asyncio.gather(*(process.kill() for process in self._running().values()))
        for task in (ending, hurry):
            task.cancel()
        await asyncio.gather(ending, hurry, return_exceptions=True)
        self._progress.tell("everything has ended")

    async def _end_in_order(self) -> None:
        running = self._running()
        if running:
            self._progress.tell(f"stopping {', '.join(running)} (Ctrl-C again kills them at once)")
        for wave in (
            [child for child in self._children if child.waits_for],
            [child for child in self._children if not child.waits_for],
        ):
            await asyncio.gather(*(self._end(child) for child in wave if child.name in running))

    async def _end(self, child: ChildSpec) -> None:
        if not await self._processes[child.name].stop(child.stop_seconds_max):
            self._progress.tell(f"{child.name}: did not end within {child.stop_seconds_max:.0f} s; killed")

    def _running(self) -> dict[str, ChildProcess]:
        return {name: process for name, process in self._processes.items() if process.exit_status is None}
