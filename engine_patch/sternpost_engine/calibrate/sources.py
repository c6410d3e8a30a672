"""The tail's KV from each source: encoded alone, after the scaffold, as means over calibration middles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sternpost_engine.calibrate.arms import Source
from sternpost_engine.calibrate.budget import Budget
from sternpost_engine.calibrate.material import Material
from sternpost_engine.calibrate.progress import Progress
from sternpost_engine.calibration import LENGTHS, ROOM_SHARE_MIN, Calibrator, Job
from sternpost_engine.reference import ReferenceModel, add_means, build_tail, encode_tail
from sternpost_engine.tensors import StoredTail

CALIBRATION_SHARE: Final = 0.5
"""The share of the time that means may take."""

LONG_PROMPT_FACTOR: Final = 1.5
"""How much slower a token of a long prompt is reckoned to be than one of the scaffold and tail."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The tail by the source of its KV, and the number of samples in each mean, by the mean's length."""

    tails: dict[Source, StoredTail]
    samples: dict[int, int]


def encode_sources(
    model: ReferenceModel, material: Material, samples: int, budget: Budget, progress: Progress
) -> Sources:
    """Encode the tail; `samples` middles are wanted per length, fewer are taken where time is short."""
    frame = material.frame
    progress.begin("encoding the tail", 2)
    alone = StoredTail(frame.tail, encode_tail(model, (), frame.tail), means={})
    progress.step()
    began = budget.elapsed
    scaffold = build_tail(model, frame.scaffold, frame.tail)
    seconds_per_token = (budget.elapsed - began) / (len(frame.scaffold) + len(frame.tail))
    progress.step()
    lengths = needed_lengths(max(map(len, material.test)))
    count = samples_that_fit(
        samples, lengths, len(frame.scaffold) + len(frame.tail), seconds_per_token, budget.seconds
    )
    calibrated = StoredTail(frame.tail, scaffold.scaffold, means={})
    calibrator = _calibrator(material, lengths, count, model.rotation.positions)
    progress.begin("calibrating the tail", len(lengths) * count)
    counts = add_means(model, calibrated, calibrator, lambda sample: progress.step())
    return Sources(
        {Source.ALONE: alone, Source.SCAFFOLD: scaffold, Source.CALIBRATED: calibrated},
        {LENGTHS[variant]: number for variant, number in counts.items()},
    )


def needed_lengths(longest: int) -> tuple[int, ...]:
    """
    Return the lengths whose means are read by middles of up to `longest` tokens.

        >>> needed_lengths(100)
        (48, 384)
    """
    behind = next((place for place, length in enumerate(LENGTHS) if length >= longest), len(LENGTHS) - 1)
    return LENGTHS[: behind + 1]


def samples_that_fit(
    wanted: int, lengths: tuple[int, ...], fixed: int, seconds_per_token: float, seconds: float
) -> int:
    """
    Return how many samples per length fit into their share of `seconds`, at least one and at most `wanted`.

    A sample is a prompt of a middle and `fixed` other tokens.
    """
    each = LONG_PROMPT_FACTOR * seconds_per_token * sum(length + fixed for length in lengths)
    return max(1, min(wanted, int(CALIBRATION_SHARE * seconds / each))) if each > 0 else wanted


def _calibrator(material: Material, lengths: tuple[int, ...], samples: int, positions: int) -> Calibrator:
    frame = material.frame
    longer = [length for length in LENGTHS if length > lengths[-1]]
    # A calibrator leaves out the lengths that its prompts have no room for.
    room = int(longer[0] * ROOM_SHARE_MIN) - 1 if longer else positions
    limit = min(positions, len(frame.scaffold) + len(frame.tail) + room)
    calibrator = Calibrator(material.texts, samples=samples, prompt_tokens_max=limit)
    calibrator.want(Job(0, frame.scaffold, frame.insert, frame.tail, ""))
    return calibrator
