"""
Telling what was found in prompts: a metric and a log line, once a session.

Neither ever holds text of a prompt: a finding is a place and what it looks like.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from sternpost_core.policy import VolatileAction
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.canonicalize import Canonicalized, Finding
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.tool_pins import ToolsOutcome

logger = logging.getLogger(__name__)

TOLD_MAX: Final = 16384
"""Findings that are remembered as told, least recently used first out."""

Told = tuple[str, str, str, str, str]


class Findings:
    """
    Tells each finding once to a session; requests without one share their tenant's.

    `tokens` says about how many tokens so many bytes are.
    """

    def __init__(self, metrics: Metrics, tokens: Callable[[int], float], told_max: int = TOLD_MAX) -> None:
        self._metrics = metrics
        self._tokens = tokens
        self._told: Bounded[Told, bool] = Bounded(told_max)

    def tell(self, canonicalized: Canonicalized) -> None:
        """Count and log what is new in a request."""
        policy = canonicalized.identified.policy
        if policy is None:
            return
        if canonicalized.tools is not None:
            self._metrics.tool_lists.labels(policy.full_name, canonicalized.tools.value).inc()
        if canonicalized.tools is ToolsOutcome.DUPLICATE_TOOL_NAME:
            self._tell_duplicate(canonicalized, policy.full_name)
        for finding in canonicalized.findings:
            if finding.action is VolatileAction.REPORT:
                lost = round(self._tokens(finding.lost_bytes))
                self._metrics.volatile_tokens.labels(policy.full_name, finding.detector).inc(lost)
            self._tell_finding(canonicalized, policy.full_name, finding)

    def _tell_duplicate(self, canonicalized: Canonicalized, policy: str) -> None:
        if self._is_new(canonicalized, policy, "tools", ToolsOutcome.DUPLICATE_TOOL_NAME.value):
            logger.info("policy %s: duplicate_tool_name, tools keep their order", policy)

    def _tell_finding(self, canonicalized: Canonicalized, policy: str, finding: Finding) -> None:
        if not self._is_new(
            canonicalized, policy, finding.path, f"{finding.detector} {finding.action.value}"
        ):
            return
        self._metrics.volatile_spans.labels(policy, finding.detector, finding.action.value).inc()
        logger.info(
            "policy %s: volatile %s at %s char %d, action %s, about %d tokens behind it",
            policy,
            finding.detector,
            finding.path,
            finding.offset,
            finding.action.value,
            round(self._tokens(finding.lost_bytes)),
        )

    def _is_new(self, canonicalized: Canonicalized, policy: str, path: str, what: str) -> bool:
        identified = canonicalized.identified
        key = (policy, identified.tenant or "", identified.session or "", path, what)
        is_new = self._told.get(key) is None
        self._told.put(key, True)
        return is_new
