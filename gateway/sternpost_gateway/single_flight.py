"""
Single flight: of requests that begin alike, one computes the common blocks, and the others wait for it.

It decides and knows neither time nor tasks. A leader announces the blocks that it is about to compute on an
engine. A request that is predicted to find such blocks follows the leader until its answer begins. When a
leader fails, the first follower that asks again becomes the next one, and the others follow that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_gateway.fleet import Engine
from sternpost_gateway.prompt_blocks import BlockHash

WAIT_SECONDS_MAX: Final = 5.0
WAIT_FACTOR: Final = 1.5
"""A follower waits at most so long, or so many times the leader's predicted prefill, whichever is shorter."""

RELEASE_SECONDS: Final = 0.25
RELEASE_JITTER: Final = 0.5
"""Between two followers that go on although their leader has not finished: plus or minus this share."""


@dataclass(slots=True, eq=False)
class Leader:
    """A request that computes blocks others wait for; `next_release` is a monotonic time in seconds."""

    engine: Engine
    hashes: Sequence[BlockHash]
    prefill_seconds: float
    next_release: float = 0.0


class SingleFlight:
    """The leaders of all engines, by the blocks that they compute."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._leaders: dict[tuple[Engine, BlockHash], Leader] = {}

    def __len__(self) -> int:
        return len(self._leaders)

    def leader_of(self, engine: Engine, last_block: BlockHash) -> Leader | None:
        """Return who is computing a block on an engine, None if nobody is."""
        return self._leaders.get((engine, last_block))

    def lead(self, engine: Engine, hashes: Sequence[BlockHash], prefill_seconds: float) -> Leader:
        """Announce the blocks that a request is about to compute; whoever leads one already goes on."""
        leader = Leader(engine, hashes, prefill_seconds)
        for block in hashes:
            self._leaders.setdefault((engine, block), leader)
        return leader

    def end(self, leader: Leader) -> None:
        """Note that a leader has computed its blocks, or has failed to."""
        for block in leader.hashes:
            if self._leaders.get((leader.engine, block)) is leader:
                del self._leaders[(leader.engine, block)]

    def wait_seconds(self, leader: Leader) -> float:
        """Return how long a follower waits for its leader at most."""
        return min(WAIT_SECONDS_MAX, WAIT_FACTOR * leader.prefill_seconds)

    def release_at(self, leader: Leader, now: float) -> float:
        """Return when a follower that has waited in vain goes on: one after the other, not all at once."""
        release = max(now, leader.next_release)
        spread = 1.0 + RELEASE_JITTER * (2.0 * self._chance.random() - 1.0)
        leader.next_release = release + RELEASE_SECONDS * spread
        return release
