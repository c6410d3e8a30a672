"""What a gateway remembers of prompts, from one request to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sternpost_gateway.chat_template import ChatTemplates
from sternpost_gateway.learning import Learning
from sternpost_gateway.tool_pins import ToolPins
from sternpost_gateway.turns import Turns
from sternpost_gateway.versions import Versions
from sternpost_gateway.volatile import VolatileLines


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The memories, each bounded by itself; `tokens` says about how many tokens so many bytes are."""

    chat_templates: ChatTemplates
    versions: Versions
    tokens: Callable[[int], float]
    pins: ToolPins = field(default_factory=ToolPins)
    lines: VolatileLines = field(default_factory=VolatileLines)
    learning: Learning = field(default_factory=Learning)
    turns: Turns = field(default_factory=Turns)
