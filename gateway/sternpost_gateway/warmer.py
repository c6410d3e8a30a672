"""
Warming engines up: building the tails that requests have asked for before requests ask again.

An engine that comes up holds nothing. For policies with `warm: true` the tails that were used last are built
on it as soon as it is ready, one after the other and within the budget that all builds share; anybody with
the admin token can have that done at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from sternpost_gateway.bounded import Bounded
from sternpost_gateway.builder import TailBuilder, Wish
from sternpost_gateway.fleet import Engine, Fleet, Plugin
from sternpost_gateway.kills import READS_OFF, KillTable
from sternpost_gateway.tails import Refused, TailKey, Tails, TailState

logger = logging.getLogger(__name__)

WISHES_MAX: Final = 64
"""Tails that are remembered, those that were asked for last."""

ENGINE_SECONDS_MAX: Final = 120.0
"""For warming one engine up; what is not built by then is built when it is asked for."""

ATTEMPTS_MAX: Final = 15
RETRY_SECONDS: Final = 1.0
"""How often a build is asked for that the budget or an earlier failure has put off, and how long it waits."""


FOLLOW_SECONDS: Final = 1.0
"""Between looks at which engines have come up."""

Wanted = Callable[[TailKey], bool]
"""Says whether a remembered tail is to be built."""


def may_warm(kills: KillTable, key: TailKey) -> bool:
    """Say whether a tail may be built: its policy's reads are on, and its epoch is the one that is read."""
    return kills.level(key.policy) not in READS_OFF and kills.epoch(key.policy) == key.epoch


class Warmer:
    """Remembers which tails are asked for, and has them built on engines that lack them."""

    def __init__(self, tails: Tails, builder: TailBuilder, fleet: Fleet) -> None:
        self._tails = tails
        self._builder = builder
        self._fleet = fleet
        self._wishes: Bounded[TailKey, Wish] = Bounded(WISHES_MAX)
        self._warming: dict[Engine, asyncio.Task[None]] = {}

    async def run(self, wanted: Wanted) -> None:
        """Warm up every engine that comes up, and every one that has started anew, until cancelled."""
        started: dict[Engine, str] = {}
        while True:
            ready = [view for view in self._fleet.ready_views() if view.info.plugin is Plugin.READY]
            new = [view for view in ready if started.get(view.engine) != view.info.batch]
            self.start([view.engine for view in new], wanted)
            started = {view.engine: view.info.batch for view in ready}
            await asyncio.sleep(FOLLOW_SECONDS)

    def note(self, wish: Wish) -> None:
        """Remember a tail that a request would like to find."""
        self._wishes.put(wish.key, wish)

    def wishes(self, wanted: Wanted) -> list[Wish]:
        """Return the remembered tails that are wanted, those asked for last first."""
        return [wish for key, wish in reversed(self._wishes.items()) if wanted(key)]

    def start(self, engines: Sequence[Engine], wanted: Wanted) -> int:
        """Begin to warm engines up, unless that is under way; return how many tails each is to hold."""
        wishes = self.wishes(wanted)
        self._warming = {engine: task for engine, task in self._warming.items() if not task.done()}
        for engine in engines:
            task = self._warming.get(engine)
            if wishes and (task is None or task.done()):
                self._warming[engine] = asyncio.ensure_future(self._warm(engine, wishes))
        return len(wishes)

    async def close(self) -> None:
        """Stop everything that is under way."""
        for task in self._warming.values():
            task.cancel()
        await asyncio.gather(*self._warming.values(), return_exceptions=True)

    async def _warm(self, engine: Engine, wishes: Sequence[Wish]) -> None:
        try:
            async with asyncio.timeout(ENGINE_SECONDS_MAX):
                for wish in wishes:
                    await self._build(engine, wish)
        except TimeoutError:
            logger.warning("engine %s is not warm in time; tails are built as they are asked for", engine.url)
            return
        logger.info("engine %s holds the %d tails that were asked for last", engine.url, len(wishes))

    async def _build(self, engine: Engine, wish: Wish) -> None:
        """Have a tail built; the builder itself says when it may be, and what it was refused for."""
        for _ in range(ATTEMPTS_MAX):
            if self._tails.state(engine, wish.key) is TailState.BUILT:
                return
            self._builder.want(engine, wish)
            await self._builder.idle()
            if isinstance(self._tails.facts(wish.template.template_id), Refused):
                return
            await asyncio.sleep(RETRY_SECONDS)
