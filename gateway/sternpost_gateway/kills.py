"""
What is switched off, for whom, and why.

Two kinds of sources count. Each policy's `killLevel` and the CacheKillSwitch objects say what they say for as
long as they say it. What comes over HTTP, from the kill file or by a signal is latched: it stays until the
same source takes it back, and no source takes back what another has set. The highest level of all that apply
wins; sessions change their level step by step (`transition`). Latches and epochs are on disk, so that a
restart clears neither; a file that cannot be read back means `NoSuffixReads` for everybody, never "nothing".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sternpost_core.clock import Clock
from sternpost_core.errors import OperatingError
from sternpost_core.kill import CacheKillSwitch, KillLevel, effective_level
from sternpost_core.policy import Policy
from sternpost_gateway.state_files import read_json, write_file
from sternpost_gateway.transition import (
    AT_ONCE,
    Pace,
    Said,
    Target,
    Transition,
    delayed,
    target_of,
    transitions,
)

logger = logging.getLogger(__name__)

LATCH_FILE: Final = "kill.json"
LATCH_VERSION: Final = 2
LATCHES_MAX: Final = 1024
"""Latches of one source at once: one for each policy, and one for all."""

READS_OFF: Final = frozenset(level for level in KillLevel if level >= KillLevel.NO_SUFFIX_READS)
REWRITES_OFF: Final = frozenset(level for level in KillLevel if level >= KillLevel.NO_REWRITE)
AFFINITY_OFF: Final = frozenset(level for level in KillLevel if level >= KillLevel.NO_AFFINITY)
"""The levels at which each is off; the hot path asks for membership, which is cheaper than comparing."""

EVERYONE: Final = ""
"""The key of what is for all policies."""


class Source(StrEnum):
    """Where a level comes from; the values are metric labels."""

    POLICY = "policy"
    SWITCH = "switch"
    HTTP = "http"
    FILE = "file"
    SIGNAL = "signal"
    STATE = "state"
    """The latch file could not be read back."""


@dataclass(frozen=True, slots=True)
class Latch:
    """
    A level that a source has set, until the same source sets another; `at` is in Unix seconds.

    What is `forced` counts for every session at once.
    """

    level: KillLevel
    policy: str
    reason: str
    by: str
    at: float
    source: Source = Source.HTTP
    forced: bool = False

    @property
    def said(self) -> Said:
        """Return what the source asks for."""
        return Said(self.level, self.forced)

    def to_mapping(self) -> dict[str, Any]:
        """Return the latch as it is shown and stored."""
        return {
            **asdict(self),
            "level": self.level.value,
            "policy": self.policy or None,
            "source": self.source.value,
        }


@dataclass(frozen=True, slots=True)
class KillTable:
    """
    The effective levels and epochs at one moment; the hot path reads nothing else.

    `sources` holds, for each policy and for `EVERYONE`, what each source says. `first_epoch` is the epoch of
    policies that have had no other. `targets` and `transitions` say, for those same names, which level counts
    in the end, and who is on the way to it.
    """

    everyone: KillLevel = KillLevel.NONE
    levels: Mapping[str, KillLevel] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, Mapping[Source, KillLevel]] = field(default_factory=dict)
    first_epoch: int = 0
    targets: Mapping[str, Target] = field(default_factory=dict)
    transitions: Mapping[str, Transition] = field(default_factory=dict)

    def level(self, policy: str | None) -> KillLevel:
        """Return the level of a policy by its full name, or of a request that no policy matches."""
        return self.levels.get(policy, self.everyone) if policy is not None else self.everyone

    def least(self, policy: str | None) -> KillLevel:
        """Return the level that every session of a policy has now, and some may be above."""
        way = self.transition(policy)
        return self.level(policy) if way is None else way.target.least

    def transition(self, policy: str | None) -> Transition | None:
        """Return the way that the sessions of a policy are on, None where all have its level."""
        return self.transitions.get(policy if policy is not None and policy in self.levels else EVERYONE)

    def epoch(self, policy: str) -> int:
        """Return the epoch of a policy's keys."""
        return self.epochs.get(policy, self.first_epoch)


SaidBySource = Mapping[Source, tuple[Said, ...]]
"""What each source asks for."""

OnLatch = Callable[[Latch, KillTable], None]
"""Told about each latch when it counts, with the table that it made."""


class Kills:
    """
    Keeps the sources and makes the table.

    `state` is the directory of the latch file, if there is one; `pace` is how quickly sessions change their
    level.
    """

    def __init__(
        self,
        clock: Clock,
        state: Path | None,
        on_latch: OnLatch = lambda latch, table: None,
        pace: Pace = AT_ONCE,
    ) -> None:
        self.table = KillTable()
        self._pace = pace
        self._clock = clock
        self._file = state / LATCH_FILE if state else None
        self._on_latch = on_latch
        self._latches: dict[tuple[Source, str], Latch] = {}
        self._epochs: dict[str, int] = {}
        self._first_epoch = 0
        self._policies: tuple[Policy, ...] = ()
        self._switches: tuple[CacheKillSwitch, ...] = ()
        self._restore()

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Return the latches that are set."""
        return tuple(self._latches.values())

    def reload(self) -> None:
        """Take what is on disk: what other processes of this gateway have been told meanwhile."""
        if self._file is not None:
            self._restore()

    def agree(self) -> None:
        """Take the epochs that other processes of this gateway have reached, where they are higher."""
        try:
            state = read_json(self._file) if self._file else None
            _, epochs, first = _read_state(state) if state is not None else ((), {}, 0)
        except OperatingError as error:
            logger.error("the epochs of the other workers are not known: %s", error)
            return
        before = self._epochs, self._first_epoch
        self._first_epoch = max(self._first_epoch, first)
        self._epochs = {**epochs, **self._epochs}
        self._epochs.update({name: max(epoch, self._epochs[name]) for name, epoch in epochs.items()})
        if (self._epochs, self._first_epoch) != before:
            self._update()

    def latched(self, source: Source, policy: str | None = None) -> Latch | None:
        """Return what a source has set for a policy, or for all."""
        return self._latches.get((source, policy or EVERYONE))

    def configure(
        self,
        policies: Iterable[Policy],
        switches: Iterable[CacheKillSwitch],
        epochs: Mapping[str, int] | None = None,
    ) -> None:
        """Take what the policies and switches say now, and the least epoch of each policy by full name."""
        for policy, epoch in (epochs or {}).items():
            if epoch > self._epochs.get(policy, self._first_epoch):
                self._epochs[policy] = epoch
        self._policies = tuple(policies)
        self._switches = tuple(switches)
        self._update()

    def delay(self, seconds: float) -> None:
        """Let the last seconds not count on the way back from a level."""
        if self.table.transitions:
            self.table = replace(self.table, transitions=delayed(self.table.transitions, seconds))

    def latch(
        self,
        level: KillLevel,
        policy: str | None,
        reason: str,
        by: str,
        source: Source = Source.HTTP,
        *,
        forced: bool = False,
    ) -> Latch:
        """
        Set a level; `NONE` takes back what the same source has set, and nothing else.

        What is `forced` counts for every session at once, also on the way back.

        The level counts from the moment that this returns or raises, unless there are too many.

        Raises:
            OperatingError: the level counts, but would not survive a restart; or the source has set too many.
        """
        latch = Latch(level, policy or EVERYONE, reason, by, self._clock.time(), source, forced)
        self._take(latch)
        how = "at once " if forced else ""
        logger.warning("kill level %s %sfor %s by %s: %s", level, how, policy or "all policies", by, reason)
        self._update(hurried=latch.policy if forced else None)
        self._on_latch(latch, self.table)
        self._store()
        return latch

    def _take(self, latch: Latch) -> None:
        key = (latch.source, latch.policy)
        if latch.level is KillLevel.NONE:
            self._latches.pop(key, None)
            if latch.source is Source.HTTP and latch.policy == EVERYONE:
                # Whoever sets the level for all by hand has seen that the latches could not be read back.
                self._latches.pop((Source.STATE, EVERYONE), None)
            return
        if key not in self._latches and self._count(latch.source) >= LATCHES_MAX:
            raise OperatingError(f"more than {LATCHES_MAX} kill levels are set; set one for all policies")
        self._latches[key] = latch

    def _count(self, source: Source) -> int:
        return sum(1 for known, _ in self._latches if known is source)

    def _update(self, hurried: str | None = None) -> None:
        """Make the table anew; `hurried` names the policy, or everyone, who comes back at once."""
        before = self.table
        said = {EVERYONE: self._for_everyone()}
        said.update((policy.full_name, self._for_policy(policy)) for policy in self._policies)
        targets = {
            name: target_of(item for found in by.values() for item in found) for name, by in said.items()
        }
        levels = {name: target.level for name, target in targets.items() if name != EVERYONE}
        self._raise_epochs(before, levels)
        hurried_names = targets if hurried == EVERYONE else () if hurried is None else (hurried,)
        now = self._clock.monotonic()
        ways = transitions(before.targets, targets, before.transitions, now, self._pace, hurried_names)
        self.table = KillTable(
            everyone=targets[EVERYONE].level,
            levels=levels,
            epochs=dict(self._epochs),
            sources={name: _highest(by) for name, by in said.items()},
            first_epoch=self._first_epoch,
            targets=targets,
            transitions=ways,
        )

    def _for_everyone(self) -> SaidBySource:
        """Return what each source says for requests that no policy matches."""
        switches = [switch for switch in self._switches if not switch.namespaces and not switch.policies]
        return {**self._latched_by_source(EVERYONE), Source.SWITCH: _said_by(switches)}

    def _for_policy(self, policy: Policy) -> SaidBySource:
        """Return what each source says for a policy's requests."""
        selected = [switch for switch in self._switches if switch.selects(policy.namespace, policy.name)]
        return {
            **self._latched_by_source(policy.full_name),
            Source.POLICY: (Said(policy.kill_level),),
            Source.SWITCH: _said_by(selected),
        }

    def _latched_by_source(self, policy: str) -> SaidBySource:
        keys = dict.fromkeys((policy, EVERYONE))
        found = {source: [self._latches.get((source, key)) for key in keys] for source in Source}
        return {source: tuple(item.said for item in own if item is not None) for source, own in found.items()}

    def _raise_epochs(self, before: KillTable, levels: Mapping[str, KillLevel]) -> None:
        """Give every policy that has just reached `NEW_EPOCH` its next epoch; an epoch never goes back."""
        risen = [
            policy
            for policy, level in levels.items()
            if level >= KillLevel.NEW_EPOCH
            and before.levels.get(policy, KillLevel.NONE) < KillLevel.NEW_EPOCH
        ]
        for policy in risen:
            self._epochs[policy] = self._epochs.get(policy, self._first_epoch) + 1
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
            "first_epoch": self._first_epoch,
        }
        write_file(self._file, json.dumps(state, indent=1).encode())

    def _restore(self) -> None:
        try:
            state = read_json(self._file) if self._file else None
            latches, epochs, first = _read_state(state) if state is not None else ((), {}, 0)
        except OperatingError as error:
            logger.error("%s; no tail is read until this is settled", error)
            # The epochs that were reached are not known any more. Seconds since 1970 are beyond all of them,
            # so no KV that an earlier kill made unreachable can be read again.
            latches, epochs, first = (self._unreadable(),), {}, int(self._clock.time())
        self._latches = {(latch.source, latch.policy): latch for latch in latches}
        self._epochs, self._first_epoch = epochs, first
        self._update()

    def _unreadable(self) -> Latch:
        return Latch(
            KillLevel.NO_SUFFIX_READS,
            EVERYONE,
            "the latch file cannot be read",
            "gateway",
            self._clock.time(),
            Source.STATE,
        )


def _highest(said: SaidBySource) -> dict[Source, KillLevel]:
    return {source: effective_level(item.level for item in found) for source, found in said.items()}


def _said_by(switches: Iterable[CacheKillSwitch]) -> tuple[Said, ...]:
    return tuple(Said(switch.level, switch.forced) for switch in switches)


def _read_state(state: Mapping[str, Any]) -> tuple[tuple[Latch, ...], dict[str, int], int]:
    try:
        if state["v"] != LATCH_VERSION:
            raise ValueError("another version")
        latches = tuple(_read_latch(item) for item in state["latches"])
        epochs = {str(policy): int(epoch) for policy, epoch in state["epochs"].items()}
        first_epoch = int(state.get("first_epoch", 0))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OperatingError(f"{LATCH_FILE} does not hold kill levels: {type(error).__name__}") from error
    return latches, epochs, first_epoch


def _read_latch(item: Mapping[str, Any]) -> Latch:
    return Latch(
        KillLevel(item["level"]),
        str(item["policy"] or EVERYONE),
        str(item["reason"]),
        str(item["by"]),
        float(item["at"]),
        Source(item["source"]),
        # A file of a release that knew no force has none.
        bool(item.get("forced", False)),
    )
