"""What a rollout is judged by: the canary's figures, and the control's of the same time."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final

FIGURES_MAX: Final = 16
"""How many figures a decision carries in a status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """
    One arm over one span of time; None where there is no data.

    Counts are requests and sessions; shares are of requests; times are in seconds; `reused_share` is of
    prompt tokens.
    """

    requests: float | None = None
    sessions: float | None = None
    error_share: float | None = None
    shed_share: float | None = None
    abort_share: float | None = None
    length_share: float | None = None
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    inter_token_p95: float | None = None
    reused_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """
    Everything known at one moment: the last window and the whole step, each for both arms.

    `config_age` is the oldest configuration of any gateway, in seconds; `shadow_kl` in nats per token;
    `shadow_demotions` counts how often a gateway has stopped reading a tail whose replays disagree.
    """

    canary: Sample = Sample()
    control: Sample = Sample()
    step_canary: Sample = Sample()
    step_control: Sample = Sample()
    shadow_samples: float | None = None
    shadow_agreement: float | None = None
    shadow_kl: float | None = None
    shadow_demotions: float | None = None
    config_age: float | None = None


SAMPLE_NAMES: Final = tuple(field.name for field in fields(Sample))
"""The figures of one arm."""

SHADOW_NAMES: Final = ("shadow_samples", "shadow_agreement", "shadow_kl", "shadow_demotions")


def known(value: float | None) -> float | None:
    """Return a figure that can be compared: None for what is missing, not a number, infinite or negative."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def figures_to_status(figures: Figures) -> list[dict[str, Any]]:
    """Return the figures that there is data for, as a status shows them."""
    canary, control = figures.canary, figures.control
    rows = [_row(name, getattr(canary, name), getattr(control, name)) for name in SAMPLE_NAMES]
    rows += [_row(name, getattr(figures, name), None) for name in SHADOW_NAMES]
    return [row for row in rows if len(row) > 1][:FIGURES_MAX]


def _row(name: str, canary: float | None, control: float | None) -> dict[str, Any]:
    values = {"canary": known(canary), "control": known(control)}
    rounded = {arm: float(f"{value:.6g}") for arm, value in values.items() if value is not None}
    return {"name": name, **rounded}
