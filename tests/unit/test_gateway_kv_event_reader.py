"""Listening to KV events over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway import eventually
from sternpost_fakes.kv_publisher import (
    CLEARED,
    KvPublisher,
    hashes_of,
    removed,
    running_kv_publisher,
    stored,
)
from sternpost_gateway.block_index import ENGINE_BLOCKS_MIN, BlockIndex
from sternpost_gateway.estimates import Estimates
from sternpost_gateway.fleet import Engine, Fleet
from sternpost_gateway.kv_event_reader import KvEventReader

ENGINE = Engine("http://127.0.0.1:8000")
PROMPT = tuple(number.to_bytes(8, "big") for number in range(2 * ENGINE_BLOCKS_MIN))

BLOCKS = 512 // 4 // 16
"""Engine's blocks of 16 tokens in one of ours, at 4 bytes for a token."""


@dataclass(frozen=True, slots=True)
class Scene:
    """An engine's events, and the index that they correct."""

    publisher: KvPublisher
    index: BlockIndex


@asynccontextmanager
async def listening(*, before: int = 0) -> AsyncIterator[Scene]:
    """Listen to an engine that is believed to hold a prompt, and has published some batches before."""
    index = BlockIndex(FakeClock())
    index.confirm(ENGINE, PROMPT)
    async with running_kv_publisher() as publisher:
        for number in range(before):
            await publisher.publish(stored(f"early{number}".encode()))
        reader = KvEventReader(Fleet([ENGINE], index.forget), index, Estimates(), publisher.ports)
        running = asyncio.ensure_future(reader.run())
        try:
            await publisher.subscribed()
            await eventually(lambda: bool(publisher.replays))
            yield Scene(publisher, index)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_engine_that_holds_less_is_believed_to_hold_less() -> None:
    """What is evicted bounds what is believed; the beginning of the prompt stays longest."""
    async with listening() as scene:
        everything = hashes_of(len(PROMPT) * BLOCKS)
        await scene.publisher.publish(stored(*everything))
        await scene.publisher.publish(removed(*everything[(ENGINE_BLOCKS_MIN + 9) * BLOCKS :]))
        await eventually(lambda: scene.index.held(ENGINE) < len(PROMPT))

        assert ENGINE_BLOCKS_MIN + 10 == scene.index.held(ENGINE)
        assert {ENGINE: ENGINE_BLOCKS_MIN + 10} == scene.index.match(PROMPT)


@pytest.mark.parametrize("restart", [False, True], ids=["cleared", "restarted"])
async def test_engine_that_has_emptied_its_cache_holds_nothing(restart: bool) -> None:
    """After a reset of the prefix cache, and after a restart, nothing is believed any more."""
    async with listening() as scene:
        await scene.publisher.publish(stored(b"a"))
        await scene.publisher.publish(stored(b"b"))
        if restart:
            scene.publisher.restart()
        await scene.publisher.publish(stored(b"c") if restart else CLEARED)
        await eventually(lambda: scene.index.held(ENGINE) == 0)


async def test_lost_message_is_replayed() -> None:
    """A gap is filled from the replay socket, so that the clearing in it is not missed."""
    async with listening() as scene:
        await scene.publisher.publish(stored(b"a"))
        await scene.publisher.publish(CLEARED, lost=True)
        await scene.publisher.publish(stored(b"b"))
        await eventually(lambda: scene.index.held(ENGINE) == 0)

        assert [0, 1] == scene.publisher.replays


async def test_late_listener_asks_for_what_came_before() -> None:
    """Everything that the engine still has is replayed at the beginning."""
    async with listening(before=3) as scene:
        await eventually(lambda: scene.index.held(ENGINE) == ENGINE_BLOCKS_MIN)

        assert [0] == scene.publisher.replays
