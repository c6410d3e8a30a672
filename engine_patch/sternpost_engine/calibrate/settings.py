"""What a calibration is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

LASTS_DEFAULT: Final = (1, 16, 32)
HEADS_DEFAULT: Final = (0, 32)
MATCH_DEFAULT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The flags of `sternpost calibrate`, by their names; an `anchor` of 0 is one behind every middle."""

    model: Path
    tail: Path
    middles: Path | None = None
    prefix: Path | None = None
    out: Path = Path("calibration")
    kind: str = ""
    tail_role: str = "system"
    last: tuple[int, ...] = LASTS_DEFAULT
    head: tuple[int, ...] = HEADS_DEFAULT
    match: int = MATCH_DEFAULT
    anchor: int = 0
    test_middles: int = 16
    answer_tokens: int = 16
    middle_tokens_max: int = 1024
    calibration_samples: int = 8
    time_budget: float = 900.0
    device: str = "cpu"
    threads: int = 1
    config_map: str = "calibration-middles"
