"""What a child process is, what is known of it, and how an observation changes that; all of it pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """
    A child process to keep running.

    It is ready once `ready_url` answers 200, and well for as long as `live_url` does. It cannot get ready
    before the children named in `waits_for` are. `start_deaths_max` is how often in a row it may die before
    it was ever ready; then starting it again is taken for hopeless.
    """

    name: str
    command: tuple[str, ...]
    ready_url: str
    live_url: str
    log: Path
    ready_seconds_max: float
    stop_seconds_max: float
    start_deaths_max: int
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The waits of the supervisor, in seconds."""

    restart_first: float = 1.0
    """The wait before the first restart; each further death in a row doubles it."""
    restart_max: float = 60.0
    """A fault that lasts is tried once a minute."""
    healthy: float = 60.0
    """A child that was well for so long has recovered: its next death counts as the first."""
    silent_max: float = 120.0
    """A child that was ready and does not answer for so long is hung; a busy engine is merely slow."""
    tick: float = 0.2
    """The time between two rounds of the supervisor; a death is noticed within one."""
    probe_interval: float = 2.0
    """A child that is ready is asked so often; one that is not, every round."""
    probe_max: float = 1.0
    """The time that an answer to a probe may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one look at a child shows; `healthy` is None where it was not asked."""

    running: bool
    exit_status: int | None = None
    healthy: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildState:
    """
    What is known of a child. Times are of a monotonic clock, in seconds, and belong to its latest process.

    `deaths` counts deaths in a row, without enough time of health in between.
    """

    started_at: float | None = None
    ready_at: float | None = None
    healthy_at: float | None = None
    ended_at: float | None = None
    exit_status: int | None = None
    deaths: int = 0
    ever_ready: bool = False

    @property
    def running(self) -> bool:
        """Whether a process was started and has not ended."""
        return self.started_at is not None and self.ended_at is None

    @property
    def ready(self) -> bool:
        """Whether the running process has been ready."""
        return self.running and self.ready_at is not None


def after_start(state: ChildState, now: float) -> ChildState:
    """Return the state of a child whose process has just been started."""
    return ChildState(started_at=now, deaths=state.deaths, ever_ready=state.ever_ready)


def after_look(state: ChildState, observation: Observation, limits: Limits, now: float) -> ChildState:
    """Return the state after an observation."""
    if not state.running:
        return state
    if not observation.running:
        deaths = 1 if was_well(state, limits) else state.deaths + 1
        return replace(state, ended_at=now, exit_status=observation.exit_status, deaths=deaths)
    if observation.healthy:
        ready_at = now if state.ready_at is None else state.ready_at
        return replace(state, ready_at=ready_at, healthy_at=now, ever_ready=True)
    return state


def was_well(state: ChildState, limits: Limits) -> bool:
    """Tell whether the latest process was healthy for long enough to forget the deaths before it."""
    if state.ready_at is None or state.healthy_at is None:
        return False
    return state.healthy_at - state.ready_at >= limits.healthy
