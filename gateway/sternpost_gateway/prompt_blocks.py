"""
A prompt as the chain of blocks that an engine's prefix cache would hold it in.

The bytes are hashed in the order in which chat templates render them: tools and other options, the messages,
and a tail where the layout puts it. Each block's hash is that of the whole prompt up to the block's end,
under the model and the sharing scope, so that no block is ever found in the middle of another prompt or under
another tenant's salt. Blocks are cut by bytes: tokens are not known on the hot path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sternpost_core.content import tagged
from sternpost_core.jsonspan import Document, Span
from sternpost_core.policy import Layout
from sternpost_gateway.dialogue import raw_member
from sternpost_gateway.plan import Planned
from sternpost_gateway.rendering import RENDERED_FIELDS
from sternpost_gateway.segment import Chat

BLOCK_BYTES: Final = 512
"""Some 128 tokens, eight of vLLM's blocks: smaller ones cost more time than they find."""

BLOCKS_MAX: Final = 2048
"""Of one prompt, 1 MiB: what stands behind them, which is mostly images, counts as never held."""

HASH_BYTES: Final = 8
"""64 bits: two of a million blocks collide once in 36 million gateways, and then a guess is wrong."""

CHAIN_DOMAIN: Final = "sternpost.dev/prompt-blocks"
CHAIN_VERSION: Final = 1

BlockHash = bytes
"""The hash of a prompt up to the end of one block."""


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """
    The blocks of a prompt, without its last, incomplete one, and the bytes of all of it.

    A tail that the suffix store serves is in `prompt_bytes` and in no block: it is found by its own key.
    """

    hashes: tuple[BlockHash, ...] = ()
    prompt_bytes: int = 0


NO_BLOCKS: Final = PromptBlocks()
"""Of a request whose prompt is not known."""


def blocks_of(planned: Planned) -> PromptBlocks:
    """Return the blocks of a request's prompt, as it goes out."""
    document = planned.segmented.canonicalized.document
    if document is None:
        return NO_BLOCKS
    chat = planned.segmented.chat
    options = b"".join(_options(document))
    if chat is None:
        prompt = raw_member(document, "prompt")
        if prompt is None:
            # A chat that is not looked into: nothing is known but its size.
            return PromptBlocks((), len(document.body))
        stream, last = options + prompt, 0
    else:
        spans, last = _order(planned, chat)
        stream = options + b"".join(document.body[slice(*span)] for span in spans)
    # A request with reuse turned off finds nothing and leaves nothing.
    hashes = () if planned.identified.reuse_off else tuple(_chain(_scope(planned), stream))
    return PromptBlocks(hashes, len(stream) + last)


def held_bytes(blocks: int, prompt: PromptBlocks) -> int:
    """
    Return how many bytes of a prompt an engine is to be expected to hold that holds so many whole blocks.

    What two prompts share ends anywhere in a block, in its middle on average; engines' own blocks are far
    smaller.
    """
    return min(prompt.prompt_bytes, blocks * BLOCK_BYTES + BLOCK_BYTES // 2) if blocks else 0


def _order(planned: Planned, chat: Chat) -> tuple[list[Span], int]:
    """Return the prompt's spans in the order they go out, and the bytes of a tail that stands behind them."""
    dialogue, place = chat.dialogue, chat.place
    front = [] if dialogue.instructions is None else [dialogue.instructions]
    if dialogue.text is not None:
        marked = place.inside if place else None
        if marked is None or planned.wish is None:
            return [*front, dialogue.text], 0
        return [*front, Span(dialogue.text.start, marked.start)], dialogue.text.end - marked.start
    messages = dialogue.messages
    if place is None or place.first is None or (planned.wish is None and not planned.edits):
        return [*front, *messages], 0
    end = place.first + place.count
    tail = messages[place.first : end]
    if planned.edits and planned.policy is not None and planned.policy.prompt.layout is Layout.TAIL_FIRST:
        opening = dialogue.opening
        middle = [*messages[opening : place.first], *messages[end:]]
        return [*front, *messages[:opening], *tail, *middle], 0
    others = [*front, *messages[: place.first], *messages[end:]]
    if planned.wish is None:
        return [*others, *tail], 0
    return others, sum(span.end - span.start for span in tail)


def _options(document: Document) -> Iterator[bytes]:
    for name in RENDERED_FIELDS:
        raw = raw_member(document, name)
        if raw is not None:
            # A name and a whole JSON value delimit themselves: no two lists of them join to the same bytes.
            yield b'"' + name.encode() + b'":' + raw


def _scope(planned: Planned) -> bytes:
    identified = planned.identified
    parts = [
        ("model", (identified.model or "").encode()),
        ("salt", (planned.salt or "").encode()),
        ("tenant", (identified.tenant or "").encode() if planned.salt is None else b""),
    ]
    return tagged(CHAIN_DOMAIN, CHAIN_VERSION, "scope", parts)


def _chain(scope: bytes, stream: bytes) -> Iterator[BlockHash]:
    digest = hashlib.blake2b(scope, digest_size=HASH_BYTES)
    view = memoryview(stream)
    for start in range(0, min(len(stream) // BLOCK_BYTES, BLOCKS_MAX) * BLOCK_BYTES, BLOCK_BYTES):
        digest.update(view[start : start + BLOCK_BYTES])
        yield digest.digest()
