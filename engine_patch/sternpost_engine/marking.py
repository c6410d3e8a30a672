"""
The planner's view of words: which tokens of a stored tail a request's middle points at.

Kept apart from the planner because it needs the tokenizer, which an engine may be started without.
"""

from __future__ import annotations

from collections.abc import Sequence

from sternpost_engine.matching import Run, TailWords, index_tail, match_runs
from sternpost_engine.vocabulary import Vocabulary

MIDDLE_TOKENS_MAX = 8192
"""So many of a middle's last tokens are read for words: the reading takes time in the scheduler."""


class Marker:
    """Holds the rare words of every stored tail; `common` are words that point at nothing."""

    def __init__(self, vocabulary: Vocabulary, common: frozenset[str]) -> None:
        self._vocabulary = vocabulary
        self._common = common
        self._tails: dict[int, TailWords] = {}

    def learn(self, entry: int, tail: Sequence[int]) -> None:
        """Index a tail that is being built."""
        self._tails[entry] = index_tail(self._vocabulary, tail, self._common)

    def forget(self, entry: int) -> None:
        """The tail is gone."""
        self._tails.pop(entry, None)

    def mark(
        self, entry: int, middle: Sequence[int], *, first: int, end: int, tokens_max: int
    ) -> tuple[Run, ...]:
        """Return the runs of the tail, between these offsets, that the middle points at."""
        tail = self._tails.get(entry)
        if tail is None or tokens_max < 1:
            return ()
        words = (word.text for word in self._vocabulary.words(middle[-MIDDLE_TOKENS_MAX:]))
        return match_runs(tail, words, first=first, end=end, tokens_max=tokens_max)
