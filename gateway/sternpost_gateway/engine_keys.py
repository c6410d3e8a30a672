"""
What each engine sees of credentials: by its pool, or by the gateway's flags where no pool says anything.

A pool that replaces credentials names a Secret. Until its key is known, they are sent nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_core.pool import CredentialsMode, EnginePool
from sternpost_gateway.fleet import Engine
from sternpost_gateway.settings import Credentials

MODES: Final[Mapping[CredentialsMode, Credentials]] = {
    CredentialsMode.REPLACE: Credentials.REPLACE,
    CredentialsMode.FORWARD: Credentials.FORWARD,
    CredentialsMode.NONE: Credentials.NONE,
}


@dataclass(frozen=True, slots=True, order=True)
class SecretName:
    """A Secret in a cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Shown:
    """What an engine is shown: `key` goes with mode `replace`, and is None while it is not known."""

    mode: Credentials
    key: str | None = None


class EngineKeys:
    """Knows what to show to engines; `key` returns the flags' key as it is now."""

    def __init__(self, mode: Credentials, key: Callable[[], str | None]) -> None:
        self._mode = mode
        self._key = key
        self._pools: dict[str, EnginePool] = {}
        self._secrets: dict[SecretName, str] = {}

    @property
    def wanted(self) -> tuple[SecretName, ...]:
        """Return the Secrets that pools name."""
        names = (secret_of(pool) for pool in self._pools.values())
        return tuple(sorted({name for name in names if name is not None}))

    def configure(self, pools: Sequence[EnginePool]) -> None:
        """Take the pools as they are now."""
        self._pools = {pool.full_name: pool for pool in pools}

    def learn(self, name: SecretName, key: str | None) -> bool:
        """Take the key of a Secret, None if the Secret is not there; return whether that is news."""
        before = self._secrets.get(name)
        if key is None:
            self._secrets.pop(name, None)
        else:
            self._secrets[name] = key
        return key != before

    def shown(self, engine: Engine) -> Shown:
        """Return what a client's request shows to an engine."""
        pool = self._pools.get(engine.pool)
        if pool is None:
            return Shown(self._mode, self._key())
        name = secret_of(pool)
        return Shown(MODES[pool.credentials.mode], None if name is None else self._secrets.get(name))

    def own(self, engine: Engine) -> str | None:
        """Return the key for the gateway's own calls to an engine, None if it has none."""
        return self.shown(engine).key


def secret_of(pool: EnginePool) -> SecretName | None:
    """Return the Secret that a pool names, None if it names none."""
    secret = pool.credentials.secret
    return None if secret is None else SecretName(pool.namespace, secret)
