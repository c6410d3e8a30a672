"""A CachePolicy's status: what a rollout remembers, written so that people and the operator can read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sternpost_core.text import shorten
from sternpost_operator.analysis import WINDOWS_MAX, Window
from sternpost_operator.conditions import seconds_of, timestamp
from sternpost_operator.figures import figures_to_status
from sternpost_operator.rollout import DECISIONS_MAX, Decision, Phase, RolloutState

REASON_LENGTH_MAX: Final = 256
COMMAND_LENGTH_MAX: Final = 64

Mapped = Mapping[str, Any]


def read_rollout(status: Mapped) -> RolloutState:
    """Return what the status says; whatever it does not say, or not in its form, is as at the beginning."""
    memory = _mapping(status.get("rollout"))
    phase = next((phase for phase in Phase if phase.value == status.get("phase")), Phase.WAITING)
    weight = _count(status.get("weight"))
    return RolloutState(
        digest=str(memory.get("digest", "")),
        phase=phase,
        step=_count(status.get("step")),
        weight=weight,
        read_weight=_count(status.get("readWeight", weight)),
        step_since=seconds_of(memory.get("stepSince")) or 0.0,
        hold_since=seconds_of(memory.get("holdSince")),
        complete_since=seconds_of(memory.get("completeSince")),
        paused=memory.get("paused") is True,
        is_ramp=memory.get("ramp") is True,
        command=str(memory.get("command", "")),
        windows=tuple(_windows(memory.get("windows"))),
    )


def write_rollout(state: RolloutState) -> dict[str, Any]:
    """Return the status' part that `read_rollout` reads as `state`, to the second."""
    times = {
        "stepSince": state.step_since or None,
        "holdSince": state.hold_since,
        "completeSince": state.complete_since,
    }
    texts = {"digest": state.digest, "command": state.command[:COMMAND_LENGTH_MAX]}
    memory = {
        **{key: text for key, text in texts.items() if text},
        **{key: timestamp(at) for key, at in times.items() if at is not None},
        "paused": state.paused,
        "ramp": state.is_ramp,
        "windows": [_window_to_mapping(window) for window in state.windows],
    }
    return {
        "phase": state.phase.value,
        "step": state.step,
        "weight": state.weight,
        "readWeight": state.read_weight,
        "rollout": memory,
    }


def append_decisions(before: object, decisions: Iterable[Decision]) -> list[Any]:
    """Return the last decisions, the older ones as they were written."""
    known: Sequence[Any] = before if isinstance(before, list) else []
    return [*known, *(_decision_to_mapping(decision) for decision in decisions)][-DECISIONS_MAX:]


def _decision_to_mapping(decision: Decision) -> dict[str, Any]:
    figures = figures_to_status(decision.figures) if decision.figures else []
    return {
        "at": timestamp(decision.at),
        "action": decision.action.value,
        "weight": decision.weight,
        "reason": shorten(decision.reason, REASON_LENGTH_MAX),
        **({"figures": figures} if figures else {}),
    }


def _window_to_mapping(window: Window) -> dict[str, Any]:
    return {"at": timestamp(window.at), "breaches": list(window.breaches)}


def _windows(found: object) -> Iterable[Window]:
    for item in found[-WINDOWS_MAX:] if isinstance(found, list) else []:
        at = seconds_of(_mapping(item).get("at"))
        if at is not None:
            yield Window(at, tuple(str(name) for name in _mapping(item).get("breaches", [])))


def _mapping(found: object) -> Mapped:
    return found if isinstance(found, Mapping) else {}


def _count(found: object) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else 0
