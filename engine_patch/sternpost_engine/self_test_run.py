"""
Running the self-test among the requests of a scheduler: its two requests go the ways of all others.

The differences are few: its tail has a salt of its own, its counts are taken back, and one capture more has
the workers compare what the read computes with what the build left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sternpost_core.hint import Reason
from sternpost_engine.index import Eviction, Found
from sternpost_engine.operations import Built, Capture, Load, Operations, Span
from sternpost_engine.planner import TailPlanner
from sternpost_engine.rules import Facts
from sternpost_engine.self_test import (
    COMPARED,
    SELF_TEST_KIND,
    SELF_TEST_PREFIX,
    Probe,
    SelfTest,
    Verdict,
)


class SelfTestRun:
    """Follows the self-test through the planner; `take_probe` says what is to be asked next."""

    def __init__(self, test: SelfTest, planner: TailPlanner) -> None:
        self._test = test
        self._planner = planner
        self._probe: Probe | None = None

    @property
    def verdict(self) -> Verdict:
        """How the self-test stands."""
        return self._test.verdict

    @property
    def refusal(self) -> str | None:
        """Why the store must not be used; None while that is not known."""
        return self._test.reason

    @property
    def tokens(self) -> int:
        """The length of its requests."""
        return self._test.tokens

    def begin(self) -> None:
        """Ask for the build."""
        self._probe = self._test.begin()

    def take_probe(self) -> Probe | None:
        """Return the next request, once."""
        probe, self._probe = self._probe, None
        return probe

    def disguise(self, facts: Facts) -> Facts:
        """Return a request's facts with the self-test's own salt, where it is the self-test's."""
        return replace(facts, salt=SELF_TEST_PREFIX) if self._test.owns(facts.request_id) else facts

    def admitted(self, request_id: str) -> None:
        """A splice was planned: the self-test's is not counted as a lookup."""
        if self._test.owns(request_id):
            self._planner.lookups[Found.LIVE] -= 1

    def with_comparison(self, operations: Operations, runs: Sequence[tuple[str, int, int]]) -> Operations:
        """
        Add the comparison to the step that reads the self-test's tail.

        `runs` hold each scheduled request's id, its first position in the step and its tokens.
        """
        own = {request_id: (first, count) for request_id, first, count in runs if self._test.owns(request_id)}
        compared = [
            _comparison(load, *own[load.request_id]) for load in operations.loads if load.request_id in own
        ]
        return replace(operations, captures=(*operations.captures, *compared)) if compared else operations

    def settle(self, built: Built, *, whole: bool) -> bool:
        """Take the workers' answer; returns whether it was the self-test's comparison."""
        if built.variant != COMPARED:
            return False
        self._test.compared(equal=whole)
        return True

    def finished(self, request_id: str, reason: Reason) -> None:
        """A request has ended, and was counted: go on where it was the self-test's."""
        if not self._test.owns(request_id):
            return
        self._planner.requests[reason] -= 1
        self._probe = self._test.ended(request_id, reason)
        if self._probe is None or self._probe.builds:
            self._drop_tail()

    def _drop_tail(self) -> None:
        for record in list(self._planner.index.records()):
            if record.key.identity.kind == SELF_TEST_KIND:
                self._planner.index.retire(record.entry, Eviction.SELF_TEST)


def _comparison(load: Load, first: int, count: int) -> Capture:
    """The request's own row, by where it stands behind what is loaded."""
    offset = load.span.offset + first - load.span.position
    return Capture(load.entry, Span(load.span.blocks, first, offset, count), final=True, variant=COMPARED)
