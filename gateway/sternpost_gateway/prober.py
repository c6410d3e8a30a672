"""Asking engines how they are, every few seconds, and who they are, when they become ready and later on."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

from sternpost_core.clock import Clock
from sternpost_gateway.engine_api import ControlFailed, EngineApi
from sternpost_gateway.fleet import Engine, Fleet, Health, Plugin
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.settings import Timeouts

logger = logging.getLogger(__name__)


class Prober:
    """Keeps the fleet's beliefs fresh; one loop for each engine, so that a hanging one delays no other."""

    def __init__(
        self, api: EngineApi, fleet: Fleet, metrics: Metrics, timeouts: Timeouts, clock: Clock
    ) -> None:
        self._api = api
        self._fleet = fleet
        self._metrics = metrics
        self._timeouts = timeouts
        self._clock = clock
        self._asked: dict[Engine, float] = {}

    async def run(self) -> None:
        """Probe all engines until cancelled, those that come later, too."""
        probing: dict[Engine, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                engines = self._fleet.engines
                for engine in [known for known in probing if known not in engines]:
                    probing.pop(engine).cancel()
                    self._left(engine)
                for engine in engines:
                    if engine not in probing:
                        probing[engine] = group.create_task(self._run_engine(engine))
                await self._fleet.changed(self._timeouts.probe_period_seconds)

    async def probe(self, engine: Engine) -> None:
        """Probe one engine once."""
        health = await self._api.health(engine)
        changed = self._fleet.probed(engine, health)
        healthy = health is Health.UP
        if changed:
            logger.log(
                logging.INFO if healthy else logging.ERROR,
                "engine %s is %s: its probe found it %s",
                engine.url,
                "ready" if healthy else "not ready",
                health,
            )
            self._metrics.engines_ready.set(len(self._fleet.ready_views()))
        if healthy and (changed or self._info_is_due(engine)):
            await self._ask_info(engine)

    async def _run_engine(self, engine: Engine) -> None:
        while True:
            await self.probe(engine)
            await asyncio.sleep(self._timeouts.probe_period_seconds)

    def _info_is_due(self, engine: Engine) -> bool:
        asked = self._asked.get(engine)
        return asked is None or self._clock.monotonic() - asked >= self._timeouts.info_period_seconds

    def _left(self, engine: Engine) -> None:
        """Forget an engine that is gone, and what is shown about it."""
        self._asked.pop(engine, None)
        for plugin in Plugin:
            with suppress(KeyError):
                self._metrics.engine_plugin.remove(engine.url, plugin.value)
        self._metrics.engines_ready.set(len(self._fleet.ready_views()))

    async def _models(self, engine: Engine) -> frozenset[str]:
        """Ask for the models; what was known stays where there is no answer."""
        try:
            return await self._api.models(engine)
        except ControlFailed:
            return self._fleet.info(engine).models

    async def _ask_info(self, engine: Engine) -> None:
        self._asked[engine] = self._clock.monotonic()
        try:
            info = await self._api.info(engine)
        except ControlFailed as error:
            logger.warning("engine %s: %s", engine.url, error)
            return
        info = replace(info, models=await self._models(engine))
        if not self._fleet.learned(engine, info):
            return
        for plugin in Plugin:
            self._metrics.engine_plugin.labels(engine.url, plugin.value).set(plugin is info.plugin)
        if info.plugin is Plugin.ABSENT:
            logger.warning("engine %s runs without the plugin: requests go without hints", engine.url)
        elif info.plugin is Plugin.UNSUPPORTED:
            logger.warning("engine %s: the plugin does not support it: %s", engine.url, info.reason)
        else:
            logger.info("engine %s: plugin %s, batch %s", engine.url, info.version, info.batch)
