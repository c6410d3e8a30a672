"""
The record stage: what an exchange says about the engine's store, and what is counted.

It runs after the last byte, and waits for nothing.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Final

from sternpost_core.hint import Operation, Reason, Report
from sternpost_core.keys import owner_of
from sternpost_core.rollout import Arm
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.compose import Composed
from sternpost_gateway.dialogue import raw_member
from sternpost_gateway.engine_api import report_of
from sternpost_gateway.fleet import Fleet
from sternpost_gateway.meter import Usage
from sternpost_gateway.metrics import NO_POLICY, Metrics
from sternpost_gateway.plan import Planned
from sternpost_gateway.relay import Relayed
from sternpost_gateway.router import Lesson
from sternpost_gateway.tails import Tails
from sternpost_gateway.trips import Trips

logger = logging.getLogger(__name__)

LENGTH_FIELDS: Final = ("max_tokens", "max_completion_tokens")
"""Where a client says how many tokens its answer may have."""

LENGTH: Final = "length"
CUT: Final = "upstream_cut"
CLIENT_GONE: Final = "client_gone"
DISCONNECTED: Final = "upstream_disconnected"
SERVER_ERROR: Final = "5xx"
FOREIGN_OWNER: Final = "foreign_owner"
"""Outcomes; those that a read may have caused are also what trips an engine."""

DIGEST_BYTES: Final = 12
"""Of a session's name: two that share it would be counted as one, which is next to impossible."""

SESSIONS_MAX: Final = 100_000
"""Sessions that are remembered, to count each once."""

FOUND: Final = frozenset({Reason.HIT})
MISSING: Final = frozenset({Reason.NOT_BUILT, Reason.FALSE_HIT})
"""What a read's report says about whether the engine holds the tail; other reasons say nothing about it."""

FAILED: Final = frozenset({Reason.COPY_FAILED, Reason.FALSE_HIT, Reason.FOREIGN_TAIL})
"""What a read's report says when the engine's store is not as it ought to be."""


class Recorder:
    """Counts exchanges and corrects beliefs by what engines report."""

    def __init__(self, metrics: Metrics, tails: Tails, fleet: Fleet, trips: Trips) -> None:
        self._metrics = metrics
        self._tails = tails
        self._fleet = fleet
        self._trips = trips
        self._sessions: Bounded[bytes, bool] = Bounded(SESSIONS_MAX)

    def answered(self, composed: Composed, relayed: Relayed) -> Report | None:
        """Record an exchange that an engine answered, and return what it reported about its store."""
        policy, arm = policy_label(composed.planned), arm_label(composed.planned)
        outcome = outcome_of(composed.planned, relayed)
        self._metrics.requests.labels(policy, arm, outcome).inc()
        self._count_session(composed.planned)
        report = report_of(relayed.usage)
        if names_another(composed.planned, report):
            self._violated(composed, policy)
        self._record_reuse(composed, policy, report)
        if asks_to_read(composed) and (failure := read_failure(relayed, report)) is not None:
            self._trips.failed(composed.engine, failure)
        if relayed.is_stream and relayed.first_byte is not None:
            seconds = relayed.first_byte - composed.planned.identified.received.arrived
            path, exemplar = _path(report, relayed), composed.planned.identified.received.trace.exemplar
            self._metrics.first_token_seconds.labels(policy, arm, path).observe(seconds, exemplar)
            between = inter_token_seconds(relayed)
            if between is not None:
                self._metrics.inter_token_seconds.labels(policy, arm, path).observe(between, exemplar)
        return report

    def disconnected(self, composed: Composed) -> None:
        """Record that an engine ended the connection before its answer, which it does when it dies."""
        if asks_to_read(composed):
            self._trips.failed(composed.engine, DISCONNECTED)

    def refused(self, policy: str, outcome: str, arm: str = Arm.ALL.value) -> None:
        """Record an exchange that the gateway answered itself, or that nobody waited for."""
        self._metrics.requests.labels(policy, arm, outcome).inc()

    def _violated(self, composed: Composed, policy: str) -> None:
        """Count that a tail of another scope was read, and keep the engine from reading any."""
        self._metrics.isolation_violations.labels(policy).inc()
        logger.critical(
            "request %s: %s read a tail of another tenant or session",
            composed.planned.identified.received.request_id,
            composed.engine.url,
        )
        self._trips.trip(composed.engine, FOREIGN_OWNER)

    def _count_session(self, planned: Planned) -> None:
        """
        Count a policy's session when it is new to its arm; without a name, its conversation stands for it.

        A session that a rollout takes over has to be seen among those of the canary.
        """
        if planned.policy is None:
            return
        session = planned.identified.session or planned.conversation or ""
        arm = arm_label(planned)
        key = f"{planned.policy.full_name} {arm} {planned.identified.tenant!r} {session}"
        name = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()
        if self._sessions.get(name) is None:
            self._sessions.put(name, True)
            self._metrics.sessions.labels(policy_label(planned), arm).inc()

    def _record_reuse(self, composed: Composed, policy: str, report: Report | None) -> None:
        wish = composed.planned.wish
        if report is not None:
            self._count_tokens(policy, arm_label(composed.planned), report)
            self._fleet.reported(composed.engine, report.engine)
            if wish is not None and report.reason in FOUND:
                self._tails.hit(composed.engine, wish.key)
            elif wish is not None and report.reason in MISSING:
                self._tails.missed(composed.engine, wish.key)
        if report is not None and composed.outlook.bypass is None and report.reason is not Reason.HIT:
            self._metrics.bypasses.labels(policy, report.reason.value).inc()
        elif composed.outlook.bypass is not None and (report is None or report.reason is not Reason.HIT):
            self._metrics.bypasses.labels(policy, composed.outlook.bypass.value).inc()

    def _count_tokens(self, policy: str, arm: str, report: Report) -> None:
        tokens = self._metrics.prompt_tokens
        tokens.labels(policy, arm, "prefix").inc(report.prefix_tokens)
        tokens.labels(policy, arm, "suffix").inc(report.suffix_tokens)
        tokens.labels(policy, arm, "computed").inc(report.computed_tokens)


def lesson_of(relayed: Relayed, report: Report | None, sent_at: float) -> Lesson:
    """Return what an answer says about its engine; `sent_at` is when it was asked, in monotonic seconds."""
    began = relayed.first_byte if relayed.is_stream else None
    return Lesson(
        first_token_seconds=None if began is None else began - sent_at,
        report=report,
        cached_tokens=cached_tokens_of(relayed.usage),
        prompt_tokens=count_of(relayed.usage, "prompt_tokens"),
    )


def cached_tokens_of(usage: Usage | None) -> int | None:
    """Return how many prompt tokens any engine's usage says were cached, None if it does not say."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") if usage else None
    return count_of(details, "cached_tokens") if isinstance(details, dict) else None


def count_of(mapping: Usage | None, name: str) -> int | None:
    """Return a count of an engine's usage, None where it does not say, or nothing that is one."""
    found = mapping.get(name) if mapping else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def asks_to_read(composed: Composed) -> bool:
    """Say whether the engine was asked for a suffix read."""
    hint = composed.outlook.hint
    return hint is not None and hint.op is Operation.READ


def names_another(planned: Planned, report: Report | None) -> bool:
    """Say whether an engine reports that it read the tail of a scope that is not the request's."""
    if report is None or not report.owner or planned.salt is None:
        return False
    return report.owner != owner_of(planned.salt)


def read_failure(relayed: Relayed, report: Report | None) -> str | None:
    """Return how an answer to a suffix read failed in a way that the read may have caused, None if not."""
    if report is not None and report.reason in FAILED:
        return report.reason.value
    if relayed.cut:
        return CUT
    return SERVER_ERROR if relayed.status >= 500 else None


def outcome_of(planned: Planned, relayed: Relayed) -> str:
    """Return how an answer ended: cut, at the number of tokens that the client allows, or with its status."""
    if relayed.cut:
        return CUT
    document = planned.segmented.canonicalized.document
    tokens = count_of(relayed.usage, "completion_tokens")
    if document is not None and tokens is not None:
        limits = (raw_member(document, name) for name in LENGTH_FIELDS)
        if any(limit == str(tokens).encode() for limit in limits):
            return LENGTH
    return f"{relayed.status // 100}xx"


def inter_token_seconds(relayed: Relayed) -> float | None:
    """Return the mean time between two tokens of a streamed answer, None where there are not two."""
    tokens = count_of(relayed.usage, "completion_tokens") or count_of(relayed.usage, "output_tokens")
    if tokens is None or tokens < 2 or relayed.first_byte is None or relayed.last_byte is None:
        return None
    return (relayed.last_byte - relayed.first_byte) / (tokens - 1)


def arm_label(planned: Planned) -> str:
    """Return the arm label of a request."""
    return planned.identified.arm.value


def policy_label(planned: Planned) -> str:
    """Return the policy label of a request."""
    return planned.policy.full_name if planned.policy else NO_POLICY


def _path(report: Report | None, relayed: Relayed) -> str:
    """Say what the engine reused: `suffix`, `prefix` or nothing (`exact`); `unknown` if it did not say."""
    if report is not None:
        return "suffix" if report.suffix_tokens else "prefix" if report.prefix_tokens else "exact"
    if relayed.usage is None:
        return "unknown"
    return "prefix" if cached_tokens_of(relayed.usage) else "exact"
