"""The recipes: which texts a tail is calibrated over, and what of it is computed afresh."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sternpost_engine.calibrate.arms import FLOOR, Arm, Source


class Origin(StrEnum):
    """
    Which texts a tail is calibrated over; without calibration it does not matter.

    The engine joins and cuts texts to middles of its three lengths. `AS_THEY_ARE` takes each of the owner's
    as one middle, as long as it is.
    """

    GENERIC = "generic"
    OWNER = "owner"
    AS_THEY_ARE = "owner, as they are"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to compute a prompt; its name is the key of its records."""

    name: str
    origin: Origin
    arm: Arm


def _reusing(source: Source, last: int, match: int, origin: Origin = Origin.GENERIC) -> Recipe:
    texts = origin.value if source is Source.CALIBRATED else source.value
    return Recipe(f"{texts}, last {last}, match {match}", origin, Arm(source, last, 0, match))


ROUGH: Final = Recipe("bfloat16", Origin.GENERIC, FLOOR)
"""Exact prefill in the dtype that models are served in: how far answers move by rounding alone."""

RECIPES: Final = (
    ROUGH,
    _reusing(Source.SCAFFOLD, 32, 0),
    _reusing(Source.SCAFFOLD, 32, 64),
    _reusing(Source.CALIBRATED, 32, 0),
    _reusing(Source.CALIBRATED, 32, 64),
    _reusing(Source.CALIBRATED, 64, 64),
    _reusing(Source.CALIBRATED, 16, 64, Origin.OWNER),
    _reusing(Source.CALIBRATED, 32, 0, Origin.OWNER),
    _reusing(Source.CALIBRATED, 32, 64, Origin.OWNER),
    _reusing(Source.CALIBRATED, 64, 64, Origin.OWNER),
    _reusing(Source.CALIBRATED, 32, 0, Origin.AS_THEY_ARE),
    _reusing(Source.CALIBRATED, 32, 64, Origin.AS_THEY_ARE),
)
