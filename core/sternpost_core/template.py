"""
Templates: what most prompts of one policy begin and end with, learned from the prompts themselves.

A prompt's fixed elements (its tools, its leading messages, its closing messages) enter as content ids, never
as text. How often each run of them occurs is counted in bounded space by the method of Misra and Gries,
"Finding repeated elements" (1982): counts are never too high, so that a share is never claimed that is not
there, and too low by at most one in `RUNS_MAX + 1` of all prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from sternpost_core.content import ContentId, content_id

DEPTH_MAX: Final = 4
"""Elements of one end of a prompt that a template may hold."""

RUNS_MAX: Final = 256
"""Runs of one length, at one end, that are counted at once."""

STABLE_SHARE: Final = 0.95
"""The share of prompts that have to follow a template before its tail is worth reusing."""

WITHDRAWN_SHARE: Final = 0.90
"""The share below which a tail that is reused already is so no more."""

STABLE_PROMPTS_MIN: Final = 200
"""Prompts that have to be seen before a share means anything."""

EMPTY_RUN: Final = content_id("run", [])
"""The id of the run that a prompt without fixed elements at that end has."""


class FrequentRuns:
    """Counts ids in bounded space; `counted` is how many came, `missed` how many each count may lack."""

    def __init__(self, runs_max: int = RUNS_MAX) -> None:
        assert runs_max > 0, "there is room for one id at least"
        self.missed = 0
        self._runs_max = runs_max
        self._counts: dict[ContentId, int] = {}

    def add(self, run: ContentId) -> None:
        """Count an id; where there is no room for another, all counts go down by one instead."""
        if run in self._counts:
            self._counts[run] += 1
        elif len(self._counts) < self._runs_max:
            self._counts[run] = 1
        else:
            self.missed += 1
            self._counts = {known: count - 1 for known, count in self._counts.items() if count > 1}

    def halve(self) -> None:
        """Halve what was counted, so that what comes now weighs more than what came before."""
        self.missed //= 2
        self._counts = {run: count // 2 for run, count in self._counts.items() if count > 1}

    def most_frequent(self) -> tuple[ContentId, int] | None:
        """Return the id that came most often, and how often at least; of equals, the first by its digits."""
        return min(self._counts.items(), key=lambda item: (-item[1], item[0]), default=None)

    def count(self, run: ContentId) -> int:
        """Return how often an id came, at least."""
        return self._counts.get(run, 0)

    def __len__(self) -> int:
        return len(self._counts)


@dataclass(frozen=True, slots=True)
class FixedRun:
    """
    A run of elements at one end of prompts: `length` elements, 0 where the end is not fixed at all.

    `share` is the share of prompts, from 0 to 1, that have it at least.
    """

    run_id: ContentId
    length: int
    share: float


@dataclass(frozen=True, slots=True)
class Template:
    """What most of `prompts` prompts begin and end with."""

    prompts: int
    prefix: FixedRun
    tail: FixedRun

    @property
    def stability(self) -> float:
        """
        Return the share of prompts, from 0 to 1, that follow the template at both ends at least.

        Where 97% have the prefix and 98% the tail, at least 95% have both.
        """
        return max(0.0, self.prefix.share + self.tail.share - 1.0)

    @property
    def is_stable(self) -> bool:
        """Say whether the template is followed by enough of enough prompts for its tail to be reused."""
        return self.prompts >= STABLE_PROMPTS_MIN and self.stability >= STABLE_SHARE

    @property
    def is_unstable(self) -> bool:
        """Say whether a tail that is reused already should be so no more."""
        return self.stability < WITHDRAWN_SHARE

    def is_followed_by(self, prefix: Sequence[ContentId], tail: Sequence[ContentId]) -> bool:
        """Say whether a prompt, by the elements of its ends in their order, has the template's runs."""
        return has_run(self.prefix, prefix) and has_run(self.tail, tail[::-1])


class TemplateSummary:
    """
    Learns the template of one policy's prompts.

    With `window`, everything is halved whenever so many prompts have been counted, so that the template
    follows what comes now; without, all prompts weigh alike.
    """

    def __init__(self, window: int | None = None, runs_max: int = RUNS_MAX) -> None:
        assert window is None or window >= 2 * STABLE_PROMPTS_MIN, "half a window is enough to judge by"
        self._window = window
        self._prompts = 0
        self._prefixes = _End(runs_max)
        self._tails = _End(runs_max)

    def observe(self, prefix: Sequence[ContentId], tail: Sequence[ContentId]) -> None:
        """
        Count a prompt by the elements that it begins with and those that it ends with, in their order.

        Only elements that could be fixed belong in here: a user's words are nobody's template.
        """
        self._prompts += 1
        self._prefixes.add(prefix)
        self._tails.add(tail[::-1])
        if self._window is not None and self._prompts >= self._window:
            self._prompts //= 2
            self._prefixes.halve()
            self._tails.halve()

    def tail_share(self, tail: FixedRun) -> float:
        """Return the share of prompts, from 0 to 1, that end with a run at least."""
        return self._tails.share(tail, self._prompts) if self._prompts else 0.0

    def template(self) -> Template | None:
        """Return the template, None before the first prompt."""
        if not self._prompts:
            return None
        return Template(self._prompts, self._prefixes.fixed(self._prompts), self._tails.fixed(self._prompts))


class _End:
    """What one end of prompts begins with, seen from that end, by how many elements."""

    def __init__(self, runs_max: int) -> None:
        self._depths = [FrequentRuns(runs_max) for _ in range(DEPTH_MAX)]

    def add(self, elements: Sequence[ContentId]) -> None:
        for runs, run in zip(self._depths, _runs(elements) if elements else [EMPTY_RUN], strict=False):
            runs.add(run)

    def halve(self) -> None:
        for runs in self._depths:
            runs.halve()

    def share(self, run: FixedRun, prompts: int) -> float:
        """Return the share of prompts that have a run at least."""
        depth = self._depths[max(run.length, 1) - 1]
        return depth.count(run.run_id) / prompts

    def fixed(self, prompts: int) -> FixedRun:
        """Return the longest run that is stable; where none is, the most frequent single element."""
        found = [FixedRun(EMPTY_RUN, 0, 0.0)]
        for length, runs in enumerate(self._depths, start=1):
            run, count = runs.most_frequent() or (EMPTY_RUN, 0)
            fixed = FixedRun(run, 0 if run == EMPTY_RUN else length, count / prompts)
            if length == 1 or fixed.share >= STABLE_SHARE:
                found.append(fixed)
        return found[-1]


def has_run(fixed: FixedRun, elements: Sequence[ContentId]) -> bool:
    """Say whether elements, seen from their end of the prompt, begin with a run."""
    if fixed.length == 0:
        return not elements
    return len(elements) >= fixed.length and run_id(elements[: fixed.length]) == fixed.run_id


def run_id(elements: Sequence[ContentId]) -> ContentId:
    """Return the id of a run of elements, seen from their end of the prompt."""
    return list(_runs(elements))[-1] if elements else EMPTY_RUN


def _runs(elements: Sequence[ContentId]) -> Iterator[ContentId]:
    """Yield the ids of the runs of one, two, ... elements."""
    chained = accumulate(elements[:DEPTH_MAX], _chain, initial=EMPTY_RUN)
    next(chained)
    yield from chained


def _chain(before: ContentId, element: ContentId) -> ContentId:
    return content_id("run", [("before", before.encode()), ("element", element.encode())])


def to_mapping(template: Template) -> Mapping[str, object]:
    """Return what a report shows of a template."""
    return {
        "prompts": template.prompts,
        "stability": template.stability,
        "stable": template.is_stable,
        "prefix": _run_mapping(template.prefix),
        "tail": _run_mapping(template.tail),
    }


def _run_mapping(fixed: FixedRun) -> Mapping[str, object]:
    return {"id": fixed.run_id, "elements": fixed.length, "share": fixed.share}
