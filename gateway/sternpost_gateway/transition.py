"""
The way from one kill level to another: one share of the sessions after the other.

What a level had switched off is cold, or has been doubted, so that sessions come back a few percent at first.
`NoRewrite` and `NoAffinity` change prompts and engines, which makes prompts cold when the level rises, too:
sessions get these levels evenly over some minutes, unless somebody forces them. All that leaves prompts and
engines alone counts at once, and for everybody. Sessions are told apart by a rollout's buckets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sternpost_core.kill import KillLevel, effective_level
from sternpost_core.rollout import BUCKETS, WEIGHT_MAX

STEPS: Final = (1, 5, 10, 25, 50)
"""Percent of the sessions that are back at each step; then all are."""

RAMPED: Final = frozenset({KillLevel.NO_REWRITE, KillLevel.NO_AFFINITY})
"""The levels that make prompts cold when they begin to count."""

UNRAMPED: Final = KillLevel.NEW_EPOCH
"""What a ramped level includes that makes nothing cold."""

STALE_SECONDS: Final = 30.0
"""With an older configuration nobody comes back: a kill may be on its way that has not arrived."""

LOOK_SECONDS: Final = 1.0
"""Between two looks at the configuration's age."""


@dataclass(frozen=True, slots=True)
class Said:
    """A level that somebody has asked for, and whether it is to count for every session at once."""

    level: KillLevel
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """The level that sessions are to have in the end, and the least that each of them has at once."""

    level: KillLevel = KillLevel.NONE
    least: KillLevel = KillLevel.NONE


@dataclass(frozen=True, slots=True)
class Pace:
    """
    How quickly sessions change their level.

    On the way back a step lasts `back_step_seconds`; a ramped level has reached everybody after
    `rise_seconds`. 0: all at once.
    """

    back_step_seconds: float = 0.0
    rise_seconds: float = 0.0


AT_ONCE: Final = Pace()
"""For everybody, whatever it makes cold."""


@dataclass(frozen=True, slots=True)
class Transition:
    """
    The way to `target` that began in monotonic seconds.

    `before` has the level of each percent of the sessions at its beginning: a way may begin in the middle of
    another one. Those above the target fall since `falling_since`, those below it rise since `rising_since`.
    """

    before: tuple[KillLevel, ...]
    target: Target
    pace: Pace
    rising_since: float
    falling_since: float

    def level_of(self, bucket: int, now: float) -> KillLevel:
        """Return the level of a session, by its bucket."""
        return self._level_at(bucket * WEIGHT_MAX // BUCKETS, self._risen(now), self._fallen(now))

    def levels(self, now: float) -> tuple[KillLevel, ...]:
        """Return the level of each percent of the sessions."""
        risen, fallen = self._risen(now), self._fallen(now)
        return tuple(self._level_at(percent, risen, fallen) for percent in range(WEIGHT_MAX))

    def share(self, now: float) -> int:
        """Return the percent of the sessions that have the target's level."""
        return self.levels(now).count(self.target.level)

    def _level_at(self, percent: int, risen: int, fallen: int) -> KillLevel:
        was, level = self.before[percent], self.target.level
        if was > level:
            return level if percent < fallen else was
        return level if percent < risen else max(was, self.target.least)

    def _risen(self, now: float) -> int:
        if self.pace.rise_seconds <= 0.0:
            return WEIGHT_MAX
        share = (now - self.rising_since) / self.pace.rise_seconds
        return int(WEIGHT_MAX * min(1.0, max(0.0, share)))

    def _fallen(self, now: float) -> int:
        if self.pace.back_step_seconds <= 0.0:
            return WEIGHT_MAX
        steps = max(0.0, now - self.falling_since) / self.pace.back_step_seconds
        return STEPS[int(steps)] if steps < len(STEPS) else WEIGHT_MAX


def target_of(said: Iterable[Said]) -> Target:
    """Return what comes of all that somebody says: the highest level, and of it what counts at once."""
    asked = tuple(said)
    level = effective_level(item.level for item in asked)
    at_once = min(level, UNRAMPED) if level in RAMPED else level
    return Target(level, max(at_once, effective_level(item.level for item in asked if item.forced)))


def transitions(
    before: Mapping[str, Target],
    after: Mapping[str, Target],
    known: Mapping[str, Transition],
    now: float,
    pace: Pace,
    hurried: Collection[str] = (),
) -> dict[str, Transition]:
    """
    Return who is on the way to another level, by name, when targets go from `before` to `after`.

    `known` are those on the way so far. Whoever is new has no way to go; `hurried` come back at once.
    """
    found: dict[str, Transition] = {}
    for name, target in after.items():
        last = before.get(name)
        if last is None:
            continue
        own = replace(pace, back_step_seconds=0.0) if name in hurried else pace
        way = _moved(known.get(name), last, target, now, own)
        if way is not None and way.share(now) < WEIGHT_MAX:
            found[name] = way
    return found


def delayed(known: Mapping[str, Transition], seconds: float) -> dict[str, Transition]:
    """Return the ways as they are when nobody came back for so many seconds; whoever rises goes on."""
    return {name: replace(way, falling_since=way.falling_since + seconds) for name, way in known.items()}


async def freeze_while_stale(
    delay: Callable[[float], None], config_age: Callable[[], float], monotonic: Callable[[], float]
) -> None:
    """Let no time count by `delay` for which the configuration is stale, until cancelled."""
    while True:
        before = monotonic()
        await asyncio.sleep(LOOK_SECONDS)
        if config_age() > STALE_SECONDS:
            delay(monotonic() - before)


def _moved(
    current: Transition | None, last: Target, target: Target, now: float, pace: Pace
) -> Transition | None:
    """Return the way to a target from where sessions are; one to the same level goes on as it is."""
    if current is not None and target.level is last.level:
        return replace(current, target=target)
    if target == last:
        return None
    levels = (last.level,) * WEIGHT_MAX if current is None else current.levels(now)
    return Transition(levels, target, pace, now, now)
