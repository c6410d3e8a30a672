"""How long a prompt takes when its tail is reused, over full prefill, on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from sternpost_core.clock import Clock
from sternpost_engine.calibrate.arms import Arm
from sternpost_engine.calibrate.laboratory import Laboratory
from sternpost_engine.reference import ReferenceModel, SlotCache, prefill, splice


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times computations to their end on the device."""

    clock: Clock
    device: torch.device

    def seconds(self, compute: Callable[[], object]) -> float:
        """Return how long a computation takes."""
        self._wait()
        began = self.clock.monotonic()
        compute()
        self._wait()
        return self.clock.monotonic() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def time_ratios(
    laboratory: Laboratory,
    middles: Sequence[Sequence[int]],
    arms: Sequence[Arm],
    stopwatch: Stopwatch,
) -> dict[Arm, float]:
    """
    Return each arm's seconds over full prefill's, as the median of these middles.

    The prefix is in the cache on both sides; the copy of the tail and its rotation count.
    """
    found: dict[Arm, list[float]] = {arm: [] for arm in arms}
    for middle in middles:
        full = _full_seconds(laboratory, middle, stopwatch)
        for arm in arms:
            found[arm].append(_arm_seconds(laboratory, middle, arm, stopwatch) / full)
    return {arm: statistics.median(ratios) for arm, ratios in found.items() if ratios}


def _full_seconds(laboratory: Laboratory, middle: Sequence[int], stopwatch: Stopwatch) -> float:
    model, frame = laboratory.exact, laboratory.frame
    front = frame.front(middle)
    cache = model.new_cache(len(front) + len(frame.tail))
    held = _hold_prefix(model, cache, front[: frame.insert])
    return stopwatch.seconds(lambda: prefill(model, cache, front, frame.tail, held=held))


def _arm_seconds(laboratory: Laboratory, middle: Sequence[int], arm: Arm, stopwatch: Stopwatch) -> float:
    model, frame = laboratory.exact, laboratory.frame
    front = frame.front(middle)
    cache = model.new_cache(len(front) + len(frame.tail))
    held = _hold_prefix(model, cache, front[: frame.insert])
    request = replace(laboratory.request(arm, front, middle), held=held)
    return stopwatch.seconds(lambda: splice(model, cache, laboratory.tails[arm.source], request))


def _hold_prefix(model: ReferenceModel, cache: SlotCache, prefix: Sequence[int]) -> int:
    if prefix:
        prefill(model, cache, prefix, ())
    return len(prefix)
