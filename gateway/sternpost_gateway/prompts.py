"""What a gateway remembers of prompts, from one request to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sternpost_core.clock import Clock
from sternpost_gateway.chat_template import ChatTemplates
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.learning import Learning
from sternpost_gateway.lint.encoders import Encoder, EstimateEncoder, named_encoder, ranks_encoder
from sternpost_gateway.segment_tokens import SegmentTokens
from sternpost_gateway.settings import TokenEstimate
from sternpost_gateway.tool_pins import ToolPins
from sternpost_gateway.turns import Turns
from sternpost_gateway.versions import Versions
from sternpost_gateway.volatile import VolatileLines


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The memories, each bounded by itself; `tokens` says about how many tokens so many bytes are."""

    chat_templates: ChatTemplates
    segment_tokens: SegmentTokens
    versions: Versions
    tokens: Callable[[int], float]
    pins: ToolPins = field(default_factory=ToolPins)
    lines: VolatileLines = field(default_factory=VolatileLines)
    learning: Learning = field(default_factory=Learning)
    turns: Turns = field(default_factory=Turns)

    async def close(self) -> None:
        """Stop everything that is asked in the background."""
        await self.chat_templates.close()
        await self.segment_tokens.close()


def make_prompts(
    api: EngineApi,
    clock: Clock,
    versions: Versions,
    tokens: Callable[[int], float],
    estimate: TokenEstimate | None = None,
) -> Prompts:
    """
    Return memories that hold nothing yet.

    Raises:
        SettingsError, OperatingError: the estimate that was asked for cannot be had.
    """
    return Prompts(
        chat_templates=ChatTemplates(api, clock),
        segment_tokens=SegmentTokens(api, encoder_of(estimate), clock),
        versions=versions,
        tokens=tokens,
    )


def encoder_of(estimate: TokenEstimate | None) -> Encoder:
    """
    Return what estimates tokens: ranks from a file or a package, four bytes to a token without.

    Raises:
        SettingsError, OperatingError: the ranks cannot be had.
    """
    if estimate is None:
        return EstimateEncoder()
    return ranks_encoder(estimate.ranks) if estimate.ranks else named_encoder(estimate.encoding)
