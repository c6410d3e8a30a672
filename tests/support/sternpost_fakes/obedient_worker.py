"""A worker without tensors, which refuses any operation that a real one could not carry out soundly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sternpost_engine.operations import Begin, Capture, Load, Operations, Outcome


@dataclass(slots=True)
class HeldTail:
    """A tail's ids, and how many of them have been captured."""

    tokens: tuple[int, ...]
    written: int = 0


@dataclass(slots=True)
class ObedientWorker:
    """Carries out each step's operations in their order; `distrusts` says whether an ended build fails."""

    distrusts: Callable[[int], bool] = lambda entry: False
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
        for load in operations.loads:
            self._load(load)
        finals = [capture.entry for capture in operations.captures if self._capture(capture)]
        failed = [entry for entry in finals if self.distrusts(entry)]
        completed = [entry for entry in finals if entry not in failed]
        self.completed.update(completed)
        return Outcome(tuple(completed), tuple(failed))

    def _begin(self, begin: Begin) -> None:
        assert begin.entry not in self.dropped, "room is made for what will be kept"
        assert begin.entry not in self.tails, "an entry is begun once"
        self.tails[begin.entry] = HeldTail(begin.tokens)

    def _load(self, load: Load) -> None:
        assert load.entry in self.completed, "what is read was built whole"
        tail, span = self.tails[load.entry], load.span
        assert 0 <= span.offset < span.offset + span.count < len(tail.tokens), "a part of the tail is copied"

    def _capture(self, capture: Capture) -> bool:
        tail, span = self.tails[capture.entry], capture.span
        assert capture.entry not in self.completed, "what readers may hold is not written any more"
        assert span.offset in (0, tail.written), "runs join, or begin anew"
        tail.written = span.offset + span.count
        assert capture.final == (tail.written == len(tail.tokens)), "the last run ends the tail"
        return capture.final
