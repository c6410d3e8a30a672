"""The rules by which a canary is stopped, passed, or neither; pure functions of its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_core.policy import Analysis, Rollout
from sternpost_operator.figures import Figures, Sample, known

WINDOW_SECONDS: Final = 60.0
"""What one window of figures spans."""

EVALUATE_SECONDS: Final = 15.0
"""Between two looks at a canary."""

WINDOWS_MAX: Final = 5
"""Windows that are remembered."""

WINDOW_REQUESTS_MIN: Final = 200
"""A share of fewer requests says nothing."""

SHADOW_SAMPLES_MIN: Final = 200
"""Replays below which their agreement says nothing."""

SHED_INCREASE_MAX: Final = 0.02
ABORT_INCREASE_MAX: Final = 0.01
LENGTH_INCREASE_MAX: Final = 0.01
INTER_TOKEN_RATIO_MAX: Final = 1.1
CONTROL_ERROR_SHARE_MAX: Final = 0.05
"""A control that fails more often than this is nothing to compare with."""

CONFIG_AGE_SECONDS_MAX: Final = 30.0
"""With an older configuration a gateway may still do what the step before asked for."""

REUSE_GAIN_MIN: Final = 0.05
TTFT_GAIN_MIN: Final = 0.05
"""What a canary must gain to be worth the rest of the rollout: either of the two is enough."""

USEFUL_WEIGHT: Final = 10
"""The step, in percent, from which a canary must be worth it."""

FAST_WINDOWS: Final = 2
SLOW_WINDOWS: Final = 3
"""Breaches that stop a canary: two windows in a row, or three of the last five."""


Comparison = Callable[[Sample, Sample, Analysis], bool | None]
"""Compares canary and control; None where there is no data for it."""

Bound = Callable[[Analysis], float]


@dataclass(frozen=True, slots=True)
class Rule:
    """A comparison of the arms, and how many windows of it stop a canary."""

    name: str
    is_fast: bool
    is_broken: Comparison


@dataclass(frozen=True, slots=True)
class Window:
    """The rules that one window broke; `at`, its end, in Unix seconds."""

    at: float
    breaches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What the figures say: `abort` and `hold` are reasons, None where there is none.

    `breaches` are the last window's.
    """

    abort: str | None = None
    hold: str | None = None
    breaches: tuple[str, ...] = ()


def judge(figures: Figures | None, analysis: Analysis, *, has_control: bool) -> Verdict:
    """
    Judge the last window alone.

    Without a control, once every session is in the canary, only shadow replays can speak against it.
    """
    if figures is None:
        return Verdict(hold="there are no figures")
    shadow = _shadow_fault(figures, analysis)
    if shadow is not None:
        return Verdict(abort=shadow)
    if not has_control:
        return Verdict()
    hold = _hold_reason(figures)
    return Verdict(hold=hold, breaches=breaches(figures.canary, figures.control, analysis))


def breaches(canary: Sample, control: Sample, analysis: Analysis) -> tuple[str, ...]:
    """Return the rules that the canary breaks; none where either arm has too few requests to say."""
    if not all(_is_enough(sample.requests, WINDOW_REQUESTS_MIN) for sample in (canary, control)):
        return ()
    return tuple(rule.name for rule in RULES if rule.is_broken(canary, control, analysis))


def abort_reason(windows: Sequence[Window]) -> str | None:
    """Return why the last windows, oldest first, stop the canary, or None."""
    for rule in RULES:
        broken = [rule.name in window.breaches for window in windows[-WINDOWS_MAX:]]
        if rule.is_fast and len(broken) >= FAST_WINDOWS and all(broken[-FAST_WINDOWS:]):
            return f"{rule.name} in {FAST_WINDOWS} windows in a row"
        if not rule.is_fast and sum(broken) >= SLOW_WINDOWS:
            return f"{rule.name} in {sum(broken)} of {len(broken)} windows"
    return None


def shortage(figures: Figures, rollout: Rollout) -> str | None:
    """Return what the step has not seen enough of, or None."""
    wanted = (("requests", rollout.min_requests), ("sessions", rollout.min_sessions))
    for name, least in wanted:
        value = known(getattr(figures.step_canary, name))
        if value is None or value < least:
            found = "no" if value is None else f"{value:.0f}"
            return f"{found} {name} in this step, {least} needed"
    return None


def is_useless(figures: Figures) -> bool:
    """Tell whether the whole step gained neither reuse nor time; False where there is no data to tell."""
    canary, control = figures.step_canary, figures.step_control
    reused, before = known(canary.reused_share), known(control.reused_share)
    ttft, ttft_before = known(canary.ttft_p50), known(control.ttft_p50)
    if reused is None or before is None or ttft is None or not ttft_before:
        return False
    return reused - before < REUSE_GAIN_MIN and 1 - ttft / ttft_before < TTFT_GAIN_MIN


def _shadow_fault(figures: Figures, analysis: Analysis) -> str | None:
    demotions = known(figures.shadow_demotions)
    if demotions:
        # A gateway replays nothing of a tail that it has demoted: more samples would never come.
        return f"{demotions:.0f} demotions of tails whose shadow replays disagree"
    if not _is_enough(figures.shadow_samples, SHADOW_SAMPLES_MIN):
        return None
    agreement, divergence = known(figures.shadow_agreement), known(figures.shadow_kl)
    if agreement is not None and agreement < analysis.min_shadow_agreement:
        return f"shadow agreement {agreement:.3f} is under {analysis.min_shadow_agreement:g}"
    if divergence is not None and divergence > analysis.max_shadow_kl:
        return f"shadow divergence {divergence:.3f} nats is over {analysis.max_shadow_kl:g}"
    return None


def _hold_reason(figures: Figures) -> str | None:
    age, errors = known(figures.config_age), known(figures.control.error_share)
    if age is None:
        return "no gateway says how old its configuration is"
    if age > CONFIG_AGE_SECONDS_MAX:
        return f"a gateway's configuration is {age:.0f} s old"
    if known(figures.canary.error_share) is None or errors is None:
        return "an arm has no requests"
    if errors > CONTROL_ERROR_SHARE_MAX:
        return f"the control fails too: {errors:.1%} of its requests"
    return None


def _is_enough(value: float | None, least: float) -> bool:
    number = known(value)
    return number is not None and number >= least


def _increase(name: str, most: Bound) -> Comparison:
    def is_broken(canary: Sample, control: Sample, analysis: Analysis) -> bool | None:
        ours, theirs = known(getattr(canary, name)), known(getattr(control, name))
        return None if ours is None or theirs is None else ours - theirs > most(analysis)

    return is_broken


def _ratio(name: str, most: Bound) -> Comparison:
    def is_broken(canary: Sample, control: Sample, analysis: Analysis) -> bool | None:
        ours, theirs = known(getattr(canary, name)), known(getattr(control, name))
        return None if ours is None or not theirs else ours / theirs > most(analysis)

    return is_broken


RULES: Final = (
    Rule("errors", True, _increase("error_share", lambda analysis: analysis.max_error_increase)),
    Rule("sheds", True, _increase("shed_share", lambda analysis: SHED_INCREASE_MAX)),
    Rule("aborts", True, _increase("abort_share", lambda analysis: ABORT_INCREASE_MAX)),
    Rule("ttft", False, _ratio("ttft_p95", lambda analysis: analysis.max_ttft_ratio)),
    Rule("inter-token", False, _ratio("inter_token_p95", lambda analysis: INTER_TOKEN_RATIO_MAX)),
    Rule("length", False, _increase("length_share", lambda analysis: LENGTH_INCREASE_MAX)),
)
"""Every rule that compares the arms."""
