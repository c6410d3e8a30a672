"""One calibration from beginning to end: load, encode the tail, observe the middles, time, and advise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from sternpost_core.clock import Clock
from sternpost_engine.calibrate.advice import Advice, advise
from sternpost_engine.calibrate.arms import FLOOR, Arm, anchored, grid
from sternpost_engine.calibrate.budget import Budget, start_budget
from sternpost_engine.calibrate.frame import Frame
from sternpost_engine.calibrate.laboratory import Laboratory
from sternpost_engine.calibrate.material import check_lengths, load_tokenizer, read_material
from sternpost_engine.calibrate.middles import read_middles
from sternpost_engine.calibrate.progress import Progress
from sternpost_engine.calibrate.scores import Figures, Observation, summarize
from sternpost_engine.calibrate.settings import Settings
from sternpost_engine.calibrate.sources import encode_sources
from sternpost_engine.calibrate.timing import Stopwatch, time_ratios
from sternpost_engine.reference import ReferenceModel, load_model

OBSERVATION_SHARE: Final = 0.9
"""The share of the time that has passed when the last middle is done; what is left is for timing."""

TIMED_MIDDLES: Final = 3
"""Ratios of times are medians over so many middles."""

ANCHOR_STEP: Final = 256
"""An anchor that is not given is the next multiple of this behind the longest middle."""

ROUGH: Final = torch.bfloat16
"""What models are served in, and so the noise that everything is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What a calibration found out.

    `samples` says how many middles are in each mean, by its length. `wanted` is how many middles were to be
    tested, and the figures say how many were. `generic` says that the product's own middles were used.
    `closing` is how many of the tail's last tokens its last paragraph takes.
    """

    figures: tuple[Figures, ...]
    advice: Advice | None
    frame: Frame
    samples: Mapping[int, int]
    wanted: int
    generic: bool
    closing: int
    seconds: float


class Observer(Protocol):
    """Computes one middle; `Laboratory` is one."""

    def observe(self, middle: Sequence[int], arms: Sequence[Arm]) -> dict[Arm, Observation]:
        """Return what each arm makes of a middle."""


def run_trial(settings: Settings, clock: Clock, progress: Progress) -> Outcome:
    """
    Calibrate one tail on one model.

    Raises:
        SettingsError: a flag or a file is wrong; nothing was computed.
        OperatingError: the model cannot be loaded or spliced.
    """
    budget = start_budget(clock, settings.time_budget)
    middles = read_middles(settings.middles, settings.kind, settings.test_middles)
    material = read_material(settings, load_tokenizer(settings), middles)
    device = torch.device(settings.device)
    progress.begin("loading the model", 2)
    exact = load_model(settings.model, torch.float32, device)
    progress.step()
    check_lengths(settings, material, exact.rotation.positions)
    rough = load_model(settings.model, ROUGH, device)
    progress.step()
    sources = encode_sources(exact, material, settings.calibration_samples, budget, progress)
    laboratory = Laboratory(
        exact=exact,
        rough=rough,
        frame=material.frame,
        tails=sources.tails,
        marker=material.marker,
        anchor=settings.anchor or (material.longest // ANCHOR_STEP + 1) * ANCHOR_STEP,
        answer_tokens=settings.answer_tokens,
        stop_tokens=stop_tokens(exact),
    )
    arms = choose_arms(settings, laboratory)
    observations = observe(laboratory, material.test, arms, budget, progress)
    timed = material.test[:TIMED_MIDDLES]
    ratios = _measure(laboratory, timed, arms, Stopwatch(clock, device), progress)
    figures = summarize(observations, ratios)
    return Outcome(
        figures=figures,
        advice=advise(figures, generic=middles.generic, config_map=settings.config_map),
        frame=material.frame,
        samples=sources.samples,
        wanted=len(material.test),
        generic=middles.generic,
        closing=material.closing,
        seconds=budget.elapsed,
    )


def stop_tokens(model: ReferenceModel) -> frozenset[int]:
    """Return the tokens that end an answer, by the model's generation settings."""
    found = model.network.generation_config.eos_token_id
    several: list[int | None] = found if isinstance(found, list) else [found]
    return frozenset(token for token in several if token is not None)


def choose_arms(settings: Settings, laboratory: Laboratory) -> tuple[Arm, ...]:
    """Return the arms in the order of the table; the anchored ones where they fit into the model."""
    arms = (FLOOR, *grid(settings.last, settings.head, settings.match))
    end = laboratory.anchor + len(laboratory.frame.tail) + settings.answer_tokens
    if end > laboratory.exact.rotation.positions:
        return arms
    return (*arms, *anchored(settings.last, settings.match))


def observe(
    laboratory: Observer,
    middles: Sequence[Sequence[int]],
    arms: Sequence[Arm],
    budget: Budget,
    progress: Progress,
) -> dict[Arm, list[Observation]]:
    """Return what each arm made of each middle: of one at least, and of as many as there is time for."""
    progress.begin("testing held-out middles", len(middles))
    seen: dict[Arm, list[Observation]] = {arm: [] for arm in arms}
    longest = 0.0
    for number, middle in enumerate(middles):
        if number and not budget.has(longest, share=OBSERVATION_SHARE):
            break
        began = budget.elapsed
        for arm, observation in laboratory.observe(middle, arms).items():
            seen[arm].append(observation)
        longest = max(longest, budget.elapsed - began)
        progress.step()
    return seen


def _measure(
    laboratory: Laboratory,
    middles: Sequence[Sequence[int]],
    arms: Sequence[Arm],
    stopwatch: Stopwatch,
    progress: Progress,
) -> dict[Arm, float]:
    """Time one arm of all that compute the same tokens, and give its ratio to each of them."""
    twins = {arm: arm.twin for arm in arms if not arm.exact}
    progress.begin("timing", 1)
    ratios = time_ratios(laboratory, middles, tuple(dict.fromkeys(twins.values())), stopwatch)
    progress.step()
    return {arm: ratios[twin] for arm, twin in twins.items()}
