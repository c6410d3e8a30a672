"""A worker without tensors, which refuses any operation that a real one could not carry out soundly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sternpost_engine.calibration import SCAFFOLD
from sternpost_engine.operations import Begin, Built, Capture, Load, Operations, Outcome


@dataclass(slots=True)
class HeldTail:
    """A tail's ids, how many of them have been captured, and the samples in each mean, `ready` or not."""

    tokens: tuple[int, ...]
    written: int = 0
    sample_written: int = 0
    samples: Counter[int] = field(default_factory=Counter)
    ready: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ObedientWorker:
    """
    Carries out each step's operations in their order.

    `distrusts` says whether an ended build or sample fails, and `samples` is how many a mean takes.
    """

    distrusts: Callable[[Capture], bool] = lambda capture: False
    samples: int = 0
    tails: dict[int, HeldTail] = field(default_factory=dict)
    completed: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)

    def step(self, operations: Operations) -> Outcome:
        """Carry out one step; an operation that makes no sense is an AssertionError or a KeyError."""
        for entry in operations.drops:
            assert entry not in self.dropped, "an entry is dropped once"
            self.dropped.add(entry)
            self.tails.pop(entry, None)
        for begin in operations.begins:
            self._begin(begin)
        for built in operations.finished:
            self._finish(built)
        for load in operations.loads:
            self._load(load)
        finals = [capture for capture in operations.captures if self._capture(capture)]
        completed = [capture for capture in finals if self._settle(capture)]
        return Outcome(
            completed=tuple(Built(capture.entry, capture.variant) for capture in completed),
            failed=tuple(
                Built(capture.entry, capture.variant) for capture in finals if capture not in completed
            ),
        )

    def _begin(self, begin: Begin) -> None:
        assert begin.entry not in self.dropped, "room is made for what will be kept"
        assert begin.entry not in self.tails, "an entry is begun once"
        self.tails[begin.entry] = HeldTail(begin.tokens)

    def _finish(self, built: Built) -> None:
        tail = self.tails[built.entry]
        assert built.variant not in tail.ready, "a mean is rounded once"
        assert tail.samples[built.variant] == self.samples, "all samples of a mean are in"
        tail.ready.add(built.variant)

    def _load(self, load: Load) -> None:
        assert load.entry in self.completed, "what is read was built whole"
        tail, span = self.tails[load.entry], load.span
        assert 0 <= span.offset < span.offset + span.count < len(tail.tokens), "a part of the tail is copied"
        assert {variant for variant, _ in load.mix.shares} <= {SCAFFOLD, *tail.ready}, "what is read is there"
        assert sum(share for _, share in load.mix.shares) == pytest.approx(1), "shares are parts of one tail"

    def _capture(self, capture: Capture) -> bool:
        if capture.variant != SCAFFOLD:
            return self._capture_sample(capture)
        tail, span = self.tails[capture.entry], capture.span
        assert capture.entry not in self.completed, "what readers may hold is not written any more"
        assert span.offset in (0, tail.written), "runs join, or begin anew"
        tail.written = span.offset + span.count
        assert capture.final == (tail.written == len(tail.tokens)), "the last run ends the tail"
        return capture.final

    def _capture_sample(self, capture: Capture) -> bool:
        tail, span = self.tails.get(capture.entry), capture.span
        if tail is None:
            # The tail may be evicted while its sample is computed, which then has failed.
            assert capture.entry in self.dropped, "a sample is one of a tail that was there"
            return capture.final
        assert capture.entry in self.completed, "a tail is calibrated when it is built"
        assert capture.variant not in tail.ready, "a mean that is read takes no more samples"
        assert span.offset in (0, tail.sample_written), "runs join, or begin anew"
        tail.sample_written = span.offset + span.count
        assert capture.final == (tail.sample_written == len(tail.tokens)), "the last run ends the sample"
        return capture.final

    def _settle(self, capture: Capture) -> bool:
        tail = self.tails.get(capture.entry)
        if tail is None or self.distrusts(capture):
            return False
        if capture.variant == SCAFFOLD:
            self.completed.add(capture.entry)
            return True
        taken = tail.samples[capture.variant]
        assert capture.number in (taken, taken - 1), "samples come in order, and the last one may come again"
        tail.samples[capture.variant] = capture.number + 1
        return True
