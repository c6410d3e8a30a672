"""
How many tokens a policy's prefixes and tails have: as the engine counts them, an estimate until then.

Counting happens in the background, once for each content id that comes a second time: the estimate in a
thread, because it takes longer than everything else that is done with a request, and the engine's count by
`/tokenize`. What comes once only, as each prompt of some traffic does, is not worth an engine's time. The
conversations that the engine is given consist of the fixed parts and made-up words.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sternpost_core.clock import Clock
from sternpost_core.content import ContentId
from sternpost_gateway.background import BackgroundWork
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.engine_api import ControlFailed, ControlRefused, EngineApi
from sternpost_gateway.fleet import Engine
from sternpost_gateway.lint.encoders import TOKEN_BYTES, Encoder
from sternpost_gateway.rendering import Fixed
from sternpost_gateway.tokens import (
    EMPTY_TEXT,
    FIRST_TEXT,
    SECOND_TEXT,
    Template,
    common_prefix,
    tokenize_body,
)

logger = logging.getLogger(__name__)

COUNTS_MAX: Final = 4096
"""Content ids whose tokens are known."""

COUNTING_MAX: Final = 4
"""Prompts whose fixed parts are counted at once."""

FAILED_SECONDS: Final = 60.0
"""For which an engine is not asked again after it did not answer."""

ENGINE_SOURCE: Final = "engine"
"""What a count is from that needs no estimate."""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens, and who counted them: the engine, or an estimate by its name."""

    tokens: int
    source: str


class SegmentTokens:
    """The counts of all segments."""

    def __init__(self, api: EngineApi, encoder: Encoder, clock: Clock, counts_max: int = COUNTS_MAX) -> None:
        self._api = api
        self._encoder = encoder
        self._clock = clock
        self._counts: Bounded[ContentId, TokenCount] = Bounded(counts_max)
        self._not_before: Bounded[ContentId, float] = Bounded(counts_max)
        self._met: Bounded[ContentId, bool] = Bounded(counts_max)
        self._counting: set[ContentId] = set()
        self._work = BackgroundWork()

    def of(self, content_id: ContentId) -> TokenCount | None:
        """Return what is known of a segment's tokens."""
        return self._counts.get(content_id)

    def want(self, engine: Engine, fixed: Fixed) -> None:
        """Have parts that come again counted, unless they are, or somebody is at it or has just tried."""
        unknown = [
            content_id
            for content_id in fixed.ids
            if self._has_come_back(content_id) and not self._is_settled(content_id)
        ]
        if unknown and not self._counting.intersection(unknown) and len(self._counting) < COUNTING_MAX:
            self._counting.update(unknown)
            self._work.start(self._count(engine, fixed.read(), unknown))

    async def idle(self) -> None:
        """Wait until nothing is counted."""
        await self._work.idle()

    async def close(self) -> None:
        """Stop counting."""
        await self._work.close()

    def _has_come_back(self, content_id: ContentId) -> bool:
        if self._met.get(content_id):
            return True
        self._met.put(content_id, True)
        return False

    def _is_settled(self, content_id: ContentId) -> bool:
        known = self._counts.get(content_id)
        if known is not None and known.source == ENGINE_SOURCE:
            return True
        return self._clock.monotonic() < (self._not_before.get(content_id) or 0.0)

    async def _count(
        self, engine: Engine, read: Mapping[ContentId, Template], unknown: list[ContentId]
    ) -> None:
        try:
            for content_id in unknown:
                if self._counts.get(content_id) is None:
                    tokens = await asyncio.to_thread(estimated, self._encoder, read[content_id])
                    self._counts.put(content_id, TokenCount(tokens, self._encoder.label))
                self._counts.put(
                    content_id, TokenCount(await self._ask(engine, read[content_id]), ENGINE_SOURCE)
                )
        except (ControlRefused, ControlFailed) as error:
            for content_id in unknown:
                self._not_before.put(content_id, self._clock.monotonic() + FAILED_SECONDS)
            logger.info("tokens of segments stay estimates for a while: %s", error)
        finally:
            self._counting.difference_update(unknown)

    async def _ask(self, engine: Engine, template: Template) -> int:
        """Return a prefix's tokens, or, of a template with a tail, the tail's."""
        if template.tail:
            bodies = [tokenize_body(template, EMPTY_TEXT, with_tail=with_tail) for with_tail in (True, False)]
            whole, rest = [await self._api.tokenize(engine, body) for body in bodies]
            return max(0, len(whole) - len(rest))
        texts = (FIRST_TEXT, SECOND_TEXT)
        bodies = [tokenize_body(template, text, with_tail=False) for text in texts]
        one, two = [await self._api.tokenize(engine, body) for body in bodies]
        return common_prefix(one, two)


def estimated(encoder: Encoder, template: Template) -> int:
    """Return about how many tokens a prefix has, or, of a template with a tail, the tail."""
    raw = template.tail or b"".join((*(value for _, value in template.options), *template.opening))
    return len(encoder.encode(raw.decode())) // TOKEN_BYTES
