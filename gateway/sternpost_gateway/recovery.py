"""
The way back from a kill level: one share of the sessions after the other.

What a level had switched off is cold, or has been doubted. So a policy's sessions get the lower level by
their buckets, which are those of a rollout, a few percent at first; a higher level ends that at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sternpost_core.kill import KillLevel
from sternpost_core.rollout import BUCKETS, WEIGHT_MAX

STEPS: Final = (1, 5, 10, 25, 50)
"""Percent of the sessions that are back at each step; then all are."""


STALE_SECONDS: Final = 30.0
"""With an older configuration nobody comes back: a kill may be on its way that has not arrived."""

LOOK_SECONDS: Final = 1.0
"""Between two looks at the configuration's age."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """A way back from `level` that began at `since`, in monotonic seconds; a step lasts `step_seconds`."""

    level: KillLevel
    since: float
    step_seconds: float

    def share(self, now: float) -> int:
        """Return the percent of the sessions that are back."""
        step = int((now - self.since) / self.step_seconds)
        return STEPS[step] if step < len(STEPS) else WEIGHT_MAX

    def held(self, bucket: int, now: float) -> KillLevel:
        """Return the least level of a session, by its bucket."""
        is_back = bucket < self.share(now) * BUCKETS // WEIGHT_MAX
        return KillLevel.NONE if is_back else self.level


def recoveries(
    before: Mapping[str, KillLevel],
    after: Mapping[str, KillLevel],
    known: Mapping[str, Recovery],
    now: float,
    step_seconds: float,
) -> dict[str, Recovery]:
    """
    Return the policies that are on their way back, by name, when levels go from `before` to `after`.

    A level that falls on the way begins anew, from the highest so far; one that rises has to fall first.
    """
    found: dict[str, Recovery] = {}
    for policy, level in after.items():
        last, current = before.get(policy, level), known.get(policy)
        if current is not None and current.share(now) == WEIGHT_MAX:
            current = None
        if level < last and step_seconds > 0.0:
            highest = max(last, current.level) if current is not None else last
            found[policy] = Recovery(highest, now, step_seconds)
        elif level == last and current is not None:
            found[policy] = current
    return found


def delayed(known: Mapping[str, Recovery], seconds: float) -> dict[str, Recovery]:
    """Return the ways back as they are when so many seconds did not count."""
    return {policy: replace(found, since=found.since + seconds) for policy, found in known.items()}


async def freeze_while_stale(
    delay: Callable[[float], None], config_age: Callable[[], float], monotonic: Callable[[], float]
) -> None:
    """Let no time count by `delay` for which the configuration is stale, until cancelled."""
    while True:
        before = monotonic()
        await asyncio.sleep(LOOK_SECONDS)
        if config_age() > STALE_SECONDS:
            delay(monotonic() - before)
