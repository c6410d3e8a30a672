"""
The policies, pools and kill switches in a directory of YAML files, and keeping up with its edits.

A bad edit never takes effect in part: the last good configuration stays live, for as long as it takes, and
every fault is logged and shown. A directory that has become empty or unreadable is such an edit, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import watchfiles

from sternpost_core.clock import Clock
from sternpost_core.errors import Fault, PolicyError
from sternpost_core.kill import CacheKillSwitch
from sternpost_core.objects import parse_objects
from sternpost_core.policy import Policy
from sternpost_core.policy_match import PolicySet, build_policy_set
from sternpost_core.pool import EnginePool
from sternpost_core.rollout import Rollout
from sternpost_gateway.availability import missing_features
from sternpost_gateway.yaml_files import read_documents

logger = logging.getLogger(__name__)

SUFFIXES: Final = frozenset({".yaml", ".yml"})
"""The files that are read; names that begin with a dot are passed over, as Kubernetes' own are."""

FILES_MAX: Final = 1024
"""Files in one directory."""

DEBOUNCE_MS: Final = 100
QUIET_MS: Final = 20
"""An edit is taken up when all has been quiet for this long, or after the debounce at the latest."""

Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a directory says."""

    policies: PolicySet = field(default_factory=lambda: PolicySet(()))
    pools: tuple[EnginePool, ...] = ()
    switches: tuple[CacheKillSwitch, ...] = ()
    rollouts: Mapping[str, Rollout] = field(default_factory=dict)
    """How far policies are rolled out, by full name; what is not here is there for all."""

    @property
    def is_empty(self) -> bool:
        """Say whether there is no object at all."""
        return not (self.policies.policies or self.pools or self.switches)


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """What a person asks about the configuration; `read_at` is a monotonic time in seconds."""

    faults: tuple[Fault, ...]
    read_at: float


class ConfigSource(Protocol):
    """Where the live configuration comes from; what is live is never less than what was good last."""

    @property
    def config(self) -> Config:
        """Return what is live."""

    @property
    def status(self) -> ConfigStatus:
        """Return what is wrong, and when all was last known to be current."""

    def load(self) -> None:
        """
        Begin, before the first request.

        Raises:
            PolicyError: there is nothing to begin with.
        """


class PolicyDirectory:
    """Holds the live configuration; `on_config` is told about each new one, before anybody can see it."""

    def __init__(self, directory: Path, clock: Clock, on_config: Callable[[Config], None]) -> None:
        self.config = Config()
        self._directory = directory
        self._clock = clock
        self._on_config = on_config
        self._fingerprint: Fingerprint | None = None
        self.status = ConfigStatus((), clock.monotonic())

    def load(self) -> None:
        """
        Read the directory for the first time.

        Raises:
            PolicyError: with every fault of every file.
        """
        self._fingerprint = fingerprint(self._directory)
        config = read_config(self._directory)
        if config.is_empty:
            logger.warning("%s holds no policy: requests pass through unchanged", self._directory)
        self._take(config)

    async def watch(self, poll_seconds: float) -> None:
        """Keep up with the directory; runs until it is cancelled."""
        while True:
            try:
                async for _ in watchfiles.awatch(
                    self._directory,
                    watch_filter=None,
                    debounce=DEBOUNCE_MS,
                    step=QUIET_MS,
                    rust_timeout=int(poll_seconds * 1000),
                    yield_on_timeout=True,
                    recursive=False,
                ):
                    await self.refresh()
            except (OSError, RuntimeError):
                # The directory itself is gone, or cannot be watched: looking at it still tells what is wrong.
                await self.refresh()
                await asyncio.sleep(poll_seconds)

    async def refresh(self) -> None:
        """Look whether the directory has changed; if so, read it and take over what is good."""
        try:
            if await asyncio.to_thread(self._has_changed):
                self._take(await asyncio.to_thread(self._read_again))
            elif not self.status.faults:
                self.status = ConfigStatus((), self._clock.monotonic())
        except PolicyError as error:
            self._refuse(error.faults)

    def _has_changed(self) -> bool:
        before = self._fingerprint
        # Should this fail, the directory counts as changed as soon as it can be looked at again.
        self._fingerprint = None
        self._fingerprint = fingerprint(self._directory)
        return self._fingerprint != before

    def _read_again(self) -> Config:
        config = read_config(self._directory)
        if config.is_empty and not self.config.is_empty:
            fault = Fault(self._directory.name, "no object at all", "at least one object")
            raise PolicyError(self._directory.name, [fault])
        return config

    def _take(self, config: Config) -> None:
        self._on_config(config)
        self.config = config
        self.status = ConfigStatus((), self._clock.monotonic())
        names = ", ".join(policy.full_name for policy in config.policies.policies) or "none"
        logger.info("policies live: %s", names)
        for policy in config.policies.policies:
            for note in missing_features(policy):
                logger.warning("policy %s: %s", policy.full_name, note)

    def _refuse(self, faults: tuple[Fault, ...]) -> None:
        if faults != self.status.faults:
            for fault in faults:
                logger.error("policies refused, the last good ones stay live: %s", fault)
        self.status = ConfigStatus(faults, self.status.read_at)


def fingerprint(directory: Path) -> Fingerprint:
    """
    Return what changes whenever a file that counts is edited, replaced or renamed.

    Raises:
        PolicyError: the directory cannot be read.
    """
    return tuple(
        (path.name, status.st_ino, status.st_ctime_ns, status.st_size)
        for path, status in ((path, _stat(path)) for path in config_files(directory))
        if status is not None
    )


def config_files(directory: Path) -> list[Path]:
    """
    Return the files of a directory that count, by name.

    Raises:
        PolicyError: the directory cannot be read, or holds too many files.
    """
    try:
        found = sorted(
            path for path in directory.iterdir() if path.suffix in SUFFIXES and not path.name.startswith(".")
        )
    except OSError as error:
        value = error.strerror or type(error).__name__
        raise PolicyError(directory.name, [Fault(directory.name, value, "a readable directory")]) from None
    if len(found) > FILES_MAX:
        fault = Fault(directory.name, f"{len(found)} files", f"at most {FILES_MAX} files")
        raise PolicyError(directory.name, [fault])
    return found


def read_config(directory: Path) -> Config:
    """
    Read all files of a directory.

    Raises:
        PolicyError: with every fault of every file; each path begins with the file's name.
    """
    objects: list[Policy | EnginePool | CacheKillSwitch] = []
    faults: list[Fault] = []
    for path in config_files(directory):
        try:
            objects += _read_file(path)
        except PolicyError as error:
            faults += error.faults
    try:
        policies = build_policy_set(item for item in objects if isinstance(item, Policy))
    except PolicyError as error:
        faults += error.faults
    if faults:
        raise PolicyError("policies", faults)
    return Config(
        policies,
        tuple(item for item in objects if isinstance(item, EnginePool)),
        tuple(item for item in objects if isinstance(item, CacheKillSwitch)),
    )


def _read_file(path: Path) -> list[Policy | EnginePool | CacheKillSwitch]:
    documents = read_documents(path)
    try:
        return parse_objects(documents)
    except PolicyError as error:
        named = [Fault(f"{path.name}{fault.path}", fault.value, fault.allowed) for fault in error.faults]
        raise PolicyError(path.name, named) from None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        # A file that has just gone, or a dangling link, counts when it is read.
        return None
