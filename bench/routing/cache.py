"""The prefix cache of a mock engine, and what an oracle that sees all of them would find."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

BYTES_PER_TOKEN: Final = 4
BLOCK_TOKENS: Final = 16
HASH_BYTES: Final = 8


def chain_of(body: Any) -> tuple[tuple[bytes, ...], int]:
    """Return the hashes of a chat's blocks, each of everything up to its end, and the prompt's tokens."""
    stream = "".join(f"<{item['role']}>{item['content']}" for item in body["messages"]).encode()
    size = BYTES_PER_TOKEN * BLOCK_TOKENS
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    chain = []
    for start in range(0, len(stream) - len(stream) % size, size):
        digest.update(stream[start : start + size])
        chain.append(digest.digest())
    return tuple(chain), max(1, len(stream) // BYTES_PER_TOKEN)


@dataclass(slots=True)
class BlockCache:
    """One engine's blocks, least recently used first, and those of prompts on their way to it."""

    tokens_max: int
    blocks: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    coming: Counter[bytes] = field(default_factory=Counter)

    def held(self, chain: Sequence[bytes], *, with_coming: bool = False) -> int:
        """Return how many tokens of a prompt's beginning are held."""
        held = 0
        for block in chain:
            if block not in self.blocks and not (with_coming and self.coming[block]):
                break
            held += BLOCK_TOKENS
        return held

    def store(self, chain: Sequence[bytes]) -> None:
        """Hold a prompt's blocks; the end of a prompt goes before its beginning."""
        for block in reversed(chain):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) * BLOCK_TOKENS > self.tokens_max:
            self.blocks.popitem(last=False)

    def clear(self) -> None:
        """Hold nothing."""
        self.blocks.clear()


def oracle(caches: Iterable[BlockCache], chain: Sequence[bytes]) -> int:
    """Return the most tokens of a prompt that any engine holds, or is about to."""
    return max((cache.held(chain, with_coming=True) for cache in caches), default=0)
