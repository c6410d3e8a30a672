"""
Which tokens of a tail a middle points at.

A request that names a row of the tail's table, or one of its tools, changes what the model makes of that
row: in some layers the keys and values of just these tokens carry the answer, and no mean can hold them. So
the words that middle and tail share are computed afresh, each with the rest of its row or sentence. Words
that most middles have, or that stand all over the tail, point at nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_engine.vocabulary import Vocabulary, Word

LETTERS_MIN: Final = 3
"""Shorter words point at nothing, but for scripts without spaces, where two characters are a word."""

UNSPACED_LETTERS_MIN: Final = 2

OCCURRENCES_MAX: Final = 2
"""A word that stands in the tail more often than this is part of its language, not a row of its table."""

TOKENS_AFTER_MIN: Final = 3
TOKENS_AFTER_MAX: Final = 12
"""
Tokens behind a matched word that are computed with it: what the word introduces follows it, up to the end of
the row or sentence. "The hinge is on shelf K" has its answer four tokens behind the word that is asked for.
"""

COMMON_SHARE: Final = 0.25
"""A word in more than this share of the calibration texts is common."""


@dataclass(frozen=True, slots=True)
class Run:
    """`count` tokens of a tail from `offset` on."""

    offset: int
    count: int

    @property
    def end(self) -> int:
        """The offset of the first token behind the run."""
        return self.offset + self.count


@dataclass(frozen=True, slots=True)
class TailWords:
    """
    The rare words of a tail and where they stand; `length` is the tail's number of tokens.

    `ends` are the positions, in order, of the tokens with which a row or a sentence ends.
    """

    length: int
    places: Mapping[str, tuple[Word, ...]]
    ends: tuple[int, ...] = ()

    def after(self, word: Word) -> int:
        """Return the position behind what is computed with a word."""
        least, most = word.last + 1 + TOKENS_AFTER_MIN, word.last + 1 + TOKENS_AFTER_MAX
        place = bisect_left(self.ends, word.last + 1)
        return max(least, min(self.ends[place], most)) if place < len(self.ends) else least


def index_tail(vocabulary: Vocabulary, tokens: Sequence[int], common: Collection[str]) -> TailWords:
    """Find the tail's rare words, once per tail."""
    places: dict[str, list[Word]] = {}
    for word in vocabulary.words(tokens):
        if len(word.text) >= _letters_min(word.text) and word.text not in common:
            places.setdefault(word.text, []).append(word)
    rare = {text: tuple(words) for text, words in places.items() if len(words) <= OCCURRENCES_MAX}
    return TailWords(len(tokens), rare, vocabulary.ends(tokens))


def match_runs(
    tail: TailWords, middle: Iterable[str], *, first: int, end: int, tokens_max: int
) -> tuple[Run, ...]:
    """
    Return the runs of the tail that the middle's words point at, in order, apart from each other.

    Only tokens from offset `first` up to `end` count, and at most `tokens_max` of them: the longest words
    come first, for they are the least likely to be there by chance.
    """
    matched = [word for text in set(middle) for word in tail.places.get(text, ())]
    matched.sort(key=lambda word: (-len(word.text), word.first, word.last))
    chosen: set[int] = set()
    for word in matched:
        # Where the rest of the row is too much, the next few tokens still are better than nothing.
        for stop in (tail.after(word), word.last + 1 + TOKENS_AFTER_MIN):
            wanted = set(range(max(word.first, first), min(stop, end))) - chosen
            if len(chosen) + len(wanted) <= tokens_max:
                chosen |= wanted
                break
    return _runs(sorted(chosen))


def common_words(texts: Iterable[Iterable[str]]) -> frozenset[str]:
    """Return the words that stand in more than `COMMON_SHARE` of the texts."""
    counts: Counter[str] = Counter()
    number = 0
    for words in texts:
        number += 1
        counts.update(set(words))
    # With a handful of texts every word of one would be common, so two must have it at least.
    return frozenset(word for word, count in counts.items() if count > max(COMMON_SHARE * number, 1))


def _letters_min(text: str) -> int:
    return LETTERS_MIN if text.isascii() else UNSPACED_LETTERS_MIN


def _runs(offsets: Sequence[int]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for offset in offsets:
        if runs and runs[-1].end == offset:
            runs[-1] = Run(runs[-1].offset, runs[-1].count + 1)
        else:
            runs.append(Run(offset, 1))
    return tuple(runs)
