"""
Simulating an engine's caches over a log: what is reused as things are, and with some fixes in place.

All scenarios see each request in turn, so that a log is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sternpost_core.policy import Policy
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.identify import text_member
from sternpost_gateway.lint.cache import BLOCKS_MAX, Block, PrefixCache, block_hashes
from sternpost_gateway.lint.encoders import TOKEN_BYTES
from sternpost_gateway.lint.fixes import PolicyNames, pin_fix, policy_of
from sternpost_gateway.lint.prompt import Prompts, Unrenderable
from sternpost_gateway.lint.request import LoggedRequest
from sternpost_gateway.lint.rewrite import MODEL_FIELD, Rewriter, Rewritten

TAIL_TOKENS_MIN: Final = 256
TAIL_TOKENS_MAX: Final = 4096
"""The lengths of tails that engines store."""

TAILS_MAX: Final = 4096
"""Tails whose tokens are remembered, and that the suffix store of a scenario holds."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """How large an engine's blocks and its prefix cache are, in tokens."""

    block_tokens: int
    cache_tokens: int

    def bounded(self, scenarios: int) -> CacheShape:
        """Return the shape whose simulation for so many scenarios stays within `BLOCKS_MAX`."""
        blocks = max(1, min(self.cache_tokens // self.block_tokens, BLOCKS_MAX // scenarios))
        return CacheShape(self.block_tokens, blocks * self.block_tokens)


@dataclass(slots=True)
class Tally:
    """
    Tokens of prompts, and how many of them were reused.

    `refused` counts what a template cannot render; `tail_tokens` is the length of the longest tail.
    """

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    suffix_tokens: int = 0
    tail_tokens: int = 0

    @property
    def reused_tokens(self) -> int:
        """Return the tokens from both stores."""
        return self.prefix_tokens + self.suffix_tokens

    @property
    def computed_tokens(self) -> int:
        """Return the tokens that were not reused."""
        return self.prompt_tokens - self.reused_tokens

    @property
    def reuse(self) -> float:
        """Return the share of prompt tokens, from 0 to 1, that were reused."""
        return self.reused_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A prompt's whole blocks, its tokens, and those of its tail."""

    hashes: Sequence[Block]
    tokens: int


class Scenario:
    """A policy, and the caches of an engine that gets what this policy makes of the requests."""

    def __init__(self, policy: Policy | None, shape: CacheShape, *, takes_later_system: bool) -> None:
        self.tally = Tally()
        self._policy = policy
        self._shape = shape
        self._rewriter = Rewriter(policy, takes_later_system=takes_later_system)
        self._prefixes = PrefixCache(shape.cache_tokens // shape.block_tokens)
        self._tails: Bounded[str, int] = Bounded(TAILS_MAX)

    @property
    def prefix_tokens(self) -> int:
        """Return how many tokens the prefix cache holds by now."""
        return len(self._prefixes) * self._shape.block_tokens

    @property
    def stored_tail_tokens(self) -> int:
        """Return how many tokens all tails have together that have been seen by now, and are remembered."""
        return sum(self._tails.values())

    def rewrite(self, request: LoggedRequest, pinned: LoggedRequest) -> Rewritten:
        """
        Return the request as this scenario's engine gets it.

        Pinning twice is pinning once, and what is `pinned` already costs a look only.
        """
        return self._rewriter.rewrite(pinned if self._rewriter.pins else request)

    def count(self, rewritten: Rewritten, rendered: _Rendered, prompts: Prompts) -> None:
        """Count what the caches hold of a prompt, and hold it from now on."""
        tail = self._stored_tail(rewritten, rendered, prompts)
        exact = rendered.tokens - tail
        # A prompt without any text has no last token to compute.
        usable = max(0, min(rendered.tokens - 1, exact)) // self._shape.block_tokens
        # What a splice stands behind never enters the prefix cache.
        hashes = rendered.hashes[: exact // self._shape.block_tokens]
        rest = -(-rendered.tokens // self._shape.block_tokens) - len(hashes)
        held = self._prefixes.take(hashes, usable, rest) * self._shape.block_tokens
        self.tally.requests += 1
        self.tally.prompt_tokens += rendered.tokens
        self.tally.prefix_tokens += held
        self.tally.suffix_tokens += self._spared(tail)

    def _stored_tail(self, rewritten: Rewritten, rendered: _Rendered, prompts: Prompts) -> int:
        """Return the length of the tail that is reused; the first request with a tail only has it built."""
        if rewritten.tail_key is None:
            return 0
        tokens = self._tails.get(rewritten.tail_key)
        if tokens is None:
            tokens = prompts.tail_tokens(rewritten.document)
            self._tails.put(rewritten.tail_key, tokens)
            self.tally.tail_tokens = max(self.tally.tail_tokens, tokens)
            return 0
        fits = TAIL_TOKENS_MIN <= tokens <= TAIL_TOKENS_MAX
        return tokens if fits and tokens >= rendered.tokens * self._share_min() else 0

    def _share_min(self) -> float:
        suffix_cache = self._policy.suffix_cache if self._policy else None
        return suffix_cache.bypass.min_tail_share if suffix_cache else 1.0

    def _spared(self, tail: int) -> int:
        suffix_cache = self._policy.suffix_cache if self._policy else None
        if not tail or suffix_cache is None:
            return 0
        return max(0, tail - suffix_cache.recompute.head - suffix_cache.recompute.last)


class Simulation:
    """Runs requests through all scenarios, the first of which is things as they are."""

    def __init__(self, policies: Sequence[Policy | None], prompts: Prompts, shape: CacheShape) -> None:
        self.shape = shape.bounded(len(policies))
        self.scenarios = [
            Scenario(policy, self.shape, takes_later_system=prompts.takes_later_system) for policy in policies
        ]
        self._prompts = prompts
        self._pinner = Rewriter(policy_of([pin_fix()], PolicyNames()))

    def observe(self, request: LoggedRequest) -> None:
        """Run one request; what an engine would refuse as it is counts nowhere else."""
        rendered: dict[tuple[bytes, str], _Rendered] = {}
        pinned = replace(request, document=self._pinner.rewrite(request).document)
        for index, scenario in enumerate(self.scenarios):
            rewritten = scenario.rewrite(request, pinned)
            try:
                scenario.count(rewritten, self._render(rewritten, rendered), self._prompts)
            except Unrenderable:
                scenario.tally.refused += 1
                if index == 0:
                    return

    def _render(self, rewritten: Rewritten, known: dict[tuple[bytes, str], _Rendered]) -> _Rendered:
        """Render a body, once for all scenarios that make the same of a request."""
        document = rewritten.document
        seed = f"{text_member(document, MODEL_FIELD)} {rewritten.salt or ''}"
        key = (document.body, seed)
        if key not in known:
            tokens = self._prompts.tokens(document)
            hashes = block_hashes(tokens, seed, self.shape.block_tokens)
            known[key] = _Rendered(hashes, len(tokens) // TOKEN_BYTES)
        return known[key]
