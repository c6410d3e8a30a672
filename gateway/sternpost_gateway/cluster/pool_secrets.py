"""
The Secrets that pools name for their engines' key, read by name from the API server, and by nothing else.

They are read again and again rather than watched: watching takes the right to list all Secrets.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Mapping
from typing import Final, Protocol

from sternpost_core.pool import CREDENTIALS_KEY
from sternpost_gateway.cluster.errors import ClusterError
from sternpost_gateway.cluster.resources import Key, Object, Resource
from sternpost_gateway.engine_keys import EngineKeys, SecretName

logger = logging.getLogger(__name__)

SECRETS: Final = Resource("v1", "Secret", "secrets")

POLL_SECONDS: Final = 10.0
"""Between two readings of all Secrets: a new key counts by then."""

SOON_SECONDS: Final = 0.5
"""Between two looks whether a pool names a Secret that has not been read yet."""

ANSWER_SECONDS_MAX: Final = 2.0
KEY_LENGTH_MAX: Final = 4096


class SecretApi(Protocol):
    """What is needed of the API server."""

    async def read(self, resource: Resource, key: Key, seconds: float) -> Object | None:
        """Return an object, None if the server says that it is not there; raises ClusterError."""


class PoolSecrets:
    """Keeps the keys of pools current; one that cannot be read stays as it was."""

    def __init__(self, api: SecretApi, keys: EngineKeys) -> None:
        self._api = api
        self._keys = keys
        self._read: tuple[SecretName, ...] = ()
        self._faults: dict[SecretName, str] = {}

    async def run(self) -> None:
        """Read all Secrets now and then, and those of new pools at once; runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if self._keys.wanted != self._read or loop.time() >= due:
                due = loop.time() + POLL_SECONDS
                await self.refresh()
            await asyncio.sleep(SOON_SECONDS)

    async def refresh(self) -> None:
        """Read all Secrets that are named now."""
        self._read = self._keys.wanted
        for name in self._read:
            try:
                found = await self._api.read(SECRETS, Key(name.namespace, name.name), ANSWER_SECONDS_MAX)
                news = self._keys.learn(name, None if found is None else key_in(found))
            except ClusterError as error:
                self._tell(name, str(error))
            else:
                self._tell(name, "" if found is not None else "it is not there")
                if news and found is not None:
                    logger.info("the engines' key in the Secret %s counts from now on", name)

    def _tell(self, name: SecretName, fault: str) -> None:
        if fault and self._faults.get(name) != fault:
            logger.error("the engines' key in the Secret %s cannot be read: %s", name, fault)
        self._faults[name] = fault


def key_in(secret: Object) -> str:
    """
    Return the key that a Secret holds.

    Raises:
        ClusterError: it holds none that could be sent; what it holds is not repeated.
    """
    data = secret.get("data")
    encoded = data.get(CREDENTIALS_KEY) if isinstance(data, Mapping) else None
    try:
        key = base64.b64decode(str(encoded or ""), validate=True).decode("ascii").strip()
    except (binascii.Error, UnicodeDecodeError):
        key = ""
    if not key or not key.isprintable() or len(key) > KEY_LENGTH_MAX:
        raise ClusterError(f"its key {CREDENTIALS_KEY} has to hold printable ASCII, {KEY_LENGTH_MAX} at most")
    return key
