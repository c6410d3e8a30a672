"""
What is switched off, for whom, and why.

Three sources count: each policy's `killLevel`, the CacheKillSwitch objects, and latches that were set over
HTTP. The highest level of all that apply wins. Latches and epochs are on disk, so that a restart clears
neither; a file that cannot be read back means `NoSuffixReads` for everybody, never "nothing".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sternpost_core.clock import Clock
from sternpost_core.errors import OperatingError
from sternpost_core.kill import CacheKillSwitch, KillLevel, effective_level
from sternpost_core.policy import Policy
from sternpost_gateway.state_files import read_json, write_file

logger = logging.getLogger(__name__)

LATCH_FILE: Final = "kill.json"
LATCH_VERSION: Final = 1
LATCHES_MAX: Final = 1024
"""Latches at once: one for each policy, and one for all."""

READS_OFF: Final = frozenset(level for level in KillLevel if level >= KillLevel.NO_SUFFIX_READS)
REWRITES_OFF: Final = frozenset(level for level in KillLevel if level >= KillLevel.NO_REWRITE)
AFFINITY_OFF: Final = frozenset(level for level in KillLevel if level >= KillLevel.NO_AFFINITY)
"""The levels at which each is off; the hot path asks for membership, which is cheaper than comparing."""

EVERYONE: Final = ""
"""The key of the latch that is for all policies."""


@dataclass(frozen=True, slots=True)
class Latch:
    """A level that somebody set over HTTP, until somebody sets another; `at` is in Unix seconds."""

    level: KillLevel
    policy: str
    reason: str
    by: str
    at: float

    def to_mapping(self) -> dict[str, Any]:
        """Return the latch as it is shown and stored."""
        return {**asdict(self), "level": self.level.value, "policy": self.policy or None}


@dataclass(frozen=True, slots=True)
class KillTable:
    """The effective levels and epochs at one moment; the hot path reads nothing else."""

    everyone: KillLevel = KillLevel.NONE
    levels: Mapping[str, KillLevel] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)

    def level(self, policy: str | None) -> KillLevel:
        """Return the level of a policy by its full name, or of a request that no policy matches."""
        return self.levels.get(policy, self.everyone) if policy is not None else self.everyone

    def epoch(self, policy: str) -> int:
        """Return the epoch of a policy's keys."""
        return self.epochs.get(policy, 0)


class Kills:
    """Keeps the sources and makes the table; `state` is the directory of the latch file, if there is one."""

    def __init__(self, clock: Clock, state: Path | None) -> None:
        self.table = KillTable()
        self._clock = clock
        self._file = state / LATCH_FILE if state else None
        self._latches: dict[str, Latch] = {}
        self._epochs: dict[str, int] = {}
        self._policies: tuple[Policy, ...] = ()
        self._switches: tuple[CacheKillSwitch, ...] = ()
        self._restore()

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Return the latches that are set."""
        return tuple(self._latches.values())

    def configure(self, policies: Iterable[Policy], switches: Iterable[CacheKillSwitch]) -> None:
        """Take what the policies and switches say now."""
        self._policies = tuple(policies)
        self._switches = tuple(switches)
        self._update()

    def latch(self, level: KillLevel, policy: str | None, reason: str, by: str) -> Latch:
        """
        Set a level over HTTP; `NONE` takes back what was set so.

        The level counts from the moment that this returns or raises.

        Raises:
            OperatingError: the level counts, but would not survive a restart.
        """
        key = policy or EVERYONE
        latch = Latch(level, key, reason, by, self._clock.time())
        if level is KillLevel.NONE:
            self._latches.pop(key, None)
        elif key in self._latches or len(self._latches) < LATCHES_MAX:
            self._latches[key] = latch
        else:
            raise OperatingError(f"more than {LATCHES_MAX} kill levels are set; set one for all policies")
        logger.warning("kill level %s for %s by %s: %s", level.value, key or "all policies", by, reason)
        self._update()
        self._store()
        return latch

    def _update(self) -> None:
        before = self.table
        everyone = effective_level(
            [
                *(switch.level for switch in self._switches if not switch.namespaces and not switch.policies),
                *(latch.level for latch in self.latches if latch.policy == EVERYONE),
            ]
        )
        levels = {policy.full_name: max(everyone, self._policy_level(policy)) for policy in self._policies}
        self._raise_epochs(before, levels)
        self.table = KillTable(everyone, levels, dict(self._epochs))

    def _policy_level(self, policy: Policy) -> KillLevel:
        latch = self._latches.get(policy.full_name)
        return effective_level(
            [
                policy.kill_level,
                *(switch.level for switch in self._switches if switch.selects(policy.namespace, policy.name)),
                *([latch.level] if latch else []),
            ]
        )

    def _raise_epochs(self, before: KillTable, levels: Mapping[str, KillLevel]) -> None:
        """Give every policy that has just reached `NEW_EPOCH` its next epoch; an epoch never goes back."""
        risen = [
            policy
            for policy, level in levels.items()
            if level >= KillLevel.NEW_EPOCH
            and before.levels.get(policy, KillLevel.NONE) < KillLevel.NEW_EPOCH
        ]
        for policy in risen:
            self._epochs[policy] = self._epochs.get(policy, 0) + 1
        if risen:
            self._store_epochs()

    def _store_epochs(self) -> None:
        try:
            self._store()
        except OperatingError as error:
            # The level itself counts already; losing the number only matters after a restart.
            logger.error("the new epochs would not survive a restart: %s", error)

    def _store(self) -> None:
        if self._file is None:
            return
        state = {
            "v": LATCH_VERSION,
            "latches": [latch.to_mapping() for latch in self.latches],
            "epochs": self._epochs,
        }
        write_file(self._file, json.dumps(state, indent=1).encode())

    def _restore(self) -> None:
        try:
            state = read_json(self._file) if self._file else None
            latches, epochs = _read_state(state) if state is not None else ({}, {})
        except OperatingError as error:
            logger.error("%s; no tail is read until this is settled", error)
            unreadable = Latch(
                KillLevel.NO_SUFFIX_READS,
                EVERYONE,
                "the latch file cannot be read",
                "gateway",
                self._clock.time(),
            )
            latches, epochs = {EVERYONE: unreadable}, {}
        self._latches, self._epochs = latches, epochs
        self._update()


def _read_state(state: Mapping[str, Any]) -> tuple[dict[str, Latch], dict[str, int]]:
    try:
        if state["v"] != LATCH_VERSION:
            raise ValueError("another version")
        latches = [
            Latch(
                KillLevel(item["level"]),
                str(item["policy"] or EVERYONE),
                str(item["reason"]),
                str(item["by"]),
                float(item["at"]),
            )
            for item in state["latches"]
        ]
        epochs = {str(policy): int(epoch) for policy, epoch in state["epochs"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OperatingError(f"{LATCH_FILE} does not hold kill levels: {type(error).__name__}") from error
    return {latch.policy: latch for latch in latches}, epochs
