"""What the gateway relies on in vLLM's KV events: their form, and the publisher's sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway import eventually
from sternpost_fakes.vllm_modules import import_object
from sternpost_gateway.block_index import BlockIndex
from sternpost_gateway.estimates import Estimates
from sternpost_gateway.fleet import Engine, Fleet
from sternpost_gateway.kv_event_reader import KvEventReader
from sternpost_gateway.kv_events import Contents, Message
from sternpost_gateway.settings import KvEventPorts
from sternpost_running.ports import free_ports

pytestmark = pytest.mark.engine

MODULE = "vllm.distributed.kv_events:"
ENGINE = Engine("http://127.0.0.1:8000")


def vllm_class(name: str) -> Any:
    """Return one of vLLM's classes."""
    return import_object(MODULE + name)


def batch(*events: Any) -> Any:
    """Return a batch of vLLM's."""
    return vllm_class("KVEventBatch")(ts=1.0, events=list(events))


def stored(*hashes: bytes) -> Any:
    """Return an event of vLLM's, of blocks of 16 tokens."""
    return vllm_class("BlockStored")(
        block_hashes=list(hashes),
        parent_block_hash=None,
        token_ids=[1] * 16 * len(hashes),
        block_size=16,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=[("salt",)] * len(hashes),
        group_idx=0,
        session_id="s",
    )


def test_batches_are_understood_as_vllm_writes_them() -> None:
    """Each of its events has the effect that its name says."""
    removed = vllm_class("BlockRemoved")(block_hashes=[b"b"], medium="GPU")
    contents = Contents()
    changes = [
        contents.take(Message(number, msgspec.msgpack.encode(batch(event))))
        for number, event in enumerate((stored(b"a", b"b"), removed, vllm_class("AllBlocksCleared")()))
    ]

    assert [32, 16, 0] == [change.held_tokens for change in changes]
    assert [False, False, True] == [change.emptied for change in changes]


async def test_publisher_of_vllm_is_heard_and_replays() -> None:
    """Batches that vLLM's publisher sent before anybody listened are had from its replay socket."""
    ports = KvEventPorts(*free_ports(2))
    index = BlockIndex(FakeClock())
    index.confirm(ENGINE, [b"x"])
    publisher = vllm_class("ZmqEventPublisher")(
        0, endpoint=f"tcp://*:{ports.events}", replay_endpoint=f"tcp://*:{ports.replay}"
    )
    reader = KvEventReader(Fleet([ENGINE], index.forget), index, Estimates(), ports)
    try:
        publisher.publish(batch(stored(b"a")))
        publisher.publish(batch(vllm_class("AllBlocksCleared")()))
        running = asyncio.ensure_future(reader.run())
        await eventually(lambda: index.held(ENGINE) == 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    finally:
        await asyncio.to_thread(publisher.shutdown)
