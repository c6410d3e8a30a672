"""
Calibration: a tail's KV as the mean over representative middles.

A tail's keys before rotation, and its values, depend on what stands in front, and a mean over middles of the
real ones' length and kind stays far closer to them than the KV after any one context. The means are taken
at three lengths; a request's are interpolated between its neighbours by the logarithm of its middle's length.

The middles come from the engine's own texts alone: a set that ships with the product, or the owner's. They
are never taken from traffic, and nothing in a hint can name a text. Until the means are there the tail is
read as it was built, after the scaffold.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

LENGTHS: Final = (48, 384, 3000)
"""Middle lengths, in tokens, at which means are taken."""

BUSY_SECONDS_MAX: Final = 60.0
"""So long after the last sample's end one is computed beside other work, where the engine is never idle."""

ATTEMPTS_MAX: Final = 3
"""So often a sample that failed is tried; then its tail stays as far calibrated as it is."""

ROOM_SHARE_MIN: Final = 0.5
"""A mean is taken only where middles of this share of its length fit: shorter ones would stand for others."""

SCAFFOLD: Final = -1
"""The variant that was built after the scaffold alone."""


class Texts(Protocol):
    """Where middles come from."""

    def middle(self, kind: str, number: int, tokens: int) -> Sequence[int]:
        """Return the token ids of the `number`th middle of a kind, at most `tokens` long; empty for none."""


@dataclass(frozen=True, slots=True)
class Job:
    """
    A tail to calibrate.

    `scaffold` is what stands before the tail in its build, and a middle's tokens go into it at `insert`.
    """

    entry: int
    scaffold: tuple[int, ...]
    insert: int
    tail: tuple[int, ...]
    kind: str
    lora: object = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One middle of one length for one tail: a prompt that ends with the tail. `final` completes the mean."""

    entry: int
    variant: int
    number: int
    prompt: tuple[int, ...]
    tail_tokens: int
    final: bool
    lora: object = None


class Calibrator:
    """
    Hands out one sample at a time, when the engine has nothing else to do.

    `samples` middles are taken per length; `prompt_tokens_max` is the engine's own limit.
    """

    def __init__(self, texts: Texts, *, samples: int, prompt_tokens_max: int) -> None:
        self._texts = texts
        self._samples = samples
        self._prompt_tokens_max = prompt_tokens_max
        self._jobs: deque[Job] = deque()
        self._steps: deque[tuple[int, int]] = deque()
        self._out: Sample | None = None
        self._attempts = 0
        self._last_end = -math.inf

    @property
    def pending(self) -> int:
        """How many samples are still to be computed, over all tails."""
        return len(self._steps) + max(len(self._jobs) - 1, 0) * len(LENGTHS) * self._samples

    def want(self, job: Job) -> None:
        """Calibrate this tail when its turn comes."""
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._fill()

    def forget(self, entry: int) -> None:
        """The tail is gone."""
        first = bool(self._jobs) and self._jobs[0].entry == entry
        self._jobs = deque(job for job in self._jobs if job.entry != entry)
        if first:
            self._out, self._attempts = None, 0
            self._fill()

    def next_sample(self, now: float, *, idle: bool) -> Sample | None:
        """Return the next sample when it may be computed now; None while one is out or the engine is busy."""
        if self._out is not None or (not idle and now - self._last_end <= BUSY_SECONDS_MAX):
            return None
        while self._steps:
            sample = self._make(*self._steps[0])
            if sample is not None:
                self._out = sample
                return sample
            self._steps.popleft()
            if not self._steps:
                self._finish_job()
        return None

    def done(self, sample: Sample, now: float, *, computed: bool, failed: bool = False) -> None:
        """
        The sample has ended; a lost tail's is forgotten.

        One that was given up for other work is handed out again, one that failed a few times over.
        """
        if self._out is not sample:
            return
        self._out, self._last_end = None, now
        self._attempts = self._attempts + 1 if failed else 0
        if computed:
            self._steps.popleft()
        if not self._steps or self._attempts >= ATTEMPTS_MAX:
            self._finish_job()

    def _fill(self) -> None:
        self._steps.clear()
        if self._jobs:
            self._steps.extend((v, n) for v in range(len(LENGTHS)) for n in range(self._samples))

    def _finish_job(self) -> None:
        self._attempts = 0
        self._jobs.popleft()
        self._fill()

    def _make(self, variant: int, number: int) -> Sample | None:
        job = self._jobs[0]
        room = self._prompt_tokens_max - len(job.scaffold) - len(job.tail)
        if room < ROOM_SHARE_MIN * LENGTHS[variant]:
            return None
        middle = tuple(self._texts.middle(job.kind, number, min(_spread(variant, number), room)))
        if not middle:
            return None
        prompt = job.scaffold[: job.insert] + middle + job.scaffold[job.insert :] + job.tail
        final = number == self._samples - 1
        return Sample(job.entry, variant, number, prompt, len(job.tail), final, job.lora)


@dataclass(frozen=True, slots=True)
class Mix:
    """Which variants a request reads, and each one's share; the shares add up to 1."""

    shares: tuple[tuple[int, float], ...]


AS_BUILT: Final = Mix(((SCAFFOLD, 1.0),))
"""The tail as it was built, after the scaffold alone."""


def mix_for(middle_tokens: int, ready: Sequence[int]) -> Mix:
    """
    Interpolate between the variants that are ready, by the logarithm of the middle's length.

    Shorter than the shortest and longer than the longest take the nearest one whole.

        >>> mix_for(48, [0, 1, 2])
        Mix(shares=((0, 1.0),))
        >>> [(v, round(share, 2)) for v, share in mix_for(136, [0, 1, 2]).shares]
        [(0, 0.5), (1, 0.5)]
    """
    variants = sorted(ready)
    if not variants:
        return AS_BUILT
    position = math.log(max(middle_tokens, 1))
    logs = [math.log(LENGTHS[variant]) for variant in variants]
    if position <= logs[0]:
        return Mix(((variants[0], 1.0),))
    for low, high, before, after in zip(variants, variants[1:], logs, logs[1:], strict=False):
        if position <= after:
            share = (position - before) / (after - before)
            return Mix(((low, 1.0 - share), (high, share)) if share < 1.0 else ((high, 1.0),))
    return Mix(((variants[-1], 1.0),))


def _spread(variant: int, number: int) -> int:
    """
    The length of one sample's middle: around the variant's own, because real middles vary too.

    The factors run through 0.70 to 1.43 evenly by their logarithm, and their mean length is near the centre.
    """
    step = (number * 5) % 8
    return round(LENGTHS[variant] * math.exp((step - 3.5) / 3.5 * math.log(1.43)))
