"""What lint found in a log, as values; how it is shown is for others to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sternpost_core.divergence import Difference
from sternpost_core.policy import Detector, Policy
from sternpost_core.template import Template
from sternpost_gateway.lint.survey import Place

FIXED_TAIL: Final = "FixedTail"
"""The kind of a finding about rules that every prompt closes with."""

KINDS: Final[dict[str, str]] = {
    Detector.TIMESTAMP: "A time that changes stands in the prefix",
    Detector.DATE: "A date that changes stands in the prefix",
    Detector.REQUEST_ID: "A request id stands in the prefix",
    Detector.SESSION_ID: "A session id stands in the prefix",
    Detector.TRACE_ID: "A trace id stands in the prefix",
    Detector.UUID: "A UUID that changes stands in the prefix",
    Detector.COUNTER: "A counter stands in the prefix",
    Detector.HASH: "A hash that changes stands in the prefix",
    Detector.WORKING_DIRECTORY: "A working directory that changes stands in the prefix",
    Detector.RANDOM_TOKEN: "A random token stands in the prefix",
    Detector.BILLING_HEADER: "A billing header stands in front of the prefix",
    Difference.TOOL_ORDER: "The same tools come in another order",
    Difference.KEY_ORDER: "The same tools come with their members in another order or form",
    Difference.TOOL_SET: "Requests have different tools",
    Difference.TOOL_TEXT: "Tools of one name differ in description or schema",
    Difference.MESSAGES: "The leading messages differ in number or kind",
    Difference.TEXT: "The leading messages differ in their words",
    Difference.JSON: "The leading messages differ in something else than text",
    FIXED_TAIL: "Prompts close with fixed rules, which a prefix cache cannot reuse",
}
"""Every kind of finding, and what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    One thing that breaks the cache: its kind, where it was found first, and in how many requests.

    `fix` is the name of the fix that helps, None where no policy does. `tokens` are those that are computed
    because of it, once everything else is mended; `estimated` where that is told by the length of text.
    """

    kind: str
    first: Place
    requests: int
    places: int
    fix: str | None
    tokens: int
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FixEffect:
    """What one fix does: reuse, from 0 to 1, with it alone and with all others but it, and tokens saved."""

    name: str
    advice: str
    reuse_alone: float
    reuse_without: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """How many lines were what, and the first bad ones as file, line and reason."""

    requests: int
    skipped: int
    bad: int
    refused: int
    named: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """
    All that is known after both passes over a log.

    Reuse is a share of prompt tokens, from 0 to 1; `price` is for a million prompt tokens, None if not given.
    `notes` say what is not proposed, and why.
    """

    files: tuple[str, ...]
    lines: Lines
    tokens_by: str
    block_tokens: int
    cache_tokens: int
    cache_tokens_asked: int
    prompt_tokens: int
    reuse: float
    reuse_fixed: float
    tokens_saved: int
    findings: tuple[Finding, ...]
    fixes: tuple[FixEffect, ...]
    template: Template | None
    template_fixed: Template | None
    policy: Policy | None
    notes: tuple[str, ...]
    price: float | None = None

    def money(self, tokens: int) -> float | None:
        """Return what so many prompt tokens cost, None if there is no price."""
        return None if self.price is None else tokens * self.price / 1_000_000
