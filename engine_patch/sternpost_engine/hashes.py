"""
Block hashes of requests that read a tail.

vLLM's prefix store finds blocks by hashes that are chained over the prompt's tokens, so approximate KV must
never be found under the hash of its tokens. A request that reads a tail therefore has other hashes from its
first block with approximate KV on: that block's ordinary hash, mixed with the seed of the request's
namespace, and vLLM's own chain over everything behind it. Salt and adapter are in the ordinary hashes, and so
in these. Blocks of exact KV keep their hashes and are shared with everybody.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Protocol

from sternpost_engine.tracks import Space


class HashedRequest(Protocol):
    """What this module needs of vLLM's request."""

    request_id: str
    block_hashes: list[bytes]

    def update_block_hashes(self) -> None:
        """Append the hashes of the whole blocks that `block_hashes` does not cover yet."""


class BlockHashes:
    """Moves requests into their namespaces and back; holds the ordinary hashes meanwhile."""

    def __init__(self) -> None:
        self._ordinary: dict[str, tuple[int, list[bytes]]] = {}

    @property
    def held(self) -> int:
        """How many requests are in a namespace."""
        return len(self._ordinary)

    def enter(self, request: HashedRequest, space: Space, block_tokens: int) -> bool:
        """
        Give the request hashes of its own from the block of token `space.first` on.

        Returns False, and changes nothing, when the request has no whole block there.
        """
        self.leave(request)
        block = space.first // block_tokens
        if block >= len(request.block_hashes):
            return False
        ordinary = request.block_hashes[block:]
        self._ordinary[request.request_id] = (block, ordinary)
        request.block_hashes[block:] = [sha256(space.seed + ordinary[0]).digest()]
        request.update_block_hashes()
        return True

    def leave(self, request: HashedRequest) -> None:
        """Give the request its ordinary hashes back, with those of the tokens that have come since."""
        held = self._ordinary.pop(request.request_id, None)
        if held is not None:
            block, ordinary = held
            request.block_hashes[block:] = ordinary
            request.update_block_hashes()

    def forget(self, request_id: str) -> None:
        """Drop what is held of a request that ended."""
        self._ordinary.pop(request_id, None)
