"""Listening to the engines' KV events over ZeroMQ, and correcting what is believed of each."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Final
from urllib.parse import urlsplit

import zmq
import zmq.asyncio

from sternpost_gateway.block_index import BlockIndex
from sternpost_gateway.estimates import Estimates
from sternpost_gateway.fleet import Engine, Fleet
from sternpost_gateway.kv_events import Change, Contents, KvEventsError, Message
from sternpost_gateway.per_engine import run_per_engine
from sternpost_gateway.prompt_blocks import BLOCK_BYTES
from sternpost_gateway.settings import KvEventPorts

logger = logging.getLogger(__name__)

END_OF_REPLAY: Final = -1
SEQUENCE_BYTES: Final = 8

REPLAY_SECONDS: Final = 2.0
"""For each message of a replay: without one for so long, the engine has no replay."""

REPLAY_MESSAGES_MAX: Final = 100_000
"""Of one replay: ten times what vLLM keeps."""

HIGH_WATER_MARK: Final = 100_000
"""Messages that are held unread: as many as vLLM holds unsent."""

FOLLOW_SECONDS: Final = 2.0
"""Between looks at which engines there are."""


class KvEventReader:
    """Keeps the index in step with what engines say they hold."""

    def __init__(self, fleet: Fleet, index: BlockIndex, estimates: Estimates, ports: KvEventPorts) -> None:
        self._fleet = fleet
        self._index = index
        self._estimates = estimates
        self._ports = ports

    async def run(self) -> None:
        """Listen to all engines until cancelled."""
        with zmq.asyncio.Context() as context:

            async def listen(engine: Engine) -> None:
                await self._listen(context, engine)

            await run_per_engine(lambda: self._fleet.engines, listen, FOLLOW_SECONDS)

    async def _listen(self, context: zmq.asyncio.Context, engine: Engine) -> None:
        contents = Contents()
        with context.socket(zmq.SUB) as events:
            events.setsockopt(zmq.LINGER, 0)
            events.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
            events.setsockopt(zmq.SUBSCRIBE, b"")
            events.connect(_address(engine, self._ports.events))
            # What was published before we came is part of what the engine holds.
            await self._replay(context, engine, contents)
            while True:
                _, sequence, payload = await events.recv_multipart()
                message = Message(_number(sequence), payload)
                if self._take(engine, contents, contents.take, message).replay_from is not None:
                    await self._replay(context, engine, contents)
                    # Where the replay has not come so far, the gap in front of the message stays.
                    self._take(engine, contents, contents.take_replayed, message)

    async def _replay(self, context: zmq.asyncio.Context, engine: Engine, contents: Contents) -> None:
        """Take what was missed, as far as the engine still has it."""
        async for message in self._replayed(context, engine, contents.expected):
            self._take(engine, contents, contents.take_replayed, message)

    async def _replayed(
        self, context: zmq.asyncio.Context, engine: Engine, first: int
    ) -> AsyncIterator[Message]:
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(_address(engine, self._ports.replay))
            await socket.send_multipart([b"", first.to_bytes(SEQUENCE_BYTES, "big")])
            for _ in range(REPLAY_MESSAGES_MAX):
                if not await socket.poll(int(REPLAY_SECONDS * 1000)):
                    logger.warning("engine %s does not replay its KV events", engine.url)
                    return
                *_, sequence, payload = await socket.recv_multipart()
                number = _number(sequence)
                if number == END_OF_REPLAY:
                    return
                yield Message(number, payload)

    def _take(
        self, engine: Engine, contents: Contents, take: Callable[[Message], Change], message: Message
    ) -> Change:
        try:
            change = take(message)
        except KvEventsError as error:
            logger.warning("engine %s: %s", engine.url, error)
            contents.is_complete = False
            return Change()
        if change.emptied:
            self._index.forget(engine)
        elif change.held_tokens is not None:
            self._index.limit(engine, int(change.held_tokens / self._estimates.tokens(BLOCK_BYTES)) + 1)
        return change


def _address(engine: Engine, port: int) -> str:
    host = urlsplit(engine.url).hostname or ""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _number(sequence: bytes) -> int:
    return int.from_bytes(sequence, "big", signed=True)
