"""A publisher of KV events that speaks as vLLM's does, over real ZeroMQ sockets, and restarts on command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from sternpost_gateway.settings import KvEventPorts

END = (-1).to_bytes(8, "big", signed=True)


def stored(*hashes: bytes, block_size: int = 16, **fields: Any) -> dict[str, Any]:
    """Return an event of blocks that are stored."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": [1] * block_size * len(hashes),
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **fields,
    }


def removed(*hashes: bytes, **fields: Any) -> dict[str, Any]:
    """Return an event of blocks that are removed."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **fields}


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: Mapping[str, Any]) -> bytes:
    """Return the payload of a batch."""
    return msgspec.msgpack.encode([1.0, list(events), 0])


class KvPublisher:
    """Publishes batches; what is `lost` is kept for replays only, and `kept` bounds those."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.events = context.socket(zmq.XPUB)
        self.replay = context.socket(zmq.ROUTER)
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self.events, self.replay)]
        self.ports = KvEventPorts(*ports)
        self.replays: list[int] = []
        self._log: list[tuple[int, bytes]] = []
        self._sequence = 0

    async def subscribed(self) -> None:
        """Wait until somebody listens."""
        await self.events.recv()

    async def publish(self, *events: Mapping[str, Any], lost: bool = False) -> None:
        """Publish one batch."""
        payload = batch(*events)
        self._log.append((self._sequence, payload))
        if not lost:
            await self.events.send_multipart([b"", self._sequence.to_bytes(8, "big"), payload])
        self._sequence += 1

    def restart(self) -> None:
        """Begin anew, as an engine does that was restarted."""
        self._log.clear()
        self._sequence = 0

    def forget(self, messages: int) -> None:
        """Keep no more of the oldest messages for replays."""
        del self._log[:messages]

    async def serve_replays(self) -> None:
        """Answer replay requests until cancelled."""
        while True:
            client, _, first = await self.replay.recv_multipart()
            self.replays.append(int.from_bytes(first, "big"))
            for sequence, payload in tuple(self._log):
                if sequence >= self.replays[-1]:
                    number = sequence.to_bytes(8, "big")
                    await self.replay.send_multipart([client, b"", b"", number, payload])
            await self.replay.send_multipart([client, b"", b"", END, b""])


@asynccontextmanager
async def running_kv_publisher() -> AsyncIterator[KvPublisher]:
    """Run a publisher for the length of a block."""
    with zmq.asyncio.Context() as context:
        publisher = KvPublisher(context)
        serving = asyncio.ensure_future(publisher.serve_replays())
        try:
            yield publisher
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            for socket in (publisher.events, publisher.replay):
                socket.close(linger=0)


def hashes_of(count: int, name: str = "b") -> Sequence[bytes]:
    """Return so many block hashes."""
    return [f"{name}{number}".encode() for number in range(count)]
