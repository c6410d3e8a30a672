"""
An engine's prefix cache, simulated: which tokens of a prompt it holds already.

As in vLLM, what is held is whole blocks, each known by its own tokens and all in front of it; at least one
token is always computed; and of what nobody uses, the block that was used longest ago goes first, the end of
a prompt before its beginning. What answers add to the cache is not simulated: logs of requests lack it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from sternpost_gateway.lint.encoders import TOKEN_BYTES

BLOCKS_MAX: Final = 600_000
"""Blocks that all caches of a simulation may hold together; each takes some 200 bytes of memory."""

HASH_BYTES: Final = 8
"""Of a block's hash: as many bits as the simulation's own bookkeeping takes for a number."""

Block = int


def block_hashes(tokens: bytes, seed: str, block_tokens: int) -> list[Block]:
    """
    Return the hashes of a prompt's whole blocks, each chained to those before it; the same in every run.
    """
    size = block_tokens * TOKEN_BYTES
    before = hashlib.blake2b(seed.encode(errors="surrogatepass"), digest_size=HASH_BYTES).digest()
    hashes: list[Block] = []
    for start in range(0, len(tokens) - size + 1, size):
        before = hashlib.blake2b(before + tokens[start : start + size], digest_size=HASH_BYTES).digest()
        hashes.append(int.from_bytes(before, "big"))
    return hashes


class PrefixCache:
    """A cache of `blocks_max` blocks."""

    def __init__(self, blocks_max: int) -> None:
        assert blocks_max > 0, "a cache has room for a block"
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[Block, None] = OrderedDict()

    def take(self, hashes: Sequence[Block], usable: int, partial: int = 0) -> int:
        """
        Look a prompt up, then hold it; return how many of its first blocks were there.

        Of a prompt's blocks, the first `usable` may be reused. Those behind them that are `partial`, or not
        to be held for another reason, take room while the prompt is computed.
        """
        blocks = self._blocks
        usable = min(usable, len(hashes))
        held = next((index for index, block in enumerate(hashes[:usable]) if block not in blocks), usable)
        for block in reversed(hashes):
            blocks[block] = None
            blocks.move_to_end(block)
        while len(blocks) > max(0, self._blocks_max - partial):
            blocks.popitem(last=False)
        return held

    def __len__(self) -> int:
        return len(self._blocks)
