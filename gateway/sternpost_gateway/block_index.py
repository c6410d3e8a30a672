"""
Which engine holds which blocks, as far as the gateway knows.

An engine's blocks are kept least recently used first, as the engine keeps its own. What a request is about to
leave on an engine counts from the moment of the decision, so that a burst of equal prompts stays together; it
is provisional until the engine's answer begins, and gone after a few seconds without one.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sternpost_core.clock import Clock
from sternpost_gateway.fleet import Engine
from sternpost_gateway.prompt_blocks import BlockHash

BLOCKS_MAX: Final = 1_048_576
"""Blocks of all engines together: some 200 MiB, and 134 million tokens."""

ENGINE_BLOCKS_MAX: Final = 65_536
ENGINE_BLOCKS_MIN: Final = 256
"""Blocks of one engine: 8 million tokens are more than an engine's memory holds, 32,000 are less."""

PROVISIONAL_SECONDS: Final = 5.0
"""For which a decision counts without an answer."""

GROWTH_DIVISOR: Final = 4
"""An engine's expected room grows by this part of what it confirms: slower than a miss takes it away."""

CONFIRMED: Final = math.inf
"""Until when a confirmed block counts."""


@dataclass(slots=True)
class _Held:
    """One engine's blocks, least recently used first, and until when each counts."""

    bit: int
    blocks_max: int
    until: OrderedDict[BlockHash, float] = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class _Provisional:
    until: float
    engine: Engine
    hashes: Sequence[BlockHash]


class BlockIndex:
    """
    The blocks of all engines.

    A lookup walks the prompt once, whatever the number of engines: for each block, the engines that hold it
    are the bits of one number.
    """

    def __init__(self, clock: Clock, blocks_max: int = BLOCKS_MAX) -> None:
        self._clock = clock
        self._blocks_max = blocks_max
        self._engines: dict[Engine, _Held] = {}
        self._holders: dict[BlockHash, int] = {}
        self._provisional: deque[_Provisional] = deque()

    def match(self, hashes: Sequence[BlockHash]) -> dict[Engine, int]:
        """Return how many of a prompt's first blocks each engine holds, without engines that hold none."""
        self._expire()
        lengths: dict[int, int] = {}
        alive = -1
        length = 0
        for block in hashes:
            still = alive & self._holders.get(block, 0)
            if still != alive and length:
                lengths[alive & ~still] = length
            alive = still
            if not alive:
                break
            length += 1
        if alive > 0:
            lengths[alive] = length
        return {
            engine: length
            for engine, held in self._engines.items()
            for bits, length in lengths.items()
            if bits & held.bit
        }

    def confirmed(self, engine: Engine, hashes: Sequence[BlockHash]) -> int:
        """Return how many of a prompt's first blocks an engine has computed for certain."""
        held = self._engines.get(engine)
        if held is None:
            return 0
        pairs = enumerate(hashes)
        return next((i for i, block in pairs if held.until.get(block) is not CONFIRMED), len(hashes))

    def expect(self, engine: Engine, hashes: Sequence[BlockHash]) -> None:
        """Count a prompt's blocks as held, provisionally, because a request is on its way to the engine."""
        until = self._clock.monotonic() + PROVISIONAL_SECONDS
        self._hold(engine, hashes, until)
        self._provisional.append(_Provisional(until, engine, hashes))

    def confirm(self, engine: Engine, hashes: Sequence[BlockHash]) -> None:
        """Count blocks as held, because the engine has computed them, and allow for more room again."""
        held = self._of(engine)
        held.blocks_max = min(self._engine_blocks_max(), held.blocks_max + len(hashes) // GROWTH_DIVISOR + 1)
        self._hold(engine, hashes, CONFIRMED)

    def withdraw(self, engine: Engine, hashes: Sequence[BlockHash]) -> None:
        """Take back what `expect` counted, because the request failed; what was confirmed stays."""
        held = self._engines.get(engine)
        for block in hashes if held else ():
            if held and held.until.get(block, CONFIRMED) is not CONFIRMED:
                self._drop(held, block)

    def missed(self, engine: Engine, hashes: Sequence[BlockHash]) -> None:
        """
        Take back blocks that the engine turned out to have evicted, and expect it to hold fewer at all.

        That we believed in these blocks shows that we believed in more room than there is.
        """
        held = self._engines.get(engine)
        if held is None:
            return
        for block in hashes:
            self._drop(held, block)
        self.limit(engine, len(held.until))

    def limit(self, engine: Engine, blocks: int) -> None:
        """Say how many blocks an engine has room for; the least recently used beyond them go."""
        held = self._of(engine)
        held.blocks_max = max(ENGINE_BLOCKS_MIN, min(blocks, self._engine_blocks_max()))
        self._trim(held)

    def forget(self, engine: Engine) -> None:
        """Forget an engine's blocks: it has started anew, has emptied its cache, or is gone."""
        held = self._engines.pop(engine, None)
        for block in held.until if held else ():
            self._release(block, held.bit if held else 0)

    def held(self, engine: Engine) -> int:
        """Return how many blocks an engine is believed to hold."""
        held = self._engines.get(engine)
        return len(held.until) if held else 0

    def _hold(self, engine: Engine, hashes: Sequence[BlockHash], until: float) -> None:
        held = self._of(engine)
        # An engine evicts the end of a prompt before its beginning, so the beginning is used last.
        for block in reversed(hashes):
            known = held.until.get(block)
            if known is None:
                held.until[block] = until
                self._holders[block] = self._holders.get(block, 0) | held.bit
                continue
            if known < until:
                held.until[block] = until
            held.until.move_to_end(block)
        self._trim(held)

    def _of(self, engine: Engine) -> _Held:
        held = self._engines.get(engine)
        if held is None:
            used = sum(other.bit for other in self._engines.values())
            free = ~used & (used + 1)
            held = self._engines[engine] = _Held(free, 0)
            for other in self._engines.values():
                other.blocks_max = min(other.blocks_max or ENGINE_BLOCKS_MAX, self._engine_blocks_max())
                self._trim(other)
        return held

    def _engine_blocks_max(self) -> int:
        return min(ENGINE_BLOCKS_MAX, self._blocks_max // max(1, len(self._engines)))

    def _trim(self, held: _Held) -> None:
        while len(held.until) > held.blocks_max:
            block, _ = held.until.popitem(last=False)
            self._release(block, held.bit)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        while self._provisional and self._provisional[0].until <= now:
            expired = self._provisional.popleft()
            held = self._engines.get(expired.engine)
            for block in expired.hashes if held else ():
                if held and held.until.get(block, CONFIRMED) <= now:
                    self._drop(held, block)

    def _drop(self, held: _Held, block: BlockHash) -> None:
        if held.until.pop(block, None) is not None:
            self._release(block, held.bit)

    def _release(self, block: BlockHash, bit: int) -> None:
        left = self._holders.get(block, 0) & ~bit
        if left:
            self._holders[block] = left
        else:
            self._holders.pop(block, None)
