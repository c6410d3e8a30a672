"""What to do next about the child processes: a pure function of what is wanted, what is known, and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sternpost_operator.local.child import ChildSpec, ChildState, Limits

DOUBLINGS_MAX = 16
"""The wait reaches its own limit long before; this keeps the number small."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the child's process."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End the child's process at once; its restart follows from its death."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop everything: the child cannot be started."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Say that everything is ready."""


Action = Start | Kill | GiveUp | Announce


def decide(
    children: Sequence[ChildSpec],
    states: Mapping[str, ChildState],
    limits: Limits,
    *,
    announced: bool,
    now: float,
) -> tuple[Action, ...]:
    """Return what to do now, in order."""
    decisions = [_decide_child(child, states, limits, now) for child in children]
    actions: list[Action] = [action for action in decisions if action is not None]
    if not announced and all(states[child.name].ready for child in children):
        actions.append(Announce())
    return tuple(actions)


def restart_seconds(deaths: int, limits: Limits) -> float:
    """
    Return how long to wait before a restart after so many deaths in a row.

    With a first wait of 1 s and a longest of 60 s: 1, 2, 4, 8, 16, 32, 60, 60, ...
    """
    doublings = min(max(deaths - 1, 0), DOUBLINGS_MAX)
    return min(limits.restart_first * float(1 << doublings), limits.restart_max)


def _decide_child(
    child: ChildSpec, states: Mapping[str, ChildState], limits: Limits, now: float
) -> Action | None:
    state = states[child.name]
    if state.running:
        return _decide_running(child, states, limits, now)
    if state.ended_at is None:
        return Start(child.name)
    if not state.ever_ready and state.deaths >= child.start_deaths_max:
        times = "at its start" if state.deaths == 1 else f"{state.deaths} times in a row and was never ready"
        return GiveUp(child.name, f"{child.name} died {times}")
    if now - state.ended_at >= restart_seconds(state.deaths, limits):
        return Start(child.name)
    return None


def _decide_running(
    child: ChildSpec, states: Mapping[str, ChildState], limits: Limits, now: float
) -> Action | None:
    state = states[child.name]
    if state.healthy_at is not None:
        silent = now - state.healthy_at > limits.silent_max
        return Kill(child.name, f"did not answer for {limits.silent_max:.0f} s") if silent else None
    since = _could_get_ready_since(child, states)
    if since is None or now - since <= child.ready_seconds_max:
        return None
    return Kill(child.name, f"was not ready within {child.ready_seconds_max:.0f} s")


def _could_get_ready_since(child: ChildSpec, states: Mapping[str, ChildState]) -> float | None:
    others = [states[name] for name in child.waits_for]
    if not all(other.ready for other in others):
        return None
    times = [states[child.name].started_at, *(other.ready_at for other in others)]
    return max(time for time in times if time is not None)
